"""The states in a bundle of `collect`, as the programs of the Spark wrote them: the toolkit's own last word. Pure.

A bundle of a toolkit without these states has none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.node import deployment_state
from vllm_spark.node.deployment_state import State

STATE = re.compile(r"deployments/(?P<name>[^/]+)/run/state\.json")


@dataclass(frozen=True, slots=True)
class LastWord:
    """The state of one deployment on one host."""

    host: str
    deployment: str
    state: State

    def line(self) -> str:
        """Return a line for the operator."""
        return f"{self.deployment} on {self.host}: {said(self.state)}"

    def to_json(self) -> dict[str, Any]:
        """Return it with one `peer`, as programs know it since release 0.1.0."""
        state = {key: self.state[key] for key in ("state", "why", "since", "last_end", "written")}
        return {**asdict(self), "state": {**state, "peer": next(iter(self.state["peers"]), "")}}


def of_files(files: Iterable[tuple[str, str]]) -> dict[str, State]:
    """Return the states of the deployments by their names, from the paths in a bundle and their texts."""
    found = ((match["name"], deployment_state.parsed(text)) for path, text in files if (match := STATE.fullmatch(path)))
    return {name: state for name, state in found if state}


def said(state: State) -> str:
    """Return a state with its reasons and its time."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(state["since"]))
    return f"{deployment_state.described(state)} (since {moment} UTC)"
