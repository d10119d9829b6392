"""The jobs as processes, as on a host: run, stopped, killed and started again. And the states that the module reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

import loopback
from fakes.model_copies import COMMIT, FOLDER, FaultyRelay, file_server, request, snapshot_files, write_model
from project_files import load_module
from vllm_spark.transfer import plan, weights
from vllm_spark.transfer.jobs import JOBS
from waiting import until

FILES = {"config.json": b"{}", **{f"model-{number}.safetensors": os.urandom(30 << 20) for number in range(2)}}
SIZE = sum(map(len, FILES.values()))
DEADLINE_S = 60.0


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with only the programs, as the module places them."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for path, text in plan.programs().items():
        (tmp_path / "programs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "programs" / path).write_text(text)
    write_model(tmp_path / "head", FILES)
    return tmp_path


def start(host: Path, job: str, request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a job without the installed toolkit: -S leaves out the site packages."""
    (host / "jobs" / f"{job}.request").write_text(json.dumps(request))
    (host / "jobs" / f"{job}.result").unlink(missing_ok=True)
    environment = {
        "PYTHONPATH": str(host / "programs"),
        "VLLM_SPARK_JOBS": str(host / "jobs"),
        "PATH": os.environ["PATH"],
    }
    argv = [sys.executable, "-S", *JOBS[job].argv[1:]]
    return subprocess.Popen(argv, env=environment, cwd=host)


def result(host: Path, job: str) -> dict[str, Any]:
    return json.loads((host / "jobs" / f"{job}.result").read_text())


def has_chunk(host: Path) -> bool:
    """Return True if a first chunk was recorded."""
    return bool(list((host / "worker").rglob("*.vllm-spark.parts")))


def fetch_request(host: Path, port: int) -> dict[str, Any]:
    return {**request(host / "worker", port, FILES), "streams": 1, "idle_timeout_s": 30}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_copy_is_continued_by_the_next(host: Path, number: signal.Signals) -> None:
    # Chunks small enough for a slow test machine.
    program = host / "programs" / "vllm_spark" / "node" / "pull" / "partial_file.py"
    program.write_text(program.read_text().replace("CHUNK_BYTES = 64 << 20", "CHUNK_BYTES = 1 << 20"))
    with file_server(host / "head") as server:
        # After twenty megabytes the relay carries nothing more. The job waits, and is stopped there.
        relay = FaultyRelay(server.server_port, budget=20 << 20)
        running = start(host, "fetch-peer", fetch_request(host, relay.port))
        until(lambda: has_chunk(host) and relay.budget <= 0)
        running.send_signal(number)
        running.wait(DEADLINE_S)
        relay.close()
        if number == signal.SIGTERM:
            assert result(host, "fetch-peer")["reason"] == "stopped"
        assert start(host, "fetch-peer", fetch_request(host, server.server_port)).wait(DEADLINE_S) == 0
    assert snapshot_files(host / "worker") == FILES
    assert 0 < result(host, "fetch-peer")["moved"] < SIZE


def test_both_sides_as_processes(host: Path) -> None:
    sources = [{"folder": FOLDER, "commit": COMMIT}]
    port = loopback.held_port()
    server = start(host, "serve-files", request(host / "head", port, FILES))
    assert start(host, "fetch-peer", fetch_request(host, port)).wait(DEADLINE_S) == 0
    server.terminate()
    assert server.wait(DEADLINE_S) == 0
    assert result(host, "serve-files")["sent"] == result(host, "fetch-peer")["moved"] == SIZE
    assert not list((host / "jobs").glob("*.request")), "a request contains the token"
    progress = json.loads((host / "jobs" / "fetch-peer.progress").read_text())
    assert (progress["phase"], progress["done"]) == ("copying", SIZE)
    assert start(host, "check", {"hub": str(host / "worker"), "sources": sources, "verify": True}).wait(DEADLINE_S) == 0
    assert_checked(host)


def test_a_server_without_requests_ends(host: Path) -> None:
    idle = {**request(host / "head", loopback.held_port(), FILES), "idle_timeout_s": 0.1}
    assert start(host, "serve-files", idle).wait(DEADLINE_S) == 0
    assert result(host, "serve-files") == {"ok": True, "sent": 0}


def test_a_job_runs_as_in_the_container(host: Path) -> None:
    sources = [{"folder": FOLDER, "commit": COMMIT}]
    (host / "jobs" / "check.request").write_text(json.dumps({"hub": str(host / "head"), "sources": sources}))
    code = weights.RUN_JOB.replace("/programs", str(host / "programs"))
    argv = [sys.executable, "-S", "-c", code, *JOBS["check"].arguments]
    environment = {"VLLM_SPARK_JOBS": str(host / "jobs"), "PATH": os.environ["PATH"]}
    assert subprocess.run(argv, env=environment, cwd=host, check=False).returncode == 0
    assert_checked(host)


def assert_checked(host: Path) -> None:
    """Assert that the job `check` has found every file right, and that its result has the state after it."""
    checked = result(host, "check")
    [look] = checked.pop("looks")
    assert checked == {"ok": True, "bad": {}}
    assert (look["whole"], look["unread"], look["missing"]) == (SIZE, 0, 0)


def run_module(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    module = load_module("vllm_model_state")
    with patch_module_args(args), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("check", [False, True])
def test_the_module_reads_the_states_and_writes_nothing(
    host: Path, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    hub_request = {"hub": str(host / "head"), "sources": [{"folder": FOLDER, "commit": COMMIT}]}
    before = set(host.rglob("*"))
    reply = run_module(capsys, programs=plan.programs(), **hub_request, _ansible_check_mode=check)
    assert reply["looks"][0]["unread"] == SIZE
    assert not reply["changed"]
    assert set(host.rglob("*")) == before


def test_the_module_reports_an_invalid_model(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub_request = {"hub": str(host / "head"), "sources": [{"folder": "../etc", "commit": COMMIT}]}
    reply = run_module(capsys, programs=plan.programs(), **hub_request)
    assert reply["failed"]
    assert "../etc" in reply["msg"]
