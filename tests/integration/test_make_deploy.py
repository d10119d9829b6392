"""`make deploy` leaves in .sandbox/serves what serves, also if the deploy of the pair fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vllm_spark.core import paths

STAND_IN = """#!/bin/sh
echo "$*" >>typed
case "$*" in *spark1,spark2*) exit {status};; esac
"""


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make on this machine")
@pytest.mark.parametrize(("status", "serves"), [(0, "pair-ray\n"), (2, None)])
def test_serves_names_the_pair_once_it_is_deployed(tmp_path: Path, status: int, serves: str | None) -> None:
    program, left = tmp_path / ".venv" / "bin" / "ansible-playbook", tmp_path / ".sandbox" / "serves"
    for folder in (program.parent, left.parent):
        folder.mkdir(parents=True)
    program.write_text(STAND_IN.format(status=status))
    program.chmod(0o755)
    # Without the sandbox that it needs: only its own commands run.
    done = subprocess.run(
        ["make", "--file", str(paths.ROOT / "Makefile"), "--old-file=sandbox-up", "deploy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    typed = (tmp_path / "typed").read_text().splitlines()
    assert (done.returncode, len(typed)) == (status, 2), done.stderr
    assert (left.read_text() if left.exists() else None) == serves
    # The run itself needs its choice before the file has it.
    assert "sandbox_serves=pair-ray" in typed[-1]
