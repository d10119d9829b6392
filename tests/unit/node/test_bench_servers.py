"""Every scripted server: figures within 1 %, or a fault that is named; no traceback, no wait for ever."""

from __future__ import annotations

import h11
import pytest

from bench_servers import groups, measure, wrong
from fakes.scripted_servers import Script, reply, scripts, truth
from fakes.virtual_network import network
from vllm_spark.node.bench.reader import Reader

SCRIPTS = {name: script for name, script in scripts().items() if not script.through}
# Replies that are HTTP, as h11 reads it, and that come to their end.
SOUND = {
    name: script
    for name, script in SCRIPTS.items()
    if not {"broken-reply", "refused"} & set(script.right) and script.end in ("close", "open") and script.output < 10000
}


def test_there_are_enough_servers() -> None:
    assert len(SCRIPTS) >= 60
    assert len({script.through for script in scripts().values()}) > 3


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_server_has_right_figures_or_a_named_fault(script: Script) -> None:
    with network(script) as wire:
        outcome = measure(script, "http://scripted")
    assert wrong(script, outcome, truth(groups(wire.log, script))) == ""


def events_of(content: bytes) -> list[bytes]:
    """Return the data of a stream's events, read by whole lines."""
    lines = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events = []
    for block in lines.split(b"\n\n"):
        data = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if data and b"\n".join(data) == b"[DONE]":
            break
        events += [b"\n".join(data)] if data else []
    return events


@pytest.mark.parametrize("script", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_h11_reads_the_same_response(script: Script, size: int) -> None:
    planned = reply(script, 9, {"max_tokens": 24, "messages": [{"role": "user", "content": "one two"}]})
    content = b"".join(piece.content for piece in planned.pieces)
    witness, reader = h11.Connection(h11.CLIENT), Reader()
    witness.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    witness.send(h11.EndOfMessage())
    witness.receive_data(content)
    if script.end == "close":
        witness.receive_data(b"")
    status, body = 0, b""
    while not isinstance(found := witness.next_event(), h11.EndOfMessage | h11.ConnectionClosed) and found not in (
        h11.NEED_DATA,
        h11.PAUSED,
    ):
        if isinstance(found, h11.Response):
            status = found.status_code
        elif isinstance(found, h11.Data):
            body += bytes(found.data)
    for start in range(0, len(content), size):
        reader.feed(1.0, content[start : start + size])
    reader.close()
    assert reader.status == status
    if status == 200:
        assert [event.data for event in reader.events] == events_of(body)
