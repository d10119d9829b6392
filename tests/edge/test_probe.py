"""The gate `edge` on a real HAProxy: it passes, costs the engine nothing, and finds each rule that is missing."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target

from conftest import Start
from fakes.gate_requests import gate_request
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import ScriptedEngine
from loopback import held_port
from vllm_spark.core.units import MIB
from vllm_spark.edge import config
from vllm_spark.verify.gates import edge as gate

# As many connections as the strangers of the gate open.
SMALL = {"streams": 4, "requests_per_minute": 40, "header_timeout_s": 2, "body_mib": 1, "connections": 64}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", 3)


def observe(edge: RunningEdge) -> dict[str, Any]:
    tls = edge.planned.settings.tls != "off"
    authority = str(edge.folder / "ca.crt") if tls else ""
    target = Target("127.0.0.1", edge.port, tls, "127.0.0.1", authority)
    limits = spark_edge_probe.limits_of(edge.text)
    seen = spark_edge_probe.outside(target, gate.UNLISTED)
    asked = spark_edge_probe.inside(target, KEY, limits, memory=lambda: 1024 * edge.memory_kib())
    inside = {**seen, **asked, "limits": limits._asdict(), "tls": tls}
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
    port = held_port()
    edge = start(tls=tls, limits=SMALL, metrics_from=["127.0.0.0/8"], metrics_port=port)
    seen = observe(edge)
    print(f"\ntls {tls}: {seen['inside']['siege']}")
    assert set(seen["inside"]["siege"]["waited_ms"]) == {"silence", *spark_edge_probe.ATTACKS, "metrics port"}
    assert seen["inside"]["siege"]["grown_bytes"] < 32 * MIB
    assert failed(seen) == ([] if tls == "own-ca" else ["certificate"])
    # Not before its time. The gate judges whether it is too late.
    assert seen["inside"]["drip"]["seconds"] >= 1.5
    assert engine.heads == []


def test_a_probe_that_is_not_thorough_sends_one_request_with_a_key(start: Start, engine: ScriptedEngine) -> None:
    edge = start(limits=SMALL)
    target = Target("127.0.0.1", edge.port, True, "127.0.0.1")
    limits = spark_edge_probe.limits_of(edge.text)
    assert spark_edge_probe.inside(target, KEY, limits, thorough=False) == {"body": 413, "thorough": False}
    assert spark_edge_probe.inside(target, "sk-spark-no-such-key", limits, thorough=False)["body"] == 401
    assert engine.heads == []


# Lines of the configuration that are left out -> the conditions that then fail.
MISSING = {
    r"  http-request return status 401 .* unless .*\n": {"key", "key from outside"},
    r"  http-request return status 404 .*\n": {"paths", "paths from outside"},
    r"  http-request return status 421 .*\n": {"host", "host from outside"},
    r"  http-request return status 429 .* sc0_http_req_rate .*\n": {"rate"},
    r"  http-request return status 429 .* sc0_trackers .*\n": {"streams"},
    r"  timeout http-request .*\n": {"header"},
    r"  timeout client .*\n": {"silence"},
    r"  tcp-request connection reject .*sc1_.* !known\n  tcp-request connection reject .*fe_conn.*\n": {"strangers"},
}


@pytest.mark.parametrize("rule", MISSING)
def test_a_missing_rule_is_found(start: Start, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config.config
    texts: list[str] = []

    def without(*args: Any) -> str:
        texts.append(whole(*args))
        text, count = re.subn(rule, "", texts[0])
        assert count == 1
        return text

    monkeypatch.setattr(config, "config", without)
    edge = start(limits=SMALL)
    edge.text = texts[0]
    assert MISSING[rule] <= set(failed(observe(edge)))


def test_a_large_body_that_passes_is_found(start: Start) -> None:
    edge = start(limits=SMALL)
    edge.text = edge.text.replace("content-length) gt 1048576", "content-length) gt 1000")
    assert "body" in failed(observe(edge))


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


# What the edge sends on two connections, None: nothing more -> the status of the first answer. The probe reads it from
# the connection that is refused, whichever that is.
FIRST_ANSWERS = {
    "the oldest is refused": ([b"HTTP/1.1 429 Too Many Requests\r\n\r\n", None], 429),
    "the youngest is refused": ([None, b"HTTP/1.1 429 Too Many Requests\r\n\r\n"], 429),
    "one is cut": ([None, b""], 0),
    "one answer is no HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n", None], 0),
    "nothing comes": ([None, None], 0),
}


@pytest.mark.parametrize("case", FIRST_ANSWERS)
def test_any_of_the_requests_may_be_the_refused_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_edge_probe, "TIMEOUT_S", 0.1)
    sent, expected = FIRST_ANSWERS[case]
    pairs = [socket.socketpair() for _ in sent]
    for (far, _), text in zip(pairs, sent, strict=True):
        if text is not None:
            far.sendall(text)
            far.shutdown(socket.SHUT_WR)
    assert spark_edge_probe.first_answer([near for _, near in pairs]) == expected
    for wire in (wire for pair in pairs for wire in pair):
        wire.close()
