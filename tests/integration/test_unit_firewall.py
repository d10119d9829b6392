"""The unit takes back what the launch of a pair has added to the firewall table."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from vllm_spark.core import paths

CALLS = ["flush set inet vllm_spark pair_ports", "flush set inet vllm_spark peers"]


@pytest.mark.parametrize("status", [0, 1])
def test_the_unit_empties_the_sets_of_a_pair(status: int, tmp_path: Path) -> None:
    unit = (paths.TEMPLATES / "vllm@.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStopPost=") and "vllm_spark" in line]
    # systemd reads $$ as $.
    argv = shlex.split(line.partition("=")[2].removeprefix("-").replace("$$", "$"))
    (tmp_path / "nft").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexit {status}\n')
    (tmp_path / "nft").chmod(0o755)
    done = subprocess.run(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, capture_output=True, text=True)
    # Without a table every command fails, which is the normal case and not a failure of the unit.
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "calls").read_text().splitlines() == CALLS
