"""`vllm-spark doctor`: whole logs with any prefixes, its output and its exit status."""

from __future__ import annotations

import io
import json
import random
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_spark.cli import main
from vllm_spark.doctor import command, log_lines
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import GENERIC_RUNBOOK, UNRECOGNISED
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.signatures import Harmless, harmless, signatures

LOGS = Path(__file__).parents[2] / "data" / "engine-logs"
PORT = "OSError: [Errno 98] Address already in use"
KILLED = "Out of memory: Killed process 42 (VLLM::EngineCor) total-vm:1kB"
ODD = ["Traceback (most recent call last):", '  File "a.py", line 1, in a', "ValueError: {number} is odd"]

# The findings of each log, in their order.
EXPECTED = {
    "sandbox-0.32-stopped.log": [],
    "sandbox-0.32-stopped-status-1.log": [],
    "26b-a4b-bf16.log": [],
    "26b-a4b-fp8.log": [],
    "26b-a4b-nvfp4-marlin.log": [],
    "26b-a4b-nvfp4-marlin.serve.log": [],
    "31b-bf16.log": [],
    "31b-fp8.log": [],
    "31b-nvfp4-marlin.log": [],
    "ray-worker.log": [],
    # This start used TCP, because those containers had no HCA.
    "31b-fp8-tp2-ray.two-nodes.log": ["nccl-over-sockets"],
    "31b-nvfp4.not-enough-free-memory.serve.log": ["not-enough-free-memory", "env-ignored"],
    "made/0.33-cached.serve.log": [],
    "made/cpu.serve.log": [],
    "made/dealt-with.log": ["env-ignored"],
    "made/chained.log": [UNRECOGNISED],
    "made/ray-wrapped.log": [UNRECOGNISED],
    "made/validation.log": ["setting-refused"],
}


def diagnosed(text: str | bytes) -> Log:
    log = Log("a.log")
    for block in log_lines.blocks(io.BytesIO(text.encode() if isinstance(text, str) else text)):
        log.read(block)
    return log


def ids(log: Log) -> list[str]:
    judgement = judge([log])
    return [finding.signature for finding in (*judgement.findings, *judgement.unrecognised)]


