"""Gate: the engine's log contains what the recipe expects, each value from its own field and never from a list of
candidates."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from vllm_spark.core.types import Document
from vllm_spark.verify.gate import ROLES, Gate, no_requests
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.log_start import log_has_start
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "log"
RUNBOOK = "log-gate"
# The size of the cache on a shared Spark. A first start has up to 0.17 % less, because it compiles (issue 52).
CACHE_ID, CACHE_RUNBOOK, CACHE_TOLERANCE = "cache-as-planned", "several-servers", 0.002
CACHE = re.compile(r"GPU KV cache size: ([\d,]+) tokens")


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict per log gate of the recipe."""
    if log_has_start(request, lines):
        for entry in request.log:
            yield judge_entry(entry, lines, request.unit, request.variables)
        if request.cache_tokens:
            yield judge_cache(request.cache_tokens, lines, request.unit)
    elif request.log or request.cache_tokens:
        observed = "the journal no longer holds the start of this engine; a restart would write it again"
        yield Verdict(NAME, "start", None, observed)


def judge_cache(planned: int, lines: Sequence[str], unit: str) -> Verdict:
    """Return the verdict on the tokens of the cache of an engine on a shared Spark, held against the plan."""
    found = [number(match[1]) for line in lines if (match := CACHE.search(line))]
    if not found:
        return Verdict(NAME, CACHE_ID, None, "the log does not say how large the cache is")
    size, observed = found[-1], f"{found[-1]:,.0f} tokens of cache"
    if abs(size - planned) <= planned * CACHE_TOLERANCE:
        return Verdict(NAME, CACHE_ID, True, observed)
    why = "a neighbour took memory during the start" if size < planned else "the server is over its budget"
    fix = f"`sudo systemctl restart {unit}` on the Spark while nothing else starts or stops there."
    return failure(
        NAME, CACHE_ID, f"{observed}: {why}", f"{planned:,} as planned, to 0.2 %", fix, runbook=CACHE_RUNBOOK
    )


def judge_entry(
    entry: Document, lines: Sequence[str], unit: str = "vllm@NAME", variables: Collection[str] | None = None
) -> Verdict:
    """Return the verdict on one entry of `gates.log`. Public because tests apply it to logs of the real engine.

    A line with a group named variable counts only if the variable is one of `variables`, those that the launch sets. An
    image may set others for itself, and the engine warns of these on every healthy start. None: every line counts.
    """
    id_, pattern = entry["id"], re.compile(entry["pattern"])
    matches = (match for line in lines if (match := pattern.search(line)))
    match = next(
        (match for match in matches if variables is None or match.groupdict().get("variable") in {None, *variables}),
        None,
    )
    fix = f"{entry['why']} Read `journalctl -u {unit}` on the Spark."
    if entry.get("expect", "present") == "absent":
        if match is None:
            return Verdict(NAME, id_, True, "not in the log")
        return failure(NAME, id_, f"the log says {match[0]!r}", "no such line", fix, runbook=RUNBOOK)
    if match is None:
        return failure(NAME, id_, f"no line matches {entry['pattern']!r}", "a matching line", fix, runbook=RUNBOOK)
    value = match["value"] if "value" in pattern.groupindex else match[0]
    if "equals" in entry and value != entry["equals"]:
        return failure(NAME, id_, f"the log says {value}", entry["equals"], fix, runbook=RUNBOOK)
    if "at_least" in entry and number(value) < entry["at_least"]:
        return failure(NAME, id_, f"the log says {value}", f"at least {entry['at_least']}", fix, runbook=RUNBOOK)
    return Verdict(NAME, id_, True, value)


def number(text: str) -> float:
    """Return a number that the engine printed, e.g. `146,240`. A text that is not a number is less than any bound."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("-inf")


GATE = Gate(
    name=NAME,
    proves="the engine chose the kernels that the recipe was tested with, by its own field and not by the candidates",
    order=30,
    optional=False,
    cheap=True,
    condition="where the recipe names lines",
    schema={
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["id", "pattern", "why"],
            "properties": {
                "id": {"$ref": "#/$defs/name"},
                "pattern": {
                    "type": "string",
                    "minLength": 4,
                    "format": "regex",
                    "description": "Python regex over the engine's log since its start. equals and at_least judge "
                    "the group named value. With a group named variable, only variables of the launch count.",
                },
                "expect": {"enum": ["present", "absent"], "default": "present"},
                "equals": {"type": "string"},
                "at_least": {"type": "number"},
                "why": {"type": "string", "minLength": 10},
            },
        },
    },
    more_fields={
        "use": {
            "type": "object",
            "minProperties": 1,
            "description": "Log gates of recipes/gates.yml. true: as defined there; text: the value that the line must "
            "name; a number: the least value.",
            "additionalProperties": {
                "type": ["string", "number", "boolean"],
                "not": {"const": False},
                "title": "true, a text or a number",
            },
        }
    },
    roles=ROLES,
    requests=no_requests,
    judge=judge,
)
