"""Ansible reads every file of an inventory folder, except those that the toolkit keeps there (ansible.cfg)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

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
