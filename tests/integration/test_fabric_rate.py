"""The rate of the fabric over TCP: two hosts on the loopback device measure each other."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_link_rate

from loopback import held_port


class Steps:
    """Time that a call moves by a millisecond. So a busy machine sends as much as an idle one."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._calls = itertools.count()

    def monotonic(self) -> float:
        return next(self._calls) / 1000


def test_two_hosts_measure_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_link_rate, "time", Steps())
    port = held_port()
    results: dict[str, list[Any]] = {}

    def run(own: str, peer: str) -> None:
        rails = [{"netdev": "lo", "own": own, "peer": peer, "first": own < peer, "turn": 0}]
        results[own] = spark_link_rate.measure(rails, port=port, seconds=0.1, wait_s=60)

    addresses = ("127.0.0.1", "127.0.0.2")
    threads = [threading.Thread(target=run, args=pair) for pair in (addresses, addresses[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for [result] in results.values():
        assert result["error"] == ""
        assert result["received_bytes"] > 0
        assert 0 < result["seconds"] < 60


@pytest.mark.parametrize("first", [True, False])
def test_a_peer_that_never_appears_is_reported(first: bool) -> None:
    rails = [{"netdev": "lo", "own": "127.0.0.1", "peer": "127.0.0.2", "first": first, "turn": 0}]
    [result] = spark_link_rate.measure(rails, port=held_port(), seconds=0.1, wait_s=0.2)
    assert result["received_bytes"] == 0
    assert "no connection came to 127.0.0.1" in result["error"]


def test_an_address_that_the_host_does_not_have_is_reported() -> None:
    rails = [{"netdev": "lo", "own": "192.0.2.1", "peer": "127.0.0.2", "first": True, "turn": 0}]
    [result] = spark_link_rate.measure(rails, port=held_port(), seconds=0.1, wait_s=0.2)
    assert "192.0.2.1 port" in result["error"]
