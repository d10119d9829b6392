"""The request counters of an engine, as status reads them."""

from __future__ import annotations

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_status

from fakes.fake_http import Reply, serving

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:request_generation_tokens_bucket{engine="0",le="1.0",model_name="m"} 4.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 33.0
vllm:request_decode_time_seconds_count{engine="0",model_name="m"} 3.0
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 6.25
"""


def test_the_engines_own_counters() -> None:
    counted = spark_status.counters(METRICS)
    assert counted == {
        "running": 3.0,
        "waiting": 0.0,
        "tokens": 1500.0,
        "ended_tokens": 33.0,
        "ended": 3.0,
        "decode_s": 6.25,
    }


def test_the_counters_are_read_twice_only_where_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_status, "SAMPLE_INTERVAL_S", 0.01)
    pages = [METRICS, METRICS.replace("1.5e+03", "1510.0")]
    with serving(lambda path, _: Reply(pages.pop(0)) if path == "/metrics" else Reply(status=404)) as (url, sent):
        address = {"address": "127.0.0.1", "port": int(url.rpartition(":")[2])}
        first = spark_status.first_sample(address)
        second = spark_status.second_sample(address, first)
        assert (first["tokens"], second["tokens"]) == (1500.0, 1510.0)
        assert second["at"] > first["at"]
        assert spark_status.second_sample(address, {**first, "running": 0.0}) is None
        assert len(sent) == 2
    assert spark_status.first_sample(address) is None
    assert spark_status.first_sample(None) is None
