"""Documents of verbs for programs: what they have in common. docs/reference/json.md explains each one.

The schema of the document of a verb is the file `VERB.document.json` of the package that owns its words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core.refusal import Refusal

Json = dict[str, Any]

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = ".document.json"
# Verb -> its schema.
SCHEMAS = {file.name.removesuffix(SUFFIX): file for file in sorted(PACKAGE.glob(f"*/*{SUFFIX}"))}


@cache
def schema(verb: str) -> Json:
    """Return the schema of the document of a verb."""
    document: Json = json.loads(SCHEMAS[verb].read_text(encoding="utf-8"))
    return document


def document(verb: str, body: Mapping[str, Any]) -> Json:
    """Return the document of a verb, with this toolkit and the time in UTC. A list that `body` lacks is empty."""
    from vllm_spark.core import version  # noqa: PLC0415  importlib.metadata takes a fifth of --help

    head = {
        "schema": schema(verb)["properties"]["schema"]["const"],
        "toolkit": version.version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {**head, **_empty(schema(verb)["properties"], head), **body}


def refused(verb: str, refusals: Sequence[Refusal]) -> Json:
    """Return the document of a verb that could not begin."""
    return document(verb, {"refusals": [{"host": None, **refusal.to_json()} for refusal in refusals]})


def row(verb: str, host: str, problem: str, *, answers: bool | None) -> Json:
    """Return the row of a host of which nothing is known but its problem: unknown values are None, lists are empty."""
    known = {"host": host, "answers": answers, "problem": problem}
    return {**known, **_empty(schema(verb)["$defs"]["host"]["properties"], known)}


def text(document: Mapping[str, Any]) -> str:
    """Return a document as text."""
    return json.dumps(document, indent=2)


@dataclass
class Run:
    """A playbook of a verb, whose document is made of what its tasks return and of its failures."""

    verb: str
    body: Json = field(default_factory=dict)
    problems: dict[str, Json] = field(default_factory=dict)  # the rows of hosts that have failed

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a part of the document: its lists go on those of earlier parts."""
        for name, value in part.items():
            self.body[name] = [*self.body.get(name, []), *value] if isinstance(value, list) else value

    def fail(self, host: str, message: str, refusals: Sequence[Json], *, unreachable: bool) -> None:
        """Add a failure of a host: its refusals, or the message of a failure that is none."""
        answers = False if unreachable else None
        self.problems[host] = row(self.verb, host, message.partition("\n")[0], answers=answers)
        self.add({"refusals": [{"host": host, **refusal} for refusal in refusals]})
        self.add({"failures": [] if refusals else [{"host": host, "message": message}]})

    def document(self) -> Json:
        """Return the document. A host that has failed before it had a row gets one."""
        known = {entry["host"] for entry in self.body.get("hosts", [])}
        self.add({"hosts": [entry for host, entry in self.problems.items() if host not in known]})
        return document(self.verb, self.body)


def _empty(properties: Mapping[str, Any], known: Mapping[str, Any]) -> Json:
    missing = {name: of for name, of in properties.items() if name not in known}
    return {name: [] if of.get("type") == "array" else of.get("const") for name, of in missing.items()}
