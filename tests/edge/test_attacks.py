"""An edge under attack: strangers cost a client with a key nothing, no limit is passed, and a missing rule is seen."""

from __future__ import annotations

import re
import socket
from typing import Any

import attacks
import pytest

from conftest import Start
from fakes.scripted_engine import ScriptedEngine
from loopback import held_port
from vllm_spark.edge import config


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", attacks.SILENCE_S)


@pytest.mark.parametrize("tls", ["own-ca", "off"])
def test_an_edge_withstands_every_attack_and_the_engine_is_not_asked(
    start: Start, tls: str, engine: ScriptedEngine
) -> None:
    edge = start(tls=tls, limits=attacks.SMALL, metrics_from=["127.0.0.0/8"], metrics_port=held_port())
    assert attacks.broken(edge) == {}
    assert engine.heads == []


# Lines of the configuration that are left out -> the condition that then does not hold.
MISSING = {
    r"  http-request return status 413 .*content-length\) gt .*\n": "body",
    r"  http-request return status 429 .* sc0_http_req_rate .*\n": "rate",
    r"  http-request return status 429 .* sc0_trackers .*\n": "streams",
    r"  timeout http-request .*\n": "header",
    r"  timeout client .*\n": "silence",
    r"  tcp-request connection reject .*sc1_.* !known\n  tcp-request connection reject .*fe_conn.*\n": "strangers",
}


@pytest.mark.parametrize("rule", MISSING)
def test_a_missing_rule_is_seen(start: Start, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config.config

    def without(*args: Any) -> str:
        text, count = re.subn(rule, "", whole(*args))
        assert count == 1
        return text

    monkeypatch.setattr(config, "config", without)
    assert MISSING[rule] in attacks.broken(start(limits=attacks.SMALL))


# What the edge sends on two connections, None: nothing more -> the status of the first answer, which is read from the
# connection that is refused, whichever that is.
FIRST_ANSWERS = {
    "the oldest is refused": ([b"HTTP/1.1 429 Too Many Requests\r\n\r\n", None], 429),
    "the youngest is refused": ([None, b"HTTP/1.1 429 Too Many Requests\r\n\r\n"], 429),
    "one is cut": ([None, b""], 0),
    "one answer is no HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n", None], 0),
    "nothing comes": ([None, None], 0),
}


@pytest.mark.parametrize("case", FIRST_ANSWERS)
def test_any_of_the_requests_may_be_the_refused_one(case: str) -> None:
    sent, expected = FIRST_ANSWERS[case]
    pairs = [socket.socketpair() for _ in sent]
    for (far, _), text in zip(pairs, sent, strict=True):
        if text is not None:
            far.sendall(text)
            far.shutdown(socket.SHUT_WR)
    assert attacks.first_answer([near for _, near in pairs], seconds=0.1) == expected
    for wire in (wire for pair in pairs for wire in pair):
        wire.close()
