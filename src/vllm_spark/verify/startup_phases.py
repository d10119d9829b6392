"""The phase of a start, read from the engine's log, for an operator who waits.

The phases are the engine's own log lines, compared with the sources of vLLM 0.19.1, 0.20.2 and 0.33.0
(a comment names the file of each). Nothing here touches a host or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from vllm_spark.core.units import clock
from vllm_spark.doctor.log_lines import clean


class Phase(StrEnum):
    """The phases of a start in their order. The caller sets PULLING, which no log line of the engine shows."""

    PULLING = "pulling"
    STARTING = "starting"
    LOADING_WEIGHTS = "loading_weights"
    COMPILING = "compiling"
    CAPTURING_GRAPHS = "capturing_graphs"
    WARMING_UP = "warming_up"
    SERVING = "serving"

    @property
    def label(self) -> str:
        """Return the phase in words."""
        return self.value.replace("_", " ")


_ORDER = {phase: position for position, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class StartupProgress:
    """The progress of a start. `percent` is that of the phase, None if the engine shows none."""

    phase: Phase
    percent: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A log line that marks a phase.

    The percentage is the group `percent` of the pattern, else the field `percent`. `detail` is a str.format template
    over the groups; None keeps the previous detail. `restart` marks a line that only a new process prints.
    """

    phase: Phase
    pattern: re.Pattern[str]
    percent: int | None = None
    detail: str | None = None
    restart: bool = False


def _mark(
    phase: Phase,
    pattern: str,
    *,
    percent: int | None = None,
    detail: str | None = None,
    restart: bool = False,
) -> _Mark:
    # 0.33.0 puts the compiled part's name before some messages: "[backbone] Using cache directory…".
    return _Mark(phase, re.compile(rf"(?:\[[\w.:-]+\] )?(?:{pattern})"), percent, detail, restart)


