"""Playbooks and inventories in other folders than the clone, as an owner types them. No Spark is contacted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_spark.core import paths

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An inventory outside of the clone: the minimal one with another address and user."""
    text = (paths.ROOT / "inventories" / "minimal" / "hosts.yml").read_text()
    for old, new in (("spark-1a2b.local", "192.0.2.1"), ("ansible_user: nvidia", "ansible_user: ada")):
        assert old in text
        text = text.replace(old, new)
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "hosts.yml").write_text(text)
    return folder


def run(folder: Path, *words: str, config: Path | None = None) -> tuple[int, str]:
    """Return exit status and output of ansible-playbook in another folder than the clone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    if config:
        environment["ANSIBLE_CONFIG"] = str(config)
    done = subprocess.run(
        [PLAYBOOK, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("config", [None, paths.ROOT / "ansible.cfg"], ids=["no configuration", "the clone's"])
def test_a_verb_runs_from_another_folder(site: Path, config: Path | None) -> None:
    status, output = run(site.parent, "-i", str(site), str(paths.ROOT / "lock.yml"), "--check", config=config)
    assert status == 0, output
    assert "recipe qwen3.6-35b-a3b-nvfp4-mtp pins image" in output


def test_the_recipes_of_an_inventory_are_found_and_unknown_ones_name_the_folders(site: Path) -> None:
    hosts = site / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("recipe: qwen3.6-35b-a3b-nvfp4-mtp", "recipe: mine"))
    words = ("-i", str(site), str(paths.ROOT / "lock.yml"), "--check")
    status, output = run(site.parent, *words)
    assert status != 0
    assert f"unknown recipe mine (searched: {site}/recipes, {paths.RECIPES})" in output
    (site / "recipes").mkdir()
    recipe = (paths.RECIPES / "qwen3.6-35b-a3b-nvfp4-mtp.yml").read_text()
    (site / "recipes" / "mine.yml").write_text(recipe.replace("name: qwen3.6-35b-a3b-nvfp4-mtp", "name: mine", 1))
    status, output = run(site.parent, *words)
    assert status == 0, output
    assert "recipe mine pins image" in output


def test_an_inventory_that_does_not_exist_has_a_message_of_its_own(tmp_path: Path) -> None:
    playbook = str(paths.ROOT / "plan.yml")
    status, output = run(tmp_path, "-i", str(tmp_path / "site"), playbook, config=paths.ROOT / "ansible.cfg")
    assert status != 0
    assert f"there is no inventory at {tmp_path}/site" in output
    assert f"Fix: vllm-spark init. It writes {paths.ROOT}/inventories/site." in output


def test_a_verb_as_a_command_is_the_playbook(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = paths.ROOT / "ansible.cfg"
    words = ("-i", str(site), "--check", "-f", "3")
    expected = run(site.parent, *words, str(paths.ROOT / "lock.yml"), config=clone)
    nowhere = ("-i", str(site / "nowhere"))
    missing = run(site.parent, *nowhere, str(paths.ROOT / "plan.yml"), config=clone)
    monkeypatch.setitem(globals(), "PLAYBOOK", PLAYBOOK.with_name("vllm-spark"))
    assert run(site.parent, "lock", *words) == expected
    assert expected[0] == 0
    # Each names its pages as it was started.
    page = "See docs/runbooks/inventory-refused.md", "See `vllm-spark runbook inventory-refused`"
    assert run(site.parent, "plan", *nowhere) == (missing[0], missing[1].replace(*page))
    assert missing[1].count("Fix: ") == 1
    status, output = run(site.parent, "plan", "-i", str(site), "--no-such-option")
    assert status == 2
    assert output.startswith("plan has the option '--no-such-option' — expected: ")


def test_a_spark_that_cannot_be_reached_is_explained(site: Path) -> None:
    hosts = site / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("192.0.2.1", "127.0.0.1\n      ansible_port: 1"))
    status, output = run(site.parent, "-i", str(site), str(paths.ROOT / "precheck.yml"))
    assert status != 0
    assert "spark1: no SSH connection to 127.0.0.1 port 1: connect to host 127.0.0.1 port 1:" in output
    assert "See docs/runbooks/contact-unreachable.md" in output
