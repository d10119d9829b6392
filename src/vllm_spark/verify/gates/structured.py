"""Structured output is enforced: asked in a way that no model answers in that form of itself.

0.20.2 with the reasoning parser gemma4 drops every grammar without a word, unless the chat template closes the thought
channel: 200, and free text (vLLM #52430 is about the same default).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vllm_spark.core import text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import STRUCTURED, Verdict, miss

NAME = STRUCTURED
MAX_TOKENS = 64

# No free text and no open number: a small model may fill its budget with either, and the JSON is cut.
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

_miss = partial(miss, NAME, runbook="structured-output")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    forms: dict[str, dict[str, Any]] = {
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "light", "schema": SCHEMA}}},
        "choice": {"structured_outputs": {"choice": list(CHOICES)}},
    }
    prompts = {"schema": FREE_PROMPT, "choice": CHOICE_PROMPT}
    for case in options.get("cases", CASES):
        asked = gates_requests.chat(
            f"structured-{case}", name, gates_requests.user(prompts[case]), MAX_TOKENS, **forms[case]
        )
        yield from gates_requests.both_ways(asked)


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    for case in wanted["gates"][NAME].get("cases", CASES):
        for way in gates_requests.names(case):
            message = responses.read(probe["responses"].get(f"{NAME}-{way}", {}))
            wrong = message.fault or (_not_the_schema(message) if case == "schema" else _no_choice(message))
            if not wrong:
                yield Verdict(NAME, way, True, text.shown(message.content))
                continue
            expected = f"one of {', '.join(CHOICES)}" if case == "choice" else f"JSON with {', '.join(FIELDS)} alone"
            yield _miss(
                way, wrong, expected,
                "the grammar was dropped: see that the chat template closes the thought channel when thinking is off.",
            )  # fmt: skip


def _not_the_schema(message: responses.Message) -> str:
    """Why the text does not follow SCHEMA, or nothing."""
    try:
        found = json.loads(message.content)
    except (ValueError, RecursionError):
        return f"no JSON but {text.shown(message.content)}"
    if not isinstance(found, dict) or set(found) != set(FIELDS):
        return f"JSON of another form: {text.shown(message.content)}"
    for name, allowed in FIELDS.items():
        # True equals 1 in Python, and 3.0 equals 3.
        if (type(found[name]), found[name]) not in [(type(value), value) for value in allowed]:
            return f"{name} is {text.shown(found[name])}"
    return ""


def _no_choice(message: responses.Message) -> str:
    return "" if message.content in CHOICES else f"the text is {text.shown(message.content)}"
