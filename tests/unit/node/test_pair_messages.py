"""The messages of two supervisors: what is accepted, and that nothing of a refused line is repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_spark.node.supervise import handshake, host, messages
from vllm_spark.node.supervise.rank import Rank

HELLO = {"launch": "1f", "image": "sha256:3", "toolkit": "0.1.0 (abc)"}


def rank(number: int, name: str = "demo", launch: str = "1f") -> Rank:
    return Rank(name, number, launch, "i", "10.0.0.1", {"spark2": "10.0.0.2"}, 25000, "", "", ("true",))


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        {**HELLO, "toolkit": None},
        {**HELLO, "gave_up": "its container ended"},
        {"beat": 1},
        {"start": 1},
        {"begin": "5a" * 16},
        {"count": {"era": 1}},
        {**HELLO, "gave_up": "", "count": {}},
        {"serving": 1},
        {"bye": "it was stopped (rank 0)"},
        {"bye": "it was stopped (rank 0)", "kind": "stopped"},
    ],
)
def test_a_message_of_the_protocol_arrives_unchanged(message: dict[str, Any]) -> None:
    assert messages.parse(messages.serialize(message)) == message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"\xff",
        b"1",
        b"[1]",
        b"{}",
        b"[" * 8000,
        b'{"a":' * 1500,
        b"1" * 6000,
        b'{"start": 1, "env": {"LD_PRELOAD": "/cache/evil.so"}}',
        b'{"start": "t0ken\\nLD_PRELOAD=/cache/evil.so"}',
        b'{"start": true}',
        b'{"start": 1.0}',
        b'{"beat": 1, "bye": "x"}',
        b'{"launch": "1f"}',
        b'{"launch": "1f", "image": "i", "toolkit": 1}',
        b'{"launch": "1f\\u001b[31m", "image": "i", "toolkit": null}',
        b'{"bye": "x", "kind": "else"}',
        b'{"begin": 1}',
        b'{"begin": "a\\nb"}',
        b'{"count": [1]}',
        b'{"bye": "\\ud800"}',
        b'{"bye": "a\\u2028b"}',
        json.dumps({"bye": "x" * 1000}).encode(),
        json.dumps({**HELLO, "image": "x" * 1000}).encode(),
    ],
)
def test_another_line_is_refused_without_repeating_it(content: bytes) -> None:
    with pytest.raises(messages.InvalidMessageError) as refused:
        messages.parse(content)
    assert not any(text in str(refused.value) for text in ("\x1b", "evil", "xxx", "[[", "\u2028"))


def test_the_longest_reason_fits_a_line_and_is_accepted() -> None:
    content = messages.serialize({"bye": "\N{GRINNING FACE}\n" * 5000, "kind": "ended"})
    assert len(content) < messages.LINE_BYTES
    assert messages.parse(content)["bye"].endswith(" …")


def test_a_log_line_has_no_control_characters_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    host.log("a\x1b[31m\nvllm-spark: forged\r\u202e" + "x" * 5000)
    line = capsys.readouterr().out
    assert line.startswith("vllm-spark: a?[31m?vllm-spark: forged??xxx")
    assert line.count("\n") == 1
    assert len(line) < 2100


def test_a_repeated_text_is_logged_once_and_a_topic_is_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    log = host.RepeatedLog()
    assert [log("a"), log("b"), log("a"), log("c 1", topic="c"), log("c 2", topic="c")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == ["vllm-spark: a", "vllm-spark: b", "vllm-spark: c 1"]


def test_the_keys_of_a_connection_depend_on_everything() -> None:
    key, nonces = b"k" * 32, ("a", "b")
    head, worker = (handshake.session_keys(key, rank(number), nonces) for number in (0, 1))
    assert (head.send, head.receive, head.token) == (worker.receive, worker.send, worker.token)
    assert head.send != head.receive
    tokens = {
        handshake.session_keys(*arguments).token
        for arguments in [
            (key, rank(0), nonces),
            (b"l" * 32, rank(0), nonces),
            (key, rank(0, name="other"), nonces),
            (key, rank(0, launch="2f"), nonces),
            (key, rank(0), ("a", "c")),
            (key, rank(0), ("ab", "")),
        ]
    }
    assert len(tokens) == 6
