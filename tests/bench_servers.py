"""Judge what the bench says of a scripted server by what the server did: each figure within 1 %, or a named fault."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fakes.scripted_servers import MODEL, TEMPLATE, Script
from vllm_spark.node.bench.cell_run import CellRun, Surroundings
from vllm_spark.node.bench.job import prompts
from vllm_spark.node.bench.records import Cell
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.server import Server, ServerError
from vllm_spark.node.bench.stream import Endpoint

TOLERANCE = 0.01
# Beside the share: what a loopback device and two busy cores take from a moment.
TOLERANCE_MS = 8.0
MOMENTS = ("first_token", "longest_gap")
# A prompt that its server cannot count before is longer or shorter than its cell's by this share at most.
PROMPT_TOLERANCE = 0.05
RUNS = 2
# Warnings that a sound server may have here: it is no vLLM, or the client shares its cores with this machine's work.
ALLOWED = frozenset({"unobserved", "slow-client"})


@dataclass(slots=True)
class Outcome:
    """What the bench said of a cell. `crash` is a traceback, or why there was no end."""

    state: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    what: str = ""
    crash: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def cell(script: Script) -> Cell:
    """Return the cell of a script."""
    sizes = {"prompt": script.prompt, "output": script.tokens, "depth": 0, "streams": script.streams}
    return {"id": script.name, "corpus": "chat", "sampling": {}, "server": {}, **sizes}  # type: ignore[typeddict-item]


def measure(script: Script, url: str) -> Outcome:
    """Return what the bench says of the server of a script."""
    try:
        server = Server.connect(Endpoint(url), script.name if script.through == "litellm" else MODEL)
        prompt, wanted = prompts(server, "x"), cell(script)
        run = CellRun(
            server,
            wanted,
            Rules(RUNS, RUNS),
            lambda *at: prompt(wanted, *at),
            Surroundings(lambda: {"spark1": [{"t": 0.0}]}),
        )
        result = run.measure()
    except ServerError as error:
        return Outcome("refused", faults=["server"], what=str(error))
    except Exception:
        return Outcome(crash=traceback.format_exc().strip().splitlines()[-1])
    return Outcome(
        result.state,
        {name: one["median"] for name, one in result.figures.items() if isinstance(one["median"], float | int)},
        [fault["id"] for fault in result.faults],
        "; ".join(fault["what"] for fault in result.faults),
    )


def error(name: str, reported: float, right: float) -> float:
    """Return the error of a figure as a share; 0 for a moment that is as near as this machine can be."""
    if name in MOMENTS and abs(reported - right) <= TOLERANCE_MS:
        return 0.0
    return reported / right - 1 if right else float("inf")


def wrong(script: Script, outcome: Outcome, truth: Mapping[str, float]) -> str:
    """Return what is wrong about an outcome, or an empty text."""
    if outcome.crash:
        return outcome.crash
    named = set(outcome.faults) & set(script.right)
    if script.right and not named:
        return f"none of {', '.join(script.right)} is named" + (f": {_named(outcome)}" if outcome.faults else "")
    # A client that is late reads together what arrived one by one, and sends its streams one after the other.
    allowed = ALLOWED | ({"joined-chunks", "short-window"} if "slow-client" in outcome.faults else set())
    if set(outcome.faults) - allowed - set(script.right):
        return f"a wrong reason, {_named(outcome)}"
    if outcome.state != "measured":
        return "" if script.right else f"{outcome.state}, no reason"
    return _off(script, outcome, truth) or ("" if named else _missing(script, outcome, truth))


def _off(script: Script, outcome: Outcome, truth: Mapping[str, float]) -> str:
    """Return the figures that are wrong, without those that a named fault excuses."""
    if "slow-client" in outcome.faults:
        return ""
    errors = {
        name: error(name, value, _of(script, name, truth))
        for name, value in outcome.figures.items()
        if name in truth and name not in script.bent
    }
    off = [f"{name} {100 * share:+.1f} %" for name, share in errors.items() if abs(share) > TOLERANCE]
    return ", ".join(off)


def _missing(script: Script, outcome: Outcome, truth: Mapping[str, float]) -> str:
    """Return what an outcome lacks although it names no fault."""
    missing = [name for name in ("decode", "first_token") if name in truth and name not in outcome.figures]
    if missing:
        return f"no {' and no '.join(missing)}, and no fault"
    prompt = truth.get("prompt", script.prompt) - TEMPLATE
    if abs(prompt / script.prompt - 1) > PROMPT_TOLERANCE + TEMPLATE / script.prompt:
        return f"the prompt has {prompt:.0f} of {script.prompt} tokens, and nothing says so"
    return ""


def _of(script: Script, name: str, truth: Mapping[str, float]) -> float:
    """Return the right value of a figure. Tokens from a cache are no prefill."""
    if name == "prefill" and script.cached:
        return truth[name] * (1 - script.cached / truth["prompt"])
    return truth[name]


def _named(outcome: Outcome) -> str:
    return f"{', '.join(dict.fromkeys(outcome.faults))} ({outcome.what[:90]})"


def groups(log: Sequence[Mapping[str, Any]], script: Script) -> list[list[dict[str, Any]]]:
    """Return the measured requests of a server's log by run: without those of the warm-up and the refused ones."""
    measured = [dict(one) for one in log if one["max_tokens"] >= script.tokens and one["tokens"]]
    runs = [measured[start : start + script.streams] for start in range(0, len(measured), script.streams)]
    return [run for run in runs if len(run) == script.streams][-RUNS:]
