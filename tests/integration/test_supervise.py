"""The supervisor of a rank: the messages of two supervisors over a real connection, and the end of a silent one.

molecule/faults tests with real containers that a pair starts, ends and restarts as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.core import ports
from vllm_spark.inventory.rank_group import Member, RankGroup, supervisor_argv
from vllm_spark.node import deployment_state, starts
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.starts import Count
from vllm_spark.node.supervise import host, identity, link, meeting
from vllm_spark.node.supervise import rank as rank_module
from vllm_spark.node.supervise.handshake import LostError
from vllm_spark.node.supervise.link import Link
from vllm_spark.node.supervise.rank import Rank
from waiting import LIMIT_S

KEY = "5a" * 32
HELLO = {"launch": "1f", "image": "sha256:3", "toolkit": "0.1.0 (abc)"}
SILENCE_S = 0.3
Talk = Callable[[Link, Link], Awaitable[Any]]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A machine that stands still for a while is no lost peer, except in the tests of a silent one.
    monkeypatch.setattr(link, "READ_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(link, "BEAT_S", 0.05)
    monkeypatch.setattr(meeting, "RETRY_S", 0.05)
    folder = str(tmp_path)
    monkeypatch.setattr(rank_module, "PLACES", Places(folder, f"{folder}/states", folder, folder, f"{folder}/starts"))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "link.key").write_text(f"{KEY}\n")


def rank(number: int = 0, port: int = 0, peer: str = "127.0.0.1", **fields: Any) -> Rank:
    defaults = {"name": "demo", "launch": "1f", "image": "i", "address": "127.0.0.1", "api": "", "first": ""}
    own = {"rank": number, "peers": {"other": peer}, "port": port, "command": ("true",)}
    return Rank(**{**defaults, **own, **fields})


def connected(talk: Talk) -> Any:
    """Return the result of `talk` with both ends of a real connection."""

    async def scene() -> Any:
        met: asyncio.Queue[Link] = asyncio.Queue()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            met.put_nowait(await link.establish(reader, writer, rank(0)))

        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        worker = await link.establish(*await asyncio.open_connection("127.0.0.1", port), rank(1))
        head = await asyncio.wait_for(met.get(), LIMIT_S)
        try:
            return await asyncio.wait_for(talk(head, worker), LIMIT_S)
        finally:
            head.close()
            worker.close()
            server.close()

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("theirs", "names"),
    [
        (HELLO, []),
        ({**HELLO, "launch": "2f"}, ["launch is 1f here and 2f there"]),
        ({**HELLO, "image": "sha256:4", "toolkit": None}, ["image is", "toolkit is"]),
        ({}, ["launch is", "image is", "toolkit is"]),
    ],
)
def test_differences_of_two_ranks(theirs: dict[str, Any], names: list[str]) -> None:
    lines = identity.differences(HELLO, theirs)
    assert len(lines) == len(names)
    assert all(name in line for name, line in zip(names, lines, strict=True))


def test_a_message_arrives_between_beats() -> None:
    beats = 0

    async def talk(head: Link, worker: Link) -> Any:
        nonlocal beats
        beating = asyncio.ensure_future(head.beat())
        while "beat" in (message := await worker.receive()):
            beats += 1
            if beats == 20:
                head.send({"start": 1})
        beating.cancel()
        return message

    assert connected(talk) == {"start": 1}
    assert beats >= 20


def test_beats_keep_a_link_beyond_the_longest_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(head: Link, worker: Link) -> Any:
        monkeypatch.setattr(link, "READ_TIMEOUT_S", 2.0)
        beating = asyncio.ensure_future(head.beat())
        asyncio.get_running_loop().call_later(2.5, head.send, {"start": 1})
        try:
            return await worker.expect("start")
        finally:
            beating.cancel()

    assert connected(talk) == {"start": 1}


async def _silent(head: Link, worker: Link) -> None:
    link.READ_TIMEOUT_S = SILENCE_S  # the fixture puts it back
    await worker.expect("start")


async def _closed(head: Link, worker: Link) -> None:
    head.close()
    await worker.expect("start")


async def _bye(head: Link, worker: Link) -> None:
    head.send({"bye": "its container ended with status 1 (rank 0)"})
    await worker.expect("start")


async def _noise(head: Link, worker: Link) -> None:
    head._writer.write(b"GET / HTTP/1.1\n")
    await worker.expect("start")


@pytest.mark.parametrize(
    ("talk", "says"),
    [
        (_silent, "silent for 0 s"),
        (_closed, "closed"),
        (_bye, "its container ended with status 1"),
        (_noise, "not authentic"),
    ],
)
def test_the_error_names_how_the_peer_was_lost(talk: Talk, says: str) -> None:
    with pytest.raises(LostError, match=says):
        connected(talk)


def test_beats_to_a_lost_peer_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def beats_on(head: Link, worker: Link) -> None:
        head.close()
        for _ in range(10):
            worker.send({"beat": 1})
            await asyncio.sleep(0.01)

    connected(beats_on)
    assert caplog.messages == []


Heard = list[dict[str, Any]]
COUNT = Count(era=2, failures=("5a",))


def after_hello(theirs: dict[str, Any], *more: dict[str, Any], peer: str = "127.0.0.1") -> tuple[list[Any], Heard]:
    """Let a worker say its hello, and more after the head's. Returns what the head counts of it (empty if it has not
    met), and what it has heard."""
    counted: list[Any] = []
    heard: Heard = []

    async def met(_: str, link: Link, count: Count | None) -> None:
        counted.append(count)

    async def scene() -> None:
        state = host.RankState(rank())
        state.write("wanted")
        meet = meeting.Meeting(
            rank(peer=peer), state, lambda: dataclasses.asdict(COUNT), met, lambda why: state.write("wanted", why)
        )
        meet.hello = HELLO
        server = await asyncio.start_server(meet.accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        with contextlib.suppress(LostError):
            worker = await link.establish(reader, writer, rank(1))
            worker.send(theirs)
            heard.append(await worker.receive())
            for message in more:
                worker.send(message)
            await worker.receive()  # until the head closes the connection
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    return counted, heard


def test_a_head_and_a_worker_exchange_what_they_count() -> None:
    own = Count(era=3)
    counted, heard = after_hello({**HELLO, "gave_up": ""}, {"count": dataclasses.asdict(own)})
    assert counted == [own]
    assert starts.count_of(heard[0]["count"]) == COUNT


def test_a_worker_of_the_former_release_hears_its_own_language() -> None:
    assert after_hello(HELLO) == ([None], [HELLO])


def test_a_head_refuses_a_worker_that_runs_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert after_hello({**HELLO, "toolkit": "0.2.0 (def)"})[0] == []
    state = deployment_state.present("demo", rank_module.PLACES)
    assert state["state"] == "wanted"
    assert "toolkit is 0.1.0 (abc) here and 0.2.0 (def) there" in state["why"]
    assert "Fix: deploy with both hosts in -l." in capsys.readouterr().out


def test_a_head_refuses_another_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert after_hello(HELLO, peer="127.0.0.9")[0] == []
    assert "127.0.0.1 connected, which is not other (127.0.0.9)" in capsys.readouterr().out


def found(*said: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Let a head answer the hello of a worker. Returns what the worker counts of it, and its hello."""
    counted: list[Any] = []
    hellos: Heard = []

    class MetError(Exception):
        """Ends the search."""

    async def met(_: str, link: Link, count: Count | None) -> None:
        counted.append(count)
        raise MetError

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await link.establish(reader, writer, rank(0))
        hellos.append(await head.receive())
        for message in said:
            head.send(message)

    async def scene() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        worker = rank(1, port=server.sockets[0].getsockname()[1])
        meet = meeting.Meeting(worker, host.RankState(worker), lambda: dataclasses.asdict(COUNT), met, print)
        meet.hello = HELLO
        try:
            await meet.find_head()
        except MetError:
            server.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    return counted, hellos[0]


