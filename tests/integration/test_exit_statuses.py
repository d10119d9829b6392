"""The table of exit statuses in docs/operations/controllers.md, by commands that end with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_spark.core import paths

PROGRAM = Path(sys.executable).with_name("vllm-spark")
RECIPE = "gemma-4-26b-a4b-fp8-mtp"
PAGE = paths.ROOT / "docs" / "operations" / "controllers.md"

# Words -> exit status. INVENTORY is one Spark that nobody can reach.
ENDS = {
    f"plan {RECIPE}": 0,
    f"plan {RECIPE} --min-speed 9999": 1,
    "runbook zzzz": 1,
    "nosuch": 2,
    "render": 2,
    "doctor absent.log": 2,
    "deploy -i absent": 1,
    "deploy --nosuch-option": 2,
    "plan -i FOREIGN": 1,
    "precheck -i INVENTORY": 2,
    "history -i INVENTORY": 4,
    'logs mine -i INVENTORY -e {"vllm_deployments":[{"name":"mine","recipe":"any","hosts":["spark1"]}]}': 4,
    "logs mine -i INVENTORY": 1,
    "status -i INVENTORY": 4,
}


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    file = tmp_path / "hosts.yml"
    where = "ansible_host: 127.0.0.1, ansible_port: 1, ansible_user: nobody"
    file.write_text(f"sparks:\n  hosts:\n    spark1: {{{where}}}\n  vars:\n    vllm_deployments: []\n")
    return file


@pytest.mark.parametrize("words", ENDS)
def test_a_command_ends_with_its_status(words: str, inventory: Path) -> None:
    foreign = inventory.with_name("foreign.yml")
    foreign.write_text("gx10:\n  hosts:\n    spark1:\n")
    paths_of = words.replace("INVENTORY", str(inventory)).replace("FOREIGN", str(foreign))
    argv = [str(PROGRAM), *paths_of.split()]
    done = subprocess.run(argv, cwd=inventory.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ENDS[words], done.stdout + done.stderr
    assert f"\n| {done.returncode} |" in PAGE.read_text()
