"""Progress of a start, over real logs and over lines that these logs do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_spark.verify.startup_phases import Phase, StartupProgress, advance, headline

LOGS = Path(__file__).parents[2] / "data" / "engine-logs"
BEGIN = StartupProgress(Phase.PULLING)


def read(name: str) -> list[str]:
    return (LOGS / name).read_bytes().decode().split("\n")


def walk(lines: list[str]) -> list[StartupProgress]:
    """Return every change of the progress, one line at a time."""
    steps = [BEGIN]
    for line in lines:
        step = advance(steps[-1], [line])
        if step != steps[-1]:
            steps.append(step)
    return steps[1:]


def phases(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(step.phase.value for step in walk(lines)))


ENGINE = ["starting", "loading_weights", "compiling", "capturing_graphs", "warming_up"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("26b-a4b-nvfp4-marlin.serve.log", [*ENGINE, "serving"]),
        ("31b-fp8-tp2-ray.two-nodes.log", ENGINE),
        ("26b-a4b-bf16.log", ENGINE),
        ("31b-nvfp4-marlin.log", ENGINE),
        ("31b-nvfp4.not-enough-free-memory.serve.log", ["starting"]),
        ("ray-worker.log", ["starting"]),
        ("made/cpu.serve.log", ["starting", "loading_weights", "compiling", "warming_up", "serving"]),
        ("made/0.33-cached.serve.log", [*ENGINE, "serving"]),
    ],
)
def test_phases_in_order(log: str, expected: list[str]) -> None:
    assert phases(read(log)) == expected


@pytest.mark.parametrize("log", sorted(LOGS.rglob("*.log")), ids=lambda path: path.name)
def test_phases_never_go_back(log: Path) -> None:
    order = list(Phase)
    positions = [order.index(step.phase) for step in walk(read(str(log.relative_to(LOGS))))]
    assert positions == sorted(positions)


def test_all_lines_at_once_as_one_by_one() -> None:
    lines = read("26b-a4b-nvfp4-marlin.serve.log")
    assert advance(BEGIN, lines) == walk(lines)[-1] == StartupProgress(Phase.SERVING)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.2s/it]",
            StartupProgress(Phase.LOADING_WEIGHTS, 50),
        ),
        (
            "\x1b[0;36m(EngineCore pid=1)\x1b[0;0m Loading pt checkpoint shards:   7% Completed | 1/14",
            StartupProgress(Phase.LOADING_WEIGHTS, 7),
        ),
        (
            "Loading safetensors using Runai Model Streamer:  33% Completed | 4/12",
            StartupProgress(Phase.LOADING_WEIGHTS, 33),
        ),
        (
            "Loading safetensors using Fastsafetensor loader:  20% Completed | 1/5",
            StartupProgress(Phase.LOADING_WEIGHTS, 20),
        ),
        (
            "INFO 05-08 10:00:00 [model_runner.py:291] Model loading took 15.76 GiB and 84.123456 seconds",
            StartupProgress(Phase.LOADING_WEIGHTS, 100, "15.76 GiB in 84 s"),
        ),
        (
            "(EngineCore pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.2) INFO 05-08 10:00:00 [backends.py:1] "
            "Dynamo bytecode transform time: 10.68 s [repeated 2x across cluster]",
            StartupProgress(Phase.COMPILING),
        ),
        (
            "INFO 05-08 10:00:00 [backends.py:1] Directly load the compiled graph(s) for compile range "
            "(1, 8192) from the cache, took 0.310 s",
            StartupProgress(Phase.COMPILING, None, "from cache"),
        ),
        (
            "\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  20%|##   | 1/5 [00:00<00:01]"
            "\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|#### | 2/5 [00:01<00:01]\r",
            StartupProgress(Phase.CAPTURING_GRAPHS, 40, "mixed prefill-decode, PIECEWISE"),
        ),
        ("Capturing CUDA graphs:  10%|#  | 1/10", StartupProgress(Phase.CAPTURING_GRAPHS, 10)),
        (
            "(EngineCore pid=9) INFO 05-08 10:00:00 [ray_utils.py:1] Waiting for creating a placement group "
            "of specs for 30 seconds. specs=[{'GPU': 1.0}]",
            StartupProgress(Phase.STARTING, None, "waiting for the other Spark, 30 s so far"),
        ),
        (
            "(APIServer pid=1) INFO 05-08 10:00:00 [serve.py:187] Launching vLLM (v0.20.2) headless "
            "multiproc executor, with head node address 10.0.0.1:29501 for torch.distributed process group.",
            StartupProgress(Phase.STARTING, None, "vLLM 0.20.2, worker"),
        ),
        ("latest: Pulling from vllm/vllm-openai", BEGIN),
        # A prompt in the log of requests is not a line of the engine.
        ("INFO 05-08 10:00:00 [logger.py:1] Received: prompt: 'Application startup complete.'", BEGIN),
    ],
)
def test_one_line(line: str, expected: StartupProgress) -> None:
    assert advance(BEGIN, [line]) == expected


def test_only_a_new_process_leaves_the_phase_serving() -> None:
    serving = StartupProgress(Phase.SERVING)
    late = "INFO 05-08 10:00:00 [gpu_model_runner.py:1] Graph capturing finished in 15 secs, took 0.09 GiB"
    banner = read("26b-a4b-nvfp4-marlin.serve.log")[2]
    assert advance(serving, [late]) == serving
    assert advance(serving, [late, banner]) == StartupProgress(Phase.STARTING, None, "vLLM 0.20.2")


def test_the_detail_names_the_drafter_while_it_loads() -> None:
    lines = read("made/0.33-cached.serve.log")
    assert StartupProgress(Phase.LOADING_WEIGHTS, 62) in walk(lines)
    assert StartupProgress(Phase.LOADING_WEIGHTS, 100, "drafter") in walk(lines)
    assert StartupProgress(Phase.COMPILING, None, "from cache") in walk(lines)


@pytest.mark.parametrize(
    ("progress", "elapsed_s", "deadline_s", "expected"),
    [
        (StartupProgress(Phase.LOADING_WEIGHTS, 62), 41, 1200, "loading weights 62 %  00:41 of 20:00"),
        (StartupProgress(Phase.COMPILING, None, "from cache"), 61.9, 1200, "compiling (from cache)  01:01 of 20:00"),
        (StartupProgress(Phase.PULLING), 3725, 7200, "pulling  1:02:05 of 2:00:00"),
        (StartupProgress(Phase.CAPTURING_GRAPHS), 3599.9, 3600, "capturing graphs  59:59 of 1:00:00"),
        (StartupProgress(Phase.LOADING_WEIGHTS, 0), -1, 60, "loading weights 0 %  00:00 of 01:00"),
    ],
)
def test_headline(progress: StartupProgress, elapsed_s: float, deadline_s: float, expected: str) -> None:
    assert headline(progress, elapsed_s, deadline_s) == expected


def test_labels() -> None:
    assert [phase.label for phase in Phase] == [
        "pulling",
        "starting",
        "loading weights",
        "compiling",
        "capturing graphs",
        "warming up",
        "serving",
    ]
