"""The bench of a server for embeddings and of a reranker, over HTTP: what is sent, the figures, and what fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.faulty_server import MockServer, Reply, serving
from vllm_spark.bench import evidence, profile_fit, profiles
from vllm_spark.node.bench import pooled
from vllm_spark.node.bench.job import prompts
from vllm_spark.node.bench.records import Cell
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.runner import Progress, Runner
from vllm_spark.node.bench.server import Server
from vllm_spark.node.bench.stream import Endpoint
from vllm_spark.node.engine_api import CHAT, EMBED, PROOFS, RERANK

ROLES = (EMBED, RERANK)
RUN: Any = {
    **{"record": "run", "schema": 1, "id": "0123456789ab", "started": "2026-11-29T10:00:00+00:00"},
    "profile": {"name": "embed"},
    "key": dict.fromkeys(
        ("model", "commit", "layout", "image", "launch", "topology", "hosts", "toolkit", "protocol"), ""
    ),
    "subject": dict.fromkeys(("deployment", "recipe", "served_name", "url", "engine_version"), ""),
    "host": {},
}


def cell(role: str, documents: int = 3, streams: int = 2) -> Cell:
    row = {"corpus": "chat", "prompt": 40, "output": 1, "role": role, "documents": documents, "streams": streams}
    (found,) = profiles.cells_of(row)
    return found


class Engine:
    """A sound server that keeps the requests of its role. `fault` replaces its answers to them."""

    def __init__(self, role: str, fault: Callable[[Reply], Reply] | None = None) -> None:
        self.mock, self.path, self.fault = MockServer("m", "/m", "0.33.0", 4096), PROOFS[role].path, fault
        self.bodies: list[Mapping[str, Any]] = []

    def answer(self, path: str, body: Mapping[str, Any]) -> Reply:
        if path == "/tokenize":
            return Reply(200, [json.dumps({"count": len(body["prompt"].split())}).encode()])
        reply = self.mock.answer(path, body)
        if path == self.path:
            self.bodies.append(body)
            return self.fault(reply) if self.fault else reply
        return reply


def run(engine: Engine, cells: list[Cell], path: Path, warm_up: int = 1) -> Progress:
    with serving(engine.answer) as (address, port):
        server = Server.connect(Endpoint(f"http://{address}:{port}"), "m")
        rules = Rules(least_runs=2, most_runs=2, warm_up=warm_up)
        samples: Any = lambda begin, zero: {}  # noqa: E731
        return Runner(server, rules, prompts(server, "salt"), samples, lambda progress: None).run(RUN, cells, path)


@pytest.mark.parametrize("role", ROLES)
def test_a_cell_has_documents_and_latencies(role: str, tmp_path: Path) -> None:
    engine, path = Engine(role), tmp_path / "evidence.jsonl"
    progress = run(engine, [cell(role)], path)
    assert (progress.done, progress.failed) == (1, 0)
    # The warm-up and two runs of two streams.
    assert len(engine.bodies) == 3 * 2 * pooled.REQUESTS
    texts = [text for body in engine.bodies for text in body["input" if role == EMBED else "documents"]]
    assert len(texts) == 3 * len(engine.bodies) == len(set(texts)), "every text is sent once"
    (record,) = evidence.read(path).cells.values()
    figures = record["figures"]
    assert record["cell"]["id"] == f"chat {role} p40 n3 s2"
    assert set(figures) == {"documents", "read", "latency", "latency_p95"}
    seconds = 3 * 2 * pooled.REQUESTS / figures["documents"]["values"][0]
    assert figures["read"]["values"][0] == pytest.approx(9 * 2 * pooled.REQUESTS / seconds)
    assert 0 < figures["latency"]["median"] <= figures["latency_p95"]["median"]


def test_the_figures_of_a_run() -> None:
    answers = [pooled.Answered(10.0, 11.0, 30), pooled.Answered(10.0, 12.0, 50), pooled.Answered(11.0, 14.0, 20)]
    assert pooled.of_run(cell(EMBED, documents=4), answers) == {
        "documents": 3.0,
        "latency": 2000.0,
        "latency_p95": 2900.0,
        "read": 25.0,
    }
    assert "read" not in pooled.of_run(cell(EMBED), [*answers, pooled.Answered(10.0, 11.0)])


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("reply", "fault", "what"),
    [
        (Reply(404, [b'{"message": "Not Found"}']), "status-404", "8 of 8 requests: "),
        (Reply(200, [b'{"data": [], "results": []}']), "answer", "fewer than 3 documents in the answer"),
    ],
)
def test_a_server_that_does_not_answer_makes_a_failed_cell(
    role: str, reply: Reply, fault: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "evidence.jsonl"
    assert run(Engine(role, lambda sound: reply), [cell(role)], path).failed == 1
    (record,) = [one for one in map(json.loads, path.read_text().splitlines()) if one["record"] == "cell"]
    assert (record["state"], record["figures"]) == ("failed", {})
    assert record["faults"][0]["id"] == fault
    assert what in record["faults"][0]["what"]


def test_a_profile_is_for_servers_of_its_role() -> None:
    for role in ROLES:
        cells = profiles.load(role).cells
        assert profile_fit.fit(cells, 8192, 64, role).cells == cells
        assert profile_fit.fit(cells, 8192, 64).cells == cells
        (why,) = {one.why for one in profile_fit.fit(cells, 8192, 64, CHAT).left_out}
        assert why == f"is for a server of the role {role}; this one has the role chat"
    smoke = profiles.load("smoke").cells
    assert profile_fit.fit(smoke, 8192, 64, CHAT).cells == smoke
    assert not profile_fit.fit(smoke, 8192, 64, EMBED).cells
