"""Gate: structured output is enforced. No model answers these prompts in the required form by itself.

vLLM 0.20.2 with the reasoning parser gemma4 drops every grammar without a message, unless the chat template closes the
thought channel: 200, and free text (vLLM #52430 is about the same default).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate, cases_schema
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "structured"
MAX_TOKENS = 64

# Neither free text nor an open number: a small model may spend its budget on either, and the JSON is truncated.
FIELDS: dict[str, tuple[object, ...]] = {
    "kind": ("tower", "harbour", "island"),
    "floors": (3, 4, 5),
    "open": (True, False),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": list(FIELDS["kind"])},
        "floors": {"type": "integer", "enum": list(FIELDS["floors"])},
        "open": {"type": "boolean"},
    },
    "required": list(FIELDS),
    "additionalProperties": False,
}
FREE_PROMPT = "Tell me in one sentence what a lighthouse is for."
CHOICES = ("violet-7", "amber-9")
CHOICE_PROMPT = "What is the capital of France?"

CASES = ("schema", "choice")

_failure = partial(failure, NAME, runbook="structured-output")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one request per case, whole and streamed."""
    constraints: dict[str, dict[str, Any]] = {
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "light", "schema": SCHEMA}}},
        "choice": {"structured_outputs": {"choice": list(CHOICES)}},
    }
    prompts = {"schema": FREE_PROMPT, "choice": CHOICE_PROMPT}
    for case in request.gates[NAME].get("cases", CASES):
        messages = requests.user(prompts[case])
        yield from requests.both_forms(
            requests.chat(f"structured-{case}", request.served_name, messages, MAX_TOKENS, **constraints[case])
        )


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict per case and form."""
    for case in request.gates[NAME].get("cases", CASES):
        for id_ in requests.both_ids(case):
            message = responses.read(probe["responses"].get(f"{NAME}-{id_}", {}))
            fault = message.fault or (_schema_fault(message) if case == "schema" else _choice_fault(message))
            if not fault:
                yield Verdict(NAME, id_, True, quoted(message.content))
                continue
            expected = f"one of {', '.join(CHOICES)}" if case == "choice" else f"JSON with {', '.join(FIELDS)} alone"
            yield _failure(
                id_, fault, expected,
                "the grammar was dropped: see that the chat template closes the thought channel when thinking is off.",
            )  # fmt: skip


def _schema_fault(message: responses.Message) -> str:
    """Return why the text does not follow SCHEMA; empty if it does."""
    try:
        document = json.loads(message.content)
    except (ValueError, RecursionError):
        return f"no JSON but {quoted(message.content)}"
    if not isinstance(document, dict) or set(document) != set(FIELDS):
        return f"JSON of another form: {quoted(message.content)}"
    for name, allowed in FIELDS.items():
        # True equals 1 in Python, and 3.0 equals 3.
        if (type(document[name]), document[name]) not in [(type(value), value) for value in allowed]:
            return f"{name} is {quoted(document[name])}"
    return ""


def _choice_fault(message: responses.Message) -> str:
    return "" if message.content in CHOICES else f"the text is {quoted(message.content)}"


GATE = Gate(
    name=NAME,
    proves="a JSON schema and a choice are enforced; whole and streamed",
    order=80,
    needs_reason_to_omit=True,
    schema=cases_schema(
        "A JSON schema and a choice are enforced, whole and streamed. {} switches it on.",
        CASES,
        "Default: both.",
    ),
    requests=build_requests,
    judge=judge,
)
