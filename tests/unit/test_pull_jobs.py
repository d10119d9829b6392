"""The programs as they run on a box: processes of their own, ended, killed and started again; and the module's look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from conftest import load_module
from pull_boxes import COMMIT, FOLDER, Cable, giving, model, request, shown

import loopback
from vllm_spark.transfer import plan

FILES = {"config.json": b"{}", **{f"model-{number}.safetensors": os.urandom(30 << 20) for number in range(2)}}
SIZE = sum(map(len, FILES.values()))
DEADLINE_S = 60.0


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box with nothing but the programs, as the module places them."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for path, text in plan.programs().items():
        (tmp_path / "programs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "programs" / path).write_text(text)
    model(tmp_path / "head", FILES)
    return tmp_path


def started(box: Path, command: str, asked: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A program without anything of the toolkit around it: -S leaves out what is installed."""
    (box / "jobs" / f"{command}.request").write_text(json.dumps(asked))
    (box / "jobs" / f"{command}.result").unlink(missing_ok=True)
    environment = {
        "PYTHONPATH": str(box / "programs"),
        "VLLM_SPARK_JOBS": str(box / "jobs"),
        "PATH": os.environ["PATH"],
    }
    words = [sys.executable, "-S", "-m", "vllm_spark.node.pull.range_copy", command]
    return subprocess.Popen(words, env=environment, cwd=box)


def result(box: Path, command: str) -> dict[str, Any]:
    return json.loads((box / "jobs" / f"{command}.result").read_text())


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def arrived(box: Path) -> bool:
    """Has a first range been noted?"""
    return bool(list((box / "worker").rglob("*.vllm-spark.parts")))


def take(box: Path, port: int) -> dict[str, Any]:
    return {**request(box / "worker", port), "streams": 1, "patience_s": 30}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_was_ended_goes_on_with_the_next(box: Path, number: signal.Signals) -> None:
    # Ranges that a slow test machine can count; the program has its own constant.
    program = box / "programs" / "vllm_spark" / "node" / "pull" / "range_copy.py"
    program.write_text(program.read_text().replace("CHUNK = 64 << 20", "CHUNK = 1 << 20"))
    with giving(box / "head") as giver:
        # Twenty megabytes, then silence: the program waits, and is ended there.
        cable = Cable(giver.server_port, budget=20 << 20)
        running = started(box, "take", take(box, cable.port))
        until(lambda: arrived(box) and cable.budget <= 0)
        running.send_signal(number)
        running.wait(DEADLINE_S)
        cable.close()
        if number == signal.SIGTERM:
            assert result(box, "take")["reason"] == "stopped"
        assert started(box, "take", take(box, giver.server_port)).wait(DEADLINE_S) == 0
    assert shown(box / "worker") == FILES
    assert 0 < result(box, "take")["moved"] < SIZE


def test_both_ends_as_programs(box: Path) -> None:
    sources = [{"folder": FOLDER, "commit": COMMIT}]
    port = loopback.free_port()
    giver = started(box, "serve", request(box / "head", port))
    assert started(box, "take", take(box, port)).wait(DEADLINE_S) == 0
    giver.terminate()
    assert giver.wait(DEADLINE_S) == 0
    assert result(box, "serve")["sent"] == result(box, "take")["moved"] == SIZE
    assert not list((box / "jobs").glob("*.request")), "a request holds the token"
    progress = json.loads((box / "jobs" / "take.progress").read_text())
    assert (progress["phase"], progress["done"]) == ("copying", SIZE)
    assert started(box, "check", {"hub": str(box / "worker"), "sources": sources, "verify": True}).wait(DEADLINE_S) == 0
    assert result(box, "check") == {"ok": True, "bad": {}}


def test_a_giver_that_nobody_asks_ends(box: Path) -> None:
    asked = {**request(box / "head", loopback.free_port()), "idle_s": 0.1}
    assert started(box, "serve", asked).wait(DEADLINE_S) == 0
    assert result(box, "serve") == {"ok": True, "sent": 0}


def run_module(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    module = load_module("vllm_weights")
    with patch_module_args(args), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("check", [False, True])
def test_the_module_looks_and_places_nothing(box: Path, capsys: pytest.CaptureFixture[str], check: bool) -> None:
    asked = {"hub": str(box / "head"), "sources": [{"folder": FOLDER, "commit": COMMIT}]}
    said = run_module(
        capsys,
        action="look",
        programs=plan.programs(),
        request=asked,
        program_dir=str(box / "nowhere"),
        _ansible_check_mode=check,
    )
    assert said["looks"][0]["unread"] == SIZE
    assert not said["changed"]
    assert not (box / "nowhere").exists()


def test_the_module_says_why_it_cannot_look(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"hub": str(box / "head"), "sources": [{"folder": "../etc", "commit": COMMIT}]}
    said = run_module(capsys, action="look", programs=plan.programs(), request=asked)
    assert said["failed"]
    assert "../etc" in said["msg"]