def test_a_worker_says_a_hello_that_a_head_of_the_former_release_takes() -> None:
    counted, hello = found(HELLO)
    assert counted == [None]
    assert hello == {**HELLO, "gave_up": ""}
    assert found({**HELLO, "count": dataclasses.asdict(COUNT)})[0] == [COUNT]


def test_a_head_of_the_former_release_says_that_it_gave_up() -> None:
    with pytest.raises(meeting.HeadGaveUpError, match="5 starts"):
        found({**HELLO, "gave_up": "5 starts"})


def test_a_rank_starts_despite_a_broken_state_file(tmp_path: Path) -> None:
    (tmp_path / "demo" / "state.json").write_text("{")
    state = host.RankState(rank())
    state.write("wanted")
    assert json.loads((tmp_path / "demo" / "state.json").read_text())["state"] == "wanted"


def test_only_root_can_read_the_token_of_a_session(tmp_path: Path) -> None:
    file = tmp_path / "session.env"
    file.write_text("old")
    file.chmod(0o644)
    host.write_secret(file, "RAY_AUTH_TOKEN=1\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "RAY_AUTH_TOKEN=1\n"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_the_supervisor_parses_the_arguments_of_a_launch(number: int, executor: str) -> None:
    members = (Member("spark1", "10.0.0.1"), Member("spark2", "10.0.0.2"))
    one = RankGroup(number, executor, "eth1", members, {}, "1f")
    groups = supervisor_argv(one, "demo", "image@sha256:1", "127.0.0.1:8000")
    argv = [word for group in groups for word in group]
    parsed = rank_module.parse([*argv[1:], "docker", "run", "--name", "vllm-demo"])
    other = members[1 - number]
    assert (parsed.rank, parsed.peers, parsed.partners) == (number, {other.host: other.address}, (other.host,))
    assert parsed.port == ports.SUPERVISOR_PORT
    assert parsed.command == ("docker", "run", "--name", "vllm-demo")
    assert bool(parsed.api) == (number == 0)
    assert bool(parsed.first) == (number == 0 and executor == "ray")


def test_a_worker_of_four_is_linked_with_the_head_alone() -> None:
    members = tuple(Member(f"spark{number}", f"10.0.0.{number}") for number in range(1, 5))
    for number, partners in ((0, ("spark2", "spark3", "spark4")), (2, ("spark1",))):
        argv = supervisor_argv(RankGroup(number, "mp", "eth1", members, {}, "1f"), "demo", "i@sha256:1", "unix:a")
        words = [word for group in argv for word in group]
        parsed = rank_module.parse([*words[1:], "docker", "run"])
        assert (len(parsed.peers), parsed.partners) == (3, partners)