def test_every_log_is_in_the_table() -> None:
    assert {str(file.relative_to(LOGS)) for file in LOGS.rglob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_log(name: str, expected: list[str]) -> None:
    assert ids(command.read(str(LOGS / name))) == expected


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_log_in_small_blocks(name: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The borders of blocks make no difference."""
    whole = judge([command.read(str(LOGS / name))])
    monkeypatch.setattr(log_lines, "BLOCK_BYTES", 700)
    log = command.read(str(LOGS / name))
    assert judge([log]) == whole
    assert log.lines == len((LOGS / name).read_bytes().splitlines())


@pytest.mark.parametrize(
    "carried",
    [
        "{}",
        "(EngineCore pid=9) ERROR 11-20 10:00:00 [core.py:1136] {}",
        "Nov 20 10:00:00 spark1 launch[123]: (EngineCore pid=9) {}",
        "Nov 20 10:00:00 spark1 kernel: {}",
        "2026-11-20T10:00:00+0000 spark1 launch[123]: {}",
        "2026-11-20T10:00:00.123456789Z {}",
        "vllm-gemma-1  | (EngineCore pid=9) {}",
        "[12345.678901] {}",
        "<4>[    2.678901] {}",
        "[Fri Nov 20 10:00:00 2026] {}",
        '{{"log":"(EngineCore pid=9) {}\\n","stream":"stderr","time":"2026-11-20T10:00:00Z"}}',
        "\x1b[0;36m(EngineCore pid=9)\x1b[0;0m {}\r",
        "loading 10 %\rloading 20 %\r{}",
    ],
)
@pytest.mark.parametrize("line", [PORT, KILLED])
def test_a_line_with_any_prefix(carried: str, line: str) -> None:
    [finding] = judge([diagnosed(f"hello\n{carried.format(line)}\nbye\n")]).findings
    assert (finding.line, finding.number, finding.count) == (line, 2, 1)


def test_a_pattern_over_lines_of_two_ranks_and_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    example = next(signature.example for signature in signatures() if signature.id == "tie-weights")
    lines = [f"(Worker_TP{rank} pid={rank}) {line}" for line in example.splitlines() for rank in (0, 1)]
    monkeypatch.setattr(log_lines, "BLOCK_BYTES", 60)
    [finding] = judge([diagnosed("\n".join(lines))]).findings
    assert (finding.signature, finding.number, finding.count) == ("tie-weights", 1, 2)


def test_findings_of_several_logs_are_ranked_root_cause_first() -> None:
    worker, kernel = Log("worker.log"), Log("kernel.log")
    worker.read("Unknown vLLM environment variable detected: VLLM_A\nRayWorkerProc rank=1 died unexpectedly\n")
    worker.read("vllm-spark: ending rank 1: spark1 is lost: why\n")
    kernel.read(f"calm\n{KILLED}\n{KILLED}\n")
    result = judge([worker, kernel]).findings
    assert [(finding.signature, finding.file, finding.number, finding.count) for finding in result] == [
        ("out-of-memory-killed", "kernel.log", 2, 2),
        ("peer-ended", "worker.log", 3, 1),
        ("worker-lost", "worker.log", 2, 1),
        ("env-ignored", "worker.log", 1, 1),
    ]


def test_different_values_are_different_findings_up_to_a_limit() -> None:
    text = "".join(f"Unknown vLLM environment variable detected: VLLM_{letter}\n" for letter in "ABCABCDEFGH")
    result = judge([diagnosed(text)]).findings
    assert [finding.cause[-6:] for finding in result] == [f"VLLM_{letter}" for letter in "ABCDE"]
    assert sum(finding.count for finding in result) == 11


def test_unrecognised_errors_are_grouped_and_limited() -> None:
    lines = [line.format(number=number) for number in range(30) for line in ODD]
    lines += [f"ERROR 11-20 10:00:00 [a.py:1] {'again ' * kind}{number}" for kind in range(9) for number in range(3)]
    unrecognised = judge([diagnosed("\n".join(lines))]).unrecognised
    assert [(finding.line, finding.number, finding.count) for finding in unrecognised[:2]] == [
        ("ValueError: 0 is odd", 3, 30),
        ("0", 91, 3),
    ]
    assert len(unrecognised) == 5


def test_an_explained_error_is_not_unrecognised() -> None:
    explained = [*ODD[:2], PORT, "ERROR 11-20 10:00:00 [a.py:1] No space left on device"]
    judgement = judge([diagnosed("\n".join(explained))])
    assert [finding.signature for finding in judgement.findings] == ["disk-full", "port-in-use"]
    assert judgement.unrecognised == ()


@pytest.mark.parametrize(
    ("line", "times", "after", "result"),
    [
        ("Custom allreduce is disabled because this process group spans across nodes.", 2, 0, ["nccl-silent"]),
        ("Custom allreduce is disabled because this process group spans across nodes.", 2, 9, []),
        ("Waiting for creating a placement group of specs for 20 seconds. specs=1", 2, 0, []),
        ("Overwriting environment variable NCCL_HOSTID from 'spark2' to 'spark1'", 1, 0, []),
        ("14.31 W, 96 %, 2411 MHz", 1, 0, []),
        ("4.31 W, 0 %, 611 MHz", 1, 0, []),
        ("            HW Power Brake Slowdown                        : Not Active", 1, 0, []),
    ],
)
def test_lines_that_count_only_in_some_places(line: str, times: int, after: int, result: list[str]) -> None:
    assert ids(diagnosed(f"{line}\n" * times + "INFO 11-20 10:00:00 [a.py:1] on it goes\n" * after)) == result


@pytest.mark.parametrize("line", harmless(), ids=lambda line: line.example[:40])
def test_a_harmless_line_is_not_an_error(line: Harmless) -> None:
    assert line.why
    assert line.source
    calm = ["INFO 11-20 10:00:00 [a.py:1] calm"] * 9
    assert ids(diagnosed("\n".join([f"ERROR 11-20 10:00:00 [a.py:1] {line.example}", *calm]))) == []


@pytest.mark.slow
def test_binary_garbage() -> None:
    chance = random.Random(7)  # noqa: S311 garbage, no secret
    data = chance.randbytes(2_000_000)
    log = diagnosed(data + b"\n" + PORT.encode() + b"\n" + data)
    assert [finding.signature for finding in judge([log]).findings] == ["port-in-use"]


@pytest.mark.parametrize("text", ["", "\n", "\n\n\n", "\x00", "no end of line"])
def test_logs_with_almost_no_text(text: str) -> None:
    log = diagnosed(text)
    assert (ids(log), log.lines) == ([], len(text.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("part", [b"x", b"Killed ", b"KeyError: 'experts.", b"\r", b"(pid="])
def test_a_line_longer_than_a_block(part: bytes) -> None:
    """The next line is still read, and its number is right."""
    log = diagnosed(part * (3_000_000 // len(part)) + b"\n" + PORT.encode())
    assert [(finding.signature, finding.number) for finding in judge([log]).findings] == [("port-in-use", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("(EngineCore pid=9) INFO 11-20 10:00:00 [a.py:1] Running: {number} reqs", id="calm"),
        pytest.param("(Worker pid={number}) ERROR 11-20 10:00:00 [a.py:1] {number:x} failed", id="errors"),
        pytest.param("(Worker pid={number}) KeyError: 'layers.{number}.weight_scale'", id="findings"),
        pytest.param("\n".join(ODD), id="tracebacks"),
    ],
)
def test_memory_does_not_grow_with_the_log(line: str) -> None:
    class Endless(io.RawIOBase):
        """A log of this many blocks that is generated while it is read."""

        def __init__(self, blocks: int) -> None:
            self.numbers = iter(range(blocks))

        def read(self, size: int = -1) -> bytes:
            block = next(self.numbers, None)
            if block is None:
                return b""
            return "".join(f"{line.format(number=block * 300 + number)}\n" for number in range(300)).encode()

    def peak(blocks: int) -> int:
        log = Log()
        tracemalloc.start()
        for block in log_lines.blocks(Endless(blocks)):  # type: ignore[arg-type]
            log.read(block)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(4)  # fill the caches: compiled patterns, the file of signatures
    assert peak(24) < 1.5 * peak(8)


def run(*args: str) -> int:
    return main.main(["doctor", *args])


def test_a_clean_log_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    serving = LOGS / "26b-a4b-nvfp4-marlin.serve.log"
    lines = len(serving.read_text(encoding="utf-8").splitlines())
    assert run(str(serving)) == 0
    assert capsys.readouterr().out == f"no finding in {lines} lines of 1 log\n"


WORKER_LOST = (
    "ERROR 06-11 10:00:00 [multiproc_executor.py:273] Worker proc VllmWorker-1 died unexpectedly, shutting down.\n"
)
ENGINE_FRAME = '  File "/x/dist-packages/vllm/v1/worker/gpu_model_runner.py", line 7, in _prepare_inputs\n'
ENGINE_ERROR = f"Traceback (most recent call last):\n{ENGINE_FRAME}RuntimeError: the queue has two ends\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(WORKER_LOST + ENGINE_ERROR, ["worker-lost", "area-engine"]), (ENGINE_ERROR, ["area-engine"])],
    ids=["both", "area"],
)
def test_a_known_symptom_comes_before_an_area(
    text: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(text, encoding="utf-8")
    assert run(str(log), "--json") == 1
    assert [finding["signature"] for finding in json.loads(capsys.readouterr().out)["findings"]] == expected


def test_a_log_without_a_failure_and_without_a_server_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.log"
    cut.write_text("INFO 06-11 10:00:00 [core.py:98] Initializing a V1 LLM engine\n", encoding="utf-8")
    assert run(str(cut)) == command.UNKNOWN
    shown = capsys.readouterr().out
    assert shown.startswith("unknown: 1 line of 1 log, with neither a failure nor a server that serves")
    assert "Fix: ssh USER@ADDRESS journalctl" in shown
    assert "Killed process" in shown
    assert run(str(cut), "--json") == command.UNKNOWN
    assert json.loads(capsys.readouterr().out)["unknown"] is True


def test_an_empty_log_is_no_all_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    for args in ([str(empty)], ["-"]):
        assert run(*args) == command.UNKNOWN
        shown = capsys.readouterr().out
        assert shown.startswith("unknown: 0 lines of 1 log, so nothing was read")
        assert "Fix: ssh USER@ADDRESS journalctl" in shown
    assert run(str(LOGS / "26b-a4b-nvfp4-marlin.serve.log"), str(empty)) == 0
    assert capsys.readouterr().out.endswith(f"; {empty} is empty\n")


def test_the_output_for_an_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.log"
    file.write_text(f"{PORT}\n{PORT}\n" + "\n".join(ODD).format(number=3))
    assert run(str(file)) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "1. another process on this Spark uses the deployment's port"
    assert output[1] == f"   cause port-in-use, {file}:1 and 1 more: {PORT}"
    assert output[2].startswith("   Fix: `ss -ltnp`")
    assert output[2].endswith("See `vllm-spark runbook engine-port`")
    assert output[3:5] == [
        "Not recognised:",
        f" - the engine stopped with a ValueError that no signature knows, {file}:5: ValueError: 3 is odd",
    ]
    assert output[5].endswith(f"See `vllm-spark runbook {GENERIC_RUNBOOK.removesuffix('.md')}`")
    assert output[6:] == ["read 5 lines of 1 log"]


@pytest.mark.parametrize("args", [["-", "--json"], ["--json"]])
def test_standard_input_for_programs(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"calm\n{KILLED}\n".encode())))
    assert run(*args) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["logs"] == [{"file": "standard input", "lines": 2}]
    assert output["unrecognised"] == []
    [finding] = output["findings"]
    assert finding["line"] == KILLED
    assert [finding[name] for name in ("signature", "severity", "number", "count", "runbook")] == [
        "out-of-memory-killed",
        "cause",
        2,
        1,
        "engine-memory.md",
    ]


@pytest.mark.parametrize("make", [lambda file: None, lambda file: file.mkdir()], ids=["absent", "a folder"])
def test_a_log_that_cannot_be_read(make: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.log"
    make(file)  # type: ignore[operator]
    assert run(str(file)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(file) in printed.err
    assert printed.err.rstrip().endswith("See `vllm-spark runbook log-unreadable`")
