"""The unit removes the firewall rules of a pair before it starts and after it stops."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from vllm_spark.core import paths

RULES = ["--delete INPUT --jump VLLM-SPARK", "--flush VLLM-SPARK", "--delete-chain VLLM-SPARK"]


@pytest.mark.parametrize("key", ["ExecStartPre", "ExecStopPost"])
@pytest.mark.parametrize("status", [0, 1])
def test_the_unit_removes_the_rules_of_a_pair(key: str, status: int, tmp_path: Path) -> None:
    unit = (paths.TEMPLATES / "vllm@.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith(f"{key}=") and "VLLM-SPARK" in line]
    # systemd reads $$ as $.
    argv = shlex.split(line.partition("=")[2].removeprefix("-").replace("$$", "$"))
    for program in ("iptables", "ip6tables"):
        (tmp_path / program).write_text(f'#!/bin/sh\necho "{program} $*" >> {tmp_path}/calls\nexit {status}\n')
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, capture_output=True, text=True)
    # Without a chain every command fails, which is the normal case and not a failure of the unit.
    assert (done.returncode, done.stderr) == (0, "")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"{program} --wait {rule}" for program in ("iptables", "ip6tables") for rule in RULES]
