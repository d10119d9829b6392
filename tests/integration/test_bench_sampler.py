"""The sampler with a process of its own: samples arrive, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.node.bench import gpu_reader
from vllm_spark.node.bench.telemetry import Sampler
from waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

STAND_IN = paths.ROOT / "sandbox" / "spark" / "rootfs" / "usr" / "bin" / "nvidia-smi"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the first line of nvidia-smi as long as a busy machine needs."""
    monkeypatch.setattr(gpu_reader, "FIRST_LINE_S", LIMIT_S)


def alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def recording(folder: Path, rest: str, first: str = "") -> list[str]:
    """Return the command of an nvidia-smi that writes its process id to a file. The file is whole when it appears."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{first}\necho $$ >{folder}/pid.new\nmv {folder}/pid.new {folder}/pid\n{rest}\n")
    program.chmod(0o755)
    return [str(program)]


def test_the_stand_in_of_the_sandbox_is_sampled(tmp_path: Path) -> None:
    with Sampler(time.monotonic(), 0.1, nvidia_smi=recording(tmp_path, f'exec {STAND_IN} "$@"')) as sampler:
        assert sampler.gpu == "NVIDIA GB10 (stand-in)"
        until(lambda: any("sm_mhz" in sample for sample in sampler.samples()))
    sample = next(sample for sample in sampler.samples() if "sm_mhz" in sample)
    assert (sample["sm_mhz"], sample["throttle"], sampler.problem) == (208.0, "", "")
    assert sample["memory_gib"] > 0
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_program_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    command = recording(tmp_path, "while :; do sleep 0.1; done", first="trap '' TERM")
    sampler = Sampler(time.monotonic(), 0.1, nvidia_smi=command)
    until((tmp_path / "pid").exists)
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
        until((tmp_path / "pid").exists)
        bench.send_signal(signal.SIGKILL)
        bench.wait()
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


# The job, patient as in this process.
RANK_JOB = f"""
import runpy
from vllm_spark.node.bench import gpu_reader
gpu_reader.FIRST_LINE_S = {LIMIT_S}
runpy.run_module("vllm_spark.node.bench.rank_job", run_name="__main__", alter_sys=True)
"""


def start_rank_job(folder: Path, nvidia_smi: str = f'exec {STAND_IN} "$@"', **limits: float) -> subprocess.Popen[bytes]:
    """Start the sampler of a rank as a job; its files are in the folder."""
    recording(folder, nvidia_smi)
    (folder / "pid").unlink(missing_ok=True)
    request = {
        "host": "spark2",
        "container": "",
        "path": str(folder / "run" / "samples.jsonl"),
        "limit_s": 60.0,
        "idle_s": 60.0,
    }
    (folder / "bench.request").write_text(json.dumps(request | limits), encoding="utf-8")
    (folder / "bench.result").unlink(missing_ok=True)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(paths.ROOT / "src"), "VLLM_SPARK_JOBS": str(folder)}
    return subprocess.Popen([sys.executable, "-c", RANK_JOB, "bench"], env=environment)


def samples_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "run" / "samples.jsonl"
    # The job may be writing its last line.
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines() if line]


def result_of(folder: Path) -> Any:
    return json.loads((folder / "bench.result").read_text(encoding="utf-8"))


def test_a_rank_is_sampled_until_it_is_told_to_stop(tmp_path: Path) -> None:
    for part in (1, 2):
        before = len(samples_of(tmp_path))
        with start_rank_job(tmp_path) as job:
            until(lambda before=before: len(samples_of(tmp_path)) > before + 2)  # type: ignore[misc]
            job.send_signal(signal.SIGTERM)
            assert job.wait(LIMIT_S) == 0
        assert result_of(tmp_path) == {"ok": True, "detail": "stopped"}
        assert not alive(int((tmp_path / "pid").read_text()))
        heads = [line for line in samples_of(tmp_path) if "t" not in line]
        assert heads == [{"host": "spark2", "gpu": "NVIDIA GB10 (stand-in)"}] * part
    times = [line["t"] for line in samples_of(tmp_path) if "t" in line]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < LIMIT_S
    assert samples_of(tmp_path)[1].keys() > {"t", "memory_gib"}


@pytest.mark.parametrize(("limits", "end"), [({"limit_s": 1.0}, "limit"), ({"idle_s": 1.0}, "idle")])
def test_a_rank_whose_controller_is_lost_ends_its_sampler(tmp_path: Path, limits: dict[str, float], end: str) -> None:
    with start_rank_job(tmp_path, **limits) as job:
        assert job.wait(LIMIT_S) == 0
    assert result_of(tmp_path) == {"ok": True, "detail": end}
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_sampler_that_cannot_write_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file, where a folder should be")
    with start_rank_job(tmp_path) as job:
        assert job.wait(LIMIT_S) == 1
    assert result_of(tmp_path)["ok"] is False
    assert "FileExistsError" in result_of(tmp_path)["detail"]
