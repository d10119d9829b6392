"""The sampler with a process of its own: samples arrive, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark.core import paths
from vllm_spark.node.bench.telemetry import Sampler

pytestmark = pytest.mark.integration

STAND_IN = paths.ROOT / "sandbox" / "spark" / "rootfs" / "usr" / "bin" / "nvidia-smi"
WAIT_S = 10.0


def wait_until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def recording(folder: Path, rest: str) -> list[str]:
    """Return the command of an nvidia-smi that writes its process id to a file."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\n{rest}\n")
    program.chmod(0o755)
    return [str(program)]


def test_the_stand_in_of_the_sandbox_is_sampled(tmp_path: Path) -> None:
    with Sampler(time.monotonic(), 0.1, nvidia_smi=recording(tmp_path, f'exec {STAND_IN} "$@"')) as sampler:
        assert sampler.gpu == "NVIDIA GB10 (stand-in)"
        assert wait_until(lambda: any("sm_mhz" in sample for sample in sampler.samples()))
    sample = next(sample for sample in sampler.samples() if "sm_mhz" in sample)
    assert (sample["sm_mhz"], sample["throttle"], sampler.problem) == (208.0, "", "")
    assert sample["memory_gib"] > 0
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_program_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    command = recording(tmp_path, "trap '' TERM\nwhile :; do sleep 0.1; done")
    sampler = Sampler(time.monotonic(), 0.1, nvidia_smi=command)
    assert wait_until((tmp_path / "pid").exists)
    sampler.close()
    assert not alive(int((tmp_path / "pid").read_text()))
    assert sampler.samples()
    assert "sm_mhz" not in sampler.samples()[-1]


def test_the_message_of_a_failing_program_is_kept(tmp_path: Path) -> None:
    command = recording(tmp_path, "echo NVIDIA-SMI has failed; exit 9")
    with Sampler(time.monotonic(), 0.1, nvidia_smi=command) as sampler:
        assert sampler.gpu == ""
        assert sampler.problem == "nvidia-smi: NVIDIA-SMI has failed"


def test_nvidia_smi_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    command = recording(tmp_path, f'exec {STAND_IN} "$@"')
    program = textwrap.dedent(f"""\
        import time
        from vllm_spark.node.bench.telemetry import Sampler
        with Sampler(time.monotonic(), nvidia_smi={command!r}):
            time.sleep(60)
        """)
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as bench:
        assert wait_until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text().strip()))
        bench.send_signal(signal.SIGKILL)
        bench.wait()
    assert wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))
