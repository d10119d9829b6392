"""The gates and their mock server over HTTP, and a thousand runs against a healthy server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_requests

from fakes.faulty_server import Reply, serving
from fakes.gate_bench import FAULTS, ORDER, Bench, bench_of, failed, other_tokens, over_http, responses_of
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import runner

HEALTHY_RUNS, HEALTHY_RUNS_OVER_HTTP = 1000, 24


@pytest.fixture
def bench(resolve: Callable[..., Spec]) -> Bench:
    return bench_of(resolve())


def test_a_thousand_healthy_runs_fail_no_gate(bench: Bench) -> None:
    for seed in range(HEALTHY_RUNS):
        verdicts = bench.judge(responses_of(bench, bench.server(seed=seed)))
        alarms = [verdict for verdict in verdicts if verdict.ok is not True]
        assert not alarms, (seed, alarms)


def test_healthy_runs_over_http_fail_no_gate(bench: Bench) -> None:
    for seed in range(HEALTHY_RUNS_OVER_HTTP):
        verdicts = bench.judge(over_http(bench, bench.server(seed=seed).answer))
        assert verdicts[-1].gate == ORDER[-1], (seed, verdicts[-1])
        assert not failed(verdicts), (seed, failed(verdicts))


@pytest.mark.parametrize("name", [next(name for name, fault in FAULTS.items() if fault.gate == gate) for gate in ORDER])
def test_its_gate_catches_a_fault_over_http(name: str, bench: Bench) -> None:
    verdicts = bench.judge(over_http(bench, bench.server(FAULTS[name]).answer))
    assert {verdict.gate for verdict in failed(verdicts)} == {FAULTS[name].gate}


def test_requests_to_a_router_do_not_carry_the_key_of_the_engine(resolve: Callable[..., Spec]) -> None:
    bench = bench_of(resolve())
    engine, other = bench.server(), dataclasses.replace(bench.server(), tokens_per_text=other_tokens)
    with serving(engine.answer) as server, serving(other.answer) as (address, port):
        bench = bench_of(resolve(), through=f"http://{address}:{port}/")
        verdicts = bench.judge(spark_requests.send_all(server, runner.requests(bench.request), "a key"))
    assert [verdict.id for verdict in failed(verdicts)] == ["router-tokenizer"]
    request = {"base": "http://router", "path": "/", "timeout_s": 1}
    _, _, headers = spark_requests.connect(("127.0.0.1", 1), request, "key")
    assert "Authorization" not in headers


def test_the_probe_stops_after_a_request_without_a_reply(bench: Bench) -> None:
    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        if path == "/version":
            raise ConnectionAbortedError
        return bench.mock.answer(path, body)

    replies = over_http(bench, answer)
    assert list(replies) == ["ready", "models", "version"]
    assert failed(bench.judge(replies))[0].id == "engine-version"
