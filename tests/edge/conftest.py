"""A running edge in front of two deployments, of which the first is up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import edge_cases
from fakes.running_edge import TOKENS, Engines, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream

Start = Callable[..., RunningEdge]

# Ten events, 50 ms apart.
EVENTS = [Event(0.05 * number, content=f"word {number} ") for number in range(1, 11)]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([Stream(EVENTS)])


@pytest.fixture
def start(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Start]:
    """A function that starts an edge with settings of vllm_edge beside `open: false`."""
    running: list[RunningEdge] = []
    engines = Engines(tmp_path / "run")

    def _start(tokens: Path = TOKENS, **settings: Any) -> RunningEdge:
        planned = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False, **settings})
        edge = RunningEdge(planned, tmp_path, tokens=tokens)
        engines.start("demo", engine)
        edge.start()
        running.append(edge)
        edge.wait_for("demo", "UP")
        edge.wait_for("other", "DOWN")
        return edge

    yield _start
    for edge in running:
        edge.close()
    engines.close()
