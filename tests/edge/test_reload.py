"""A reload by the module vllm_edge ends when the new HAProxy listens, so gates that follow find every port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from conftest import Start
from loopback import ADDRESS, held_port


def test_a_port_that_a_reload_adds_answers_when_it_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = start()
    port = held_port()
    config = Path(edge.files.config)
    config.write_text(
        config.read_text().replace("frontend edge_api\n", f"frontend edge_api\n  bind {ADDRESS}:{port}\n")
    )
    stages = zip(spark_edge.STAGES, (edge.files.admin_socket, edge.files.route_admin_socket), strict=True)
    monkeypatch.setattr(spark_edge, "STAGES", dict(stages))
    monkeypatch.setattr(spark_edge, "must", lambda *_: edge.reload())
    before = edge.worker()
    spark_edge.reload()
    with socket.create_connection((ADDRESS, port), timeout=5):
        assert edge.has_reloaded(before)


def test_a_process_that_stays_is_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = start()
    monkeypatch.setattr(spark_edge, "STAGES", {spark_edge.UNIT: edge.files.admin_socket})
    monkeypatch.setattr(spark_edge, "TAKEOVER_S", 0.3)
    monkeypatch.setattr(spark_edge, "must", lambda *_: None)
    with pytest.raises(spark_edge.EdgeError, match="still answers"):
        spark_edge.reload()
