"""Ansible reads every file of an inventory folder, except those that the toolkit keeps there (ansible.cfg)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.edge import store


def test_what_the_toolkit_keeps_beside_an_inventory_is_not_an_inventory(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("sparks: {hosts: {spark1: {}}}\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.yml").write_text((paths.RECIPES / "qwen3.6-35b-a3b-fp8.yml").read_text())
    (tmp_path / "lock.yml").write_text("images: {}\nmodels: {}\n")
    # Release 0.1.0 wrote it, and it stays.
    (tmp_path / "constants.yml").write_text("protocol: 2\nschema: 1\nservers: {spark1: {}}\n")
    (tmp_path / "allowed_signers").write_text("ada ssh-ed25519 AAAA\n")
    store.read_or_create(tmp_path / "edge", datetime.now(UTC), "")
    assert (tmp_path / "edge" / "ca.crt").is_file()
    listed = subprocess.run(
        [Path(sys.executable).parent / "ansible-inventory", "-i", tmp_path, "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg")},
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stderr == ""
    assert json.loads(listed.stdout)["all"]["children"] == ["ungrouped", "sparks"]
    assert paths.sources(tmp_path) == [tmp_path / "hosts.yml"]


def test_trust_asks_the_inventory_for_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = store.read_or_create(tmp_path / "other", datetime.now(UTC), "")
    folder = tmp_path / "inventory"
    (folder / "group_vars" / "all").mkdir(parents=True)
    (folder / "hosts.yml").write_text("sparks: {hosts: {spark1: {ansible_host: 192.0.2.1}}}\n")
    settings = folder / "group_vars" / "all" / "vllm.yml"
    settings.write_text("vllm_edge_authority: '{{ inventory_dir }}/../other'\n")
    assert main.main(["trust", "-i", str(folder)]) == 0
    assert capsys.readouterr().out == made.certificate
    settings.write_text("{}\n")
    assert main.main(["trust", "-i", str(folder)]) == 1
    assert f"{folder}/edge has no authority" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"there is no inventory at .*/none — expected: "):
        main.main(["trust", "-i", str(tmp_path / "none")])
    (folder / "hosts.yml").write_text("others: {hosts: {spark1: {}}}\n")
    assert main.main(["trust", "-i", str(folder)]) == 1
    assert "the inventory does not say where the authority is — expected: " in capsys.readouterr().err