_MARKS = (
    # entrypoints/utils.py log_version_and_model: a logo, or one line where logos are off or logs are JSON.
    _mark(Phase.STARTING, r"[\s▄█▀]*█[\s▄█▀]*version (?P<version>\S+)", detail="vLLM {version}", restart=True),
    _mark(
        Phase.STARTING,
        r"vLLM (?:API )?server version (?P<version>[^\s,]+)",
        detail="vLLM {version}",
        restart=True,
    ),
    # entrypoints/cli/serve.py: the worker of a pair run by the mp executor prints no logo.
    _mark(
        Phase.STARTING,
        r"Launching vLLM \(v(?P<version>[^)]+)\) headless",
        detail="vLLM {version}, worker",
        restart=True,
    ),
    _mark(Phase.STARTING, r"non-default args: |Initializing a V1 LLM engine |Local node IP: "),
    # src/vllm_spark/node/supervise
    _mark(Phase.STARTING, r"vllm-spark: waiting for (?P<peer>\S+)", detail="waiting for {peer}", restart=True),
    _mark(Phase.STARTING, r"vllm-spark: (?P<peers>.+ (?:is|are) here);", detail="{peers}", restart=True),
    # v1/executor/ray_utils.py: the head waits for the other Spark to join, up to half an hour.
    _mark(
        Phase.STARTING,
        r"Waiting for creating a placement group of specs for (?P<seconds>\d+) seconds",
        detail="waiting for the other Spark, {seconds} s so far",
    ),
    # v1/worker/gpu_model_runner.py, cpu_model_runner.py
    _mark(Phase.LOADING_WEIGHTS, r"Starting to load model ", detail=""),
    _mark(Phase.LOADING_WEIGHTS, r"Loading drafter model", detail="drafter"),
    # model_executor/model_loader/weight_utils.py: "{desc}: {percentage}% Completed | …", or a plain tqdm bar.
    _mark(
        Phase.LOADING_WEIGHTS,
        r"(?:Multi-thread loading|Loading) [^:%]{0,60}\b(?:shards|loader|Streamer)[^:%]{0,20}:"
        r"\s+(?P<percent>\d+)%",
    ),
    _mark(Phase.LOADING_WEIGHTS, r"Loading weights took ", percent=100),
    _mark(
        Phase.LOADING_WEIGHTS,
        r"Model loading took (?P<gib>[\d.]+) GiB(?: memory)? and (?P<seconds>\d+)",
        percent=100,
        detail="{gib} GiB in {seconds} s",
    ),
    # compilation/backends.py, decorators.py, monitor.py
    _mark(Phase.COMPILING, r"Directly load ", detail="from cache"),
    _mark(Phase.COMPILING, r"Compiling a graph for compile range ", detail=""),
    _mark(
        Phase.COMPILING,
        r"Starting torch\.compile|Using cache directory: \S+ for vLLM's torch\.compile"
        r"|vLLM's torch\.compile cache is disabled|Dynamo bytecode transform time"
        r"|Cache the graph of compile range|saved AOT compiled function|torch\.compile took ",
    ),
    _mark(Phase.COMPILING, r"Initial profiling/warmup run took ", detail="measuring memory"),
    # The CPU engine compiles within its warm-up and has no graphs (v1/worker/cpu_model_runner.py).
    _mark(Phase.COMPILING, r"Warming up model for the compilation", detail=""),
    _mark(Phase.WARMING_UP, r"Warming up done\."),
    # v1/worker/gpu_model_runner.py, gpu/cudagraph_utils.py
    _mark(Phase.CAPTURING_GRAPHS, r"Profiling CUDA graph memory", detail="measuring memory"),
    _mark(
        Phase.CAPTURING_GRAPHS,
        r"Capturing (?:\w+ )?CUDA graphs(?: \((?P<kind>[^)]*)\))?:\s+(?P<percent>\d+)%",
        detail="{kind}",
    ),
    _mark(Phase.CAPTURING_GRAPHS, r"Graph capturing finished", percent=100, detail=""),
    # v1/engine/core.py, then the API server
    _mark(Phase.WARMING_UP, r"init engine \(|Starting vLLM (?:API )?server on "),
    _mark(Phase.SERVING, r"Application startup complete\."),
)


def advance(progress: StartupProgress, lines: Iterable[str]) -> StartupProgress:
    """Return the progress after new log lines, oldest first, in the form of `journalctl -o cat`.

    A phase never goes back (the ranks of a pair do not finish together) unless the engine restarted. Lines that mark no
    phase change nothing.
    """
    for line in lines:
        for drawn in line.split("\r"):
            progress = _step(progress, clean(drawn))
    return progress


def headline(progress: StartupProgress, elapsed_s: float, deadline_s: float) -> str:
    """Return one line for a terminal: phase, percentage, detail, and elapsed and allowed time as clock times."""
    percent = "" if progress.percent is None else f" {progress.percent} %"
    detail = f" ({progress.detail})" if progress.detail else ""
    return f"{progress.phase.label}{percent}{detail}  {clock(elapsed_s)} of {clock(deadline_s)}"


def _step(progress: StartupProgress, message: str) -> StartupProgress:
    for mark in _MARKS:
        if match := mark.pattern.match(message):
            return _apply(progress, mark, match)
    return progress


def _apply(progress: StartupProgress, mark: _Mark, match: re.Match[str]) -> StartupProgress:
    if _ORDER[mark.phase] < _ORDER[progress.phase] and not mark.restart:
        return progress
    fresh = mark.restart or mark.phase != progress.phase
    groups = match.groupdict(default="")
    percent = int(groups["percent"]) if groups.get("percent") else mark.percent
    detail = "" if fresh else progress.detail
    if mark.detail is not None:
        detail = mark.detail.format(**groups)
    elif percent is None and not fresh:
        percent = progress.percent
    return StartupProgress(mark.phase, percent, detail)
