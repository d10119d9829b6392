"""The doctor: signatures, tracebacks, and healthy logs, which have no cause of a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_spark.doctor.diagnosis import judge, root_cause
from vllm_spark.doctor.findings import GENERIC_RUNBOOK, UNRECOGNISED, Finding, explain
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.log_lines import LogEntry, clean, parse
from vllm_spark.doctor.signatures import SEVERITIES, SHORTEST, Signature, alternatives, literal, signatures

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "data" / "engine-logs"
RUNBOOKS = ROOT / "docs" / "runbooks"
SECTIONS = ["Symptom", "Check", "Cause", "Fix", "How to see it is fixed", "When to escalate"]


def read(name: str) -> list[str]:
    return (LOGS / name).read_bytes().decode().split("\n")


def each_signature() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("signature", signatures(), ids=lambda signature: signature.id)


@pytest.mark.parametrize(
    "log",
    [
        "26b-a4b-bf16.log",
        "26b-a4b-fp8.log",
        "26b-a4b-nvfp4-marlin.log",
        "26b-a4b-nvfp4-marlin.serve.log",
        "31b-bf16.log",
        "31b-fp8.log",
        "31b-fp8-tp2-ray.two-nodes.log",
        "31b-nvfp4-marlin.log",
        "ray-worker.log",
        "made/cpu.serve.log",
        "made/0.33-cached.serve.log",
        "made/dealt-with.log",
        "sandbox-0.32-stopped.log",
    ],
)
def test_healthy_log_has_no_cause(log: str) -> None:
    assert root_cause(read(log)) is None


def test_a_server_that_was_stopped_is_clean_and_one_that_died_is_not() -> None:
    stopped = read("sandbox-0.32-stopped.log")
    died = [line for line in stopped if "received signal" not in line]
    assert unrecognised(stopped) == []
    assert len(unrecognised(died)) == 1


def unrecognised(lines: list[str]) -> list[Finding]:
    log = Log()
    log.read("\n".join(lines))
    return log.unrecognised()


@pytest.mark.parametrize(
    ("uds", "error", "cause"),
    [
        ("'uds': '/api/api.sock', ", "[Errno 30] Read-only file system: '/root/.x'", "the root of a closed engine"),
        ("", "[Errno 30] Read-only file system: '/root/.x'", "a file system of this Spark refuses"),
        ("'uds': '/api/api.sock', ", "[Errno 5] Input/output error", "a file system of this Spark refuses"),
    ],
)
def test_a_closed_engine_that_writes_outside_of_its_folders(uds: str, error: str, cause: str) -> None:
    finding = root_cause(
        [f"non-default args: {{{uds}'model': 'm'}}", "EngineCore failed to start.", f"OSError: {error}"]
    )
    assert finding is not None
    assert finding.cause.startswith(cause)


def test_free_memory_with_the_numbers() -> None:
    finding = root_cause(read("31b-nvfp4.not-enough-free-memory.serve.log"))
    assert finding is not None
    assert finding.signature == "not-enough-free-memory"
    assert finding.cause == ("only 16.72 of 139.8 GiB were free at the start, but utilization 0.5 requests 69.9 GiB")
    assert "overrides.memory.utilization below 16.72/139.8" in finding.fix
    assert finding.line.startswith("ValueError: Free memory on device cuda:0")


def test_the_engine_text_alone_gives_the_same_root_cause() -> None:
    """Without a signature the traceback must lead to the same line, not to the wrapper below it: a refused setting."""
    lines = [line.replace("less than desired", "below") for line in read("31b-nvfp4.not-enough-free-memory.serve.log")]
    finding = root_cause(lines)
    assert finding is not None
    assert finding.signature == "setting-refused"
    assert finding.line.startswith("ValueError: Free memory on device cuda:0 (16.72/139.8 GiB)")


@each_signature()
def test_an_example_matches_its_own_signature_first(signature: Signature) -> None:
    lines = [f"(EngineCore pid=9) {line}" for line in signature.example.splitlines()]
    log = Log("engine.log")
    times = 1 if signature.amount else signature.at_least
    log.read("\n".join(lines * times) + "\n")
    finding = judge([log]).findings[0]
    assert (finding.signature, finding.severity) == (signature.id, signature.severity)
    assert finding.file == "engine.log"
    assert signature.amount or finding.count == signature.at_least
    assert finding.line in [line.strip() for line in signature.example.splitlines()]
    assert finding.line == clean(lines[finding.number - 1]).strip()
    assert not re.search(r"[{}]|  ", finding.cause + finding.fix)


@each_signature()
def test_a_warning_is_not_the_cause_of_a_failed_start(signature: Signature) -> None:
    finding = root_cause(
        [f"(EngineCore pid=9) INFO 11-20 10:00:00 [a.py:1] {line}" for line in signature.example.split("\n")]
    )
    assert (finding.signature if finding else None) == (None if signature.severity == "warning" else signature.id)


@each_signature()
def test_signature_is_complete(signature: Signature) -> None:
    assert signature.source
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", signature.id)
    assert signature.fix.endswith(".")
    assert not signature.fix.startswith("Fix:")
    assert not signature.cause.endswith(".")
    assert signature.severity in SEVERITIES


@each_signature()
def test_every_alternative_of_a_pattern_begins_with_fixed_text(signature: Signature) -> None:
    assert min(len(text) for text in signature.literals) >= SHORTEST
    match = signature.pattern.search(signature.example)
    assert match is not None
    assert match[0].startswith(signature.literals)


def test_signature_ids_are_unique() -> None:
    assert len({signature.id for signature in signatures()}) == len(signatures())


@pytest.mark.parametrize("name", sorted({GENERIC_RUNBOOK} | {signature.runbook for signature in signatures()}))
def test_runbook_exists_with_its_sections(name: str) -> None:
    headings = re.findall(r"^## (.+)$", (RUNBOOKS / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == SECTIONS


@pytest.mark.parametrize(
    ("lines", "signature", "cause"),
    [
        # A consequence is logged before its cause and comes after it in the file of signatures.
        (
            [
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                "{'EngineCore_DP0': -9}",
                "Out of memory: Killed process 42 (VLLM::EngineCor) total-vm:1kB",
            ],
            "out-of-memory-killed",
            "the kernel killed VLLM::EngineCor (process 42) because memory ran out",
        ),
        (
            ["RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}"],
            "killed",
            "the engine was killed: by the kernel because memory ran out, or manually",
        ),
        (
            ["/etc/vllm-spark/gemma/launch: line 12:  3329 Killed                  docker run --rm x"],
            "killed",
            "the engine was killed: by the kernel because memory ran out, or manually",
        ),
        # Ray lists possible causes; observed with vLLM 0.32.0 and Ray 2.56 when a rank was killed.
        (
            [
                "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker "
                "exit detail: Worker unexpectedly exits with a connection error code 2. Some common causes include: "
                "(1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force",
                "ERROR 11-21 19:34:02 [ray_executor_v2.py:522] RayWorkerProc rank=[1] died unexpectedly, shutting down",
            ],
            "worker-lost",
            "a rank was lost [1]",
        ),
        (
            [
                "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8001): "
                "address already in use"
            ],
            "port-in-use",
            "another process on this Spark uses the deployment's port 8001",
        ),
        (
            [
                "ValueError: To serve at least one request with the model's max seq len (262144), (24.5 GiB "
                "KV cache is needed, which is larger than the available KV cache memory (11.2 GiB). "
            ],
            "kv-cache-too-small",
            "one request of max-model-len 262144 needs 24.5 GiB of KV cache, but 11.2 GiB are left",
        ),
        (
            ["docker: Error response from daemon: manifest for a/b:c not found: manifest unknown: x"],
            "image-missing",
            "the image a/b:c is not on this Spark, and the registry does not have it",
        ),
        (
            ["ERROR: KeyError: 'layers.0.moe.experts.0.down_proj.input_global_scale'"],
            "expert-names",
            "this version of vLLM does not know the checkpoint's tensor "
            "layers.0.moe.experts.0.down_proj.input_global_scale: it maps the names of quantised experts "
            "differently",
        ),
        # Two ranks fail at once: a signature over several lines matches in spite of the interleaving.
        (
            [
                '(Worker_TP0 pid=1)   File "base_config.py", line 55, in tie_weights',
                '(Worker_TP1 pid=2)   File "base_config.py", line 55, in tie_weights',
                "(Worker_TP0 pid=1)     raise NotImplementedError",
                "(Worker_TP1 pid=2)     raise NotImplementedError",
            ],
            "tie-weights",
            "this version of vLLM cannot tie the embedding of a quantised Gemma 4 to its output layer",
        ),
    ],
)
def test_known_cause(lines: list[str], signature: str, cause: str) -> None:
    finding = root_cause(lines)
    assert finding is not None
    assert (finding.signature, finding.cause) == (signature, cause)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("made/chained.log", "quant.ScaleError: scale of layer 7 is not finite"),
        ("made/ray-wrapped.log", "ValueError: head count 3 is not divisible by 2"),
    ],
)
def test_innermost_exception(log: str, line: str) -> None:
    finding = root_cause(read(log))
    assert finding is not None
    assert (finding.signature, finding.runbook, finding.line) == (UNRECOGNISED, GENERIC_RUNBOOK, line)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["usage: vllm serve [options]", "vllm serve: error: the port must be a number"], None),
        (
            ["ERROR 05-08 10:00:00 [a.py:1] first", "ERROR 05-08 10:00:00 [a.py:1] last thing said"],
            "last thing said",
        ),
        (
            [
                "(EngineCore pid=1) ERROR 05-08 10:00:00 [core.py:1] EngineCore failed to start.",
                "CRITICAL:  disk",
            ],
            "disk",
        ),
    ],
)
def test_without_an_exception(lines: list[str], line: str | None) -> None:
    finding = root_cause(lines)
    assert finding is not None
    assert finding.signature == UNRECOGNISED
    assert finding.line == (line or next(text for text in lines if "rror" in text))


def test_a_process_that_dies_silently_is_reported_by_its_wrapper() -> None:
    """A crash in native code has no traceback of its own, so the wrapper is reported."""
    wrapper = "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -11}"
    finding = root_cause(["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', wrapper])
    assert finding is not None
    assert (finding.signature, finding.line) == (UNRECOGNISED, wrapper)


@pytest.mark.parametrize("lines", [[], [""], ["INFO 05-08 10:00:00 [a.py:1] error: none"], ["Pulling layer"]])
def test_logs_without_a_failure(lines: list[str]) -> None:
    assert root_cause(lines) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(EngineCore pid=1) INFO 05-08 10:00:00 [a.py:1] hello", LogEntry("EngineCore pid=1", "INFO", "hello")),
        (
            "(EngineCore pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.2) WARNING 05-08 10:00:00 [a.py:1]   deep "
            "[repeated 2x across cluster] (Ray deduplicates logs by default.)",
            LogEntry("RayWorkerWrapper pid=2", "WARNING", "  deep"),
        ),
        (
            "\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m \x1b[31mERROR\x1b[0m 05-08 10:00:00 \x1b[90m[a.py:1]\x1b[0m x",
            None,
        ),
        ("(APIServer pid=3) INFO:     Application startup complete.\r\n", None),
        ("2026-11-20 16:58:13,815\tINFO scripts.py:1128 -- Local node IP: 10.77.0.2", None),
        ("[2026-11-20 16:58:13,827 W 6 6] network_util.cc:296: Failed", LogEntry("", "WARNING", "Failed")),
        (
            "(EngineCore pid=3) 2026-11-20 16:00:55,053 - INFO - autotuner.py:457 - flashinfer.jit: tuning",
            LogEntry("EngineCore pid=3", "INFO", "flashinfer.jit: tuning"),
        ),
        (
            "[rank0]: Traceback (most recent call last):",
            LogEntry("rank0", "", "Traceback (most recent call last):"),
        ),
        ("(raylet) [2026-11-20 16:58:13,827 E 6 6] (raylet) node.cc:2: low", None),
        ("a 10%\ra 20%\r", LogEntry("", "", "a 20%")),
        ("(a remark) stays", LogEntry("", "", "(a remark) stays")),
    ],
)
def test_parse(line: str, expected: LogEntry | None) -> None:
    known = {
        "x": LogEntry("Worker_TP0 pid=3", "ERROR", "x"),
        "Application startup complete.": LogEntry("APIServer pid=3", "INFO", "Application startup complete."),
        "Local node IP: 10.77.0.2": LogEntry("", "INFO", "Local node IP: 10.77.0.2"),
    }
    entry = parse(line)
    assert clean(line) == entry.text
    if expected is not None:
        assert entry == expected
    elif entry.text in known:
        assert entry == known[entry.text]
    else:
        assert entry.process == "raylet"


def test_explain() -> None:
    finding = Finding("some-id", "the port 8000 is taken", "OSError: in use", "stop the other.", "engine-port.md")
    assert explain(finding) == (
        "the port 8000 is taken — seen: OSError: in use Fix: stop the other. See docs/runbooks/engine-port.md"
    )


def test_explain_shortens_a_long_line() -> None:
    assert len(explain(Finding("some-id", "cause", "x" * 4000, "fix.", "engine-port.md"))) < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "megabytes"),
    [
        pytest.param("(EngineCore pid=9) INFO 11-20 10:00:00 [loggers.py:257] Running: 1 reqs", 20, id="steady"),
        pytest.param("x" * 4000, 4, id="one word"),
        pytest.param("Killed " * 500, 4, id="near miss"),
        pytest.param("(pid=" * 200, 4, id="open prefix"),
        pytest.param("KeyError: '" + "experts." * 400, 4, id="open key"),
    ],
)
def test_a_large_log_without_a_cause(line: str, megabytes: int) -> None:
    """Each case takes seconds; a pattern with catastrophic backtracking would not end."""
    finding = root_cause([line] * (megabytes * 1_000_000 // len(line)))
    assert finding is None or finding.signature == UNRECOGNISED


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"No such image: (?P<name>\S+)|manifest (a|b)", ["No such image: ", "manifest "]),
        (r"\[Errno 98\] (?:in use|taken)", ["[Errno 98] "]),
        (r"model type [`'|]?(?P<type>\w+)", ["model type "]),
        (r"colou?r", ["colo"]),
        (r"output: '!{5,}", ["output: '"]),
        (r"(?<!Error: )Unknown variable", ["Unknown variable"]),
        (r'the name "/?x', ["the name "]),
        (r"\S+ says", [""]),
        (r"ptxas fatal\b.*", ["ptxas fatal"]),
    ],
)
def test_fixed_text_of_a_pattern(pattern: str, texts: list[str]) -> None:
    assert [literal(part) for part in alternatives(pattern)] == texts


@pytest.mark.parametrize(
    ("lines", "signature"),
    [
        # The echo of a failure elsewhere yields only to an exception that names what failed.
        (["RayWorkerProc rank=1 died unexpectedly"], "worker-lost"),
        (
            [
                "RayWorkerProc rank=1 died unexpectedly",
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in a',
                "ValueError: odd",
            ],
            UNRECOGNISED,
        ),
        (
            [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in a',
                "ray.exceptions.RayChannelTimeoutError: timed out",
                "RuntimeError: Failed to start GCS",
            ],
            "ray-head-port",
        ),
    ],
)
def test_a_symptom_yields_to_an_exception(lines: list[str], signature: str) -> None:
    finding = root_cause(lines)
    assert finding is not None
    assert finding.signature == signature
