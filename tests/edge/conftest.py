"""A running edge in front of two deployments, of which the first is up, or of a model of each role."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes import edge_cases
from fakes.faulty_server import POOLED, VECTOR
from fakes.running_edge import TOKENS, Engines, RunningEdge, in_front
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from vllm_spark.recipe.engine_paths import BY_ROLE

Start = Callable[..., RunningEdge]

# Ten events, 50 ms apart.
EVENTS = [Event(0.05 * number, content=f"word {number} ") for number in range(1, 11)]

# Deployment -> its model, of a chat and of the other roles.
MODELS = {"demo": "model", "vectors": "qwen3-embedding-0.6b", "sorter": "qwen3-reranker-0.6b"}
ANSWER = Stream(body=json.dumps({"model": "model", "choices": [], "usage": {"prompt_tokens": 3}}))


@dataclass(slots=True)
class PoolingEngine(ScriptedEngine):
    """A server of one of these roles. It keeps each request with its path."""

    def _document(self, path: str, body: dict[str, Any]) -> bytes | None:
        answers = {**POOLED, **dict.fromkeys(BY_ROLE["rerank"], POOLED["/v1/rerank"])}
        if path not in answers:
            return ScriptedEngine._document(self, path, body)
        self.requests.append({"path": path, **body})
        answer: dict[str, Any] = answers[path](body)
        if body.get("encoding_format") == "base64":  # what openai-python asks for by itself
            for entry in answer["data"]:
                entry["embedding"] = base64.b64encode(struct.pack(f"<{VECTOR}f", *entry["embedding"])).decode()
        return json.dumps({"model": body["model"], **answer, "usage": {"prompt_tokens": 9, "total_tokens": 9}}).encode()


@dataclass
class Three:
    """The edge, and its engines by deployment."""

    edge: RunningEdge
    engines: Engines
    of: dict[str, ScriptedEngine]

    def ask(self, path: str, model: str | None, **more: Any) -> Any:
        return self.edge.ask("POST", path, {**({"model": model} if model else {}), **more})


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([Stream(EVENTS)])


@pytest.fixture
def start(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Start]:
    """A function that starts an edge with settings of vllm_edge beside `open: false`."""
    with ExitStack() as running:

        def _start(tokens: Path = TOKENS, **settings: Any) -> RunningEdge:
            planned = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False, **settings})
            edge, _ = running.enter_context(in_front(planned, tmp_path, {"demo": engine}, tokens=tokens))
            edge.wait_for("other", "DOWN")
            return edge

        yield _start


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Callable[..., Three]]:
    """A function that starts an edge with a model of each role, all of them up."""
    with ExitStack() as running:

        def _start(**settings: Any) -> Three:
            deployments = [edge_cases.DEMO, edge_cases.VECTORS, edge_cases.SORTER]
            planned = edge_cases.edge_of(deployments, {"open": False, **settings})
            of = {"demo": ScriptedEngine([ANSWER]), "vectors": PoolingEngine([]), "sorter": PoolingEngine([])}
            return Three(*running.enter_context(in_front(planned, tmp_path, of)), of)

        yield _start
