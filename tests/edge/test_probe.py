"""The gate `edge` on a real HAProxy: it passes, costs the engine nothing, and finds each rule that is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target

from conftest import Start
from fakes.gate_requests import gate_request
from fakes.running_edge import RunningEdge
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.edge import config
from vllm_spark.verify.gates import edge as gate


def observe(edge: RunningEdge) -> dict[str, Any]:
    tls = edge.planned.settings.tls != "off"
    authority = str(edge.folder / "ca.crt") if tls else ""
    target = Target("127.0.0.1", edge.port, tls, "127.0.0.1", authority)
    seen = spark_edge_probe.outside(target, gate.UNLISTED)
    inside = {**seen, "tls": tls}
    certificates = spark_edge_probe.shown(target._replace(name="localhost", authority=""))
    holder = {"unit": "vllm-edge.service"}
    return {
        "inside": {**inside, "shown": certificates, "placed": certificates, "holder": holder},
        "outside": seen,
    }


def failed(seen: dict[str, Any]) -> list[str]:
    """Return the ids of the conditions that do not hold."""
    probe: Any = {"responses": {"edge": seen}}
    request = gate_request(edge={"tls": "own-ca"}, socket="/run/api.sock")
    return [verdict.id for verdict in gate.judge(request, probe, []) if not verdict.ok]


@pytest.mark.parametrize("tls", ["own-ca", "off"])
def test_a_sound_edge_passes_and_the_engine_is_not_asked(start: Start, tls: str, engine: ScriptedEngine) -> None:
    assert failed(observe(start(tls=tls))) == ([] if tls == "own-ca" else ["certificate"])
    assert engine.heads == []


# Lines of the configuration that are left out -> the conditions that then fail.
MISSING = {
    r"  http-request return status 401 .* unless .*\n": {"key", "key from outside"},
    r"  http-request return status 404 .*\n": {"paths", "paths from outside"},
    r"  http-request return status 421 .*\n": {"host", "host from outside"},
}


@pytest.mark.parametrize("rule", MISSING)
def test_a_missing_rule_is_found(start: Start, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config.config

    def without(*args: Any) -> str:
        text, count = re.subn(rule, "", whole(*args))
        assert count == 1
        return text

    monkeypatch.setattr(config, "config", without)
    assert MISSING[rule] <= set(failed(observe(start())))


def test_a_foreign_certificate_is_not_trusted(start: Start, tmp_path: Path) -> None:
    edge = start()
    foreign = tmp_path / "foreign.crt"
    other = next(Path("/etc/ssl/certs").glob("*.pem"), None)
    assert other is not None, "no certificate of a public authority — expected: the package ca-certificates"
    foreign.write_text(other.read_text())
    seen = spark_edge_probe.outside(Target("127.0.0.1", edge.port, True, "127.0.0.1", str(foreign)), gate.UNLISTED)
    assert "CERTIFICATE_VERIFY_FAILED" in seen["error"]


def test_nobody_listens() -> None:
    seen = spark_edge_probe.outside(Target("127.0.0.1", 1, True, "x"), gate.UNLISTED)
    assert "ConnectionRefusedError" in seen["error"]
    assert failed({"inside": seen, "outside": seen}) == ["answers"]
