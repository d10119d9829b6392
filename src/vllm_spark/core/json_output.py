"""Documents of verbs for programs: what they have in common. docs/reference/json.md explains each field."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from vllm_spark.core.refusal import Refusal

Json = dict[str, Any]


class Shape(NamedTuple):
    """What a document, and the row of a host in it, has where nothing is known: lists are empty, values None."""

    body: Json
    host: Json


# Verb -> the shape of its document.
DOCUMENTS: Mapping[str, Shape] = MappingProxyType(
    {
        "doctor": Shape(
            {"states": [], "unknown": None, "findings": [], "unrecognised": [], "logs": [], "refusals": []}, {}
        ),
        "plan": Shape(
            {"deployments": [], "cabling": None, "hosts": [], "refusals": [], "failures": []},
            {"deployment": None, "rank": None, "change": None, "lines": []},
        ),
        "status": Shape(
            {"version": 1, "at": None, "hosts": [], "refusals": [], "failures": []},
            dict.fromkeys(("memory", "lock", "certificate", "haproxy", "edge")) | {"deployments": []},
        ),
    }
)


def document(verb: str, body: Mapping[str, Any]) -> Json:
    """Return the document of a verb, with this toolkit and the time in UTC. A list that `body` lacks is empty."""
    from vllm_spark.core import version  # noqa: PLC0415  importlib.metadata takes a fifth of --help

    head = {
        "schema": f"vllm-spark/{verb}/1",
        "toolkit": version.version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {**head, **deepcopy(DOCUMENTS[verb].body), **body}


def refused(verb: str, refusals: Sequence[Refusal]) -> Json:
    """Return the document of a verb that could not begin."""
    return document(verb, {"refusals": [{"host": None, **refusal.to_json()} for refusal in refusals]})


def row(verb: str, host: str, problem: str, *, answers: bool | None) -> Json:
    """Return the row of a host of which nothing is known but its problem: unknown values are None, lists are empty."""
    return {"host": host, "answers": answers, "problem": problem, **deepcopy(DOCUMENTS[verb].host)}


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
