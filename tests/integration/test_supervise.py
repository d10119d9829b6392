"""The supervisor of a rank: the messages of two supervisors over a real connection, and the end of a silent one.

molecule/faults tests with real containers that a pair starts, ends and restarts as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.core import ports
from vllm_spark.network.rank_group import Member, RankGroup, supervisor_argv
from vllm_spark.node import unit_limits
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf
from vllm_spark.node.supervise import host, identity, link, meeting, starts, supervisor
from vllm_spark.node.supervise import rank as rank_module
from vllm_spark.node.supervise.handshake import LostError
from vllm_spark.node.supervise.link import GaveUpError, Link, StoppedError
from vllm_spark.node.supervise.rank import Rank
from vllm_spark.node.supervise.supervisor import Supervisor
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
    monkeypatch.setattr(rank_module, "PLACES", Places(folder, f"{folder}/states", folder, folder))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "link.key").write_text(f"{KEY}\n")


def rank(number: int = 0, port: int = 0, peer: str = "127.0.0.1", **fields: Any) -> Rank:
    defaults = {"name": "demo", "launch": "1f", "image": "i", "address": "127.0.0.1", "peer_host": "other", "api": ""}
    return Rank(**{**defaults, "rank": number, "peer": peer, "port": port, "first": "", "command": ("true",), **fields})


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
                await head.send({"start": 1})
        beating.cancel()
        return message

    assert connected(talk) == {"start": 1}
    assert beats >= 20


def test_beats_keep_a_link_beyond_the_longest_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(head: Link, worker: Link) -> Any:
        monkeypatch.setattr(link, "READ_TIMEOUT_S", 2.0)
        beating = asyncio.ensure_future(head.beat())
        asyncio.get_running_loop().call_later(2.5, lambda: asyncio.ensure_future(head.send({"start": 1})))
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
    await head.send({"bye": "its container ended with status 1 (rank 0)"})
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
            await worker.send({"beat": 1})
            await asyncio.sleep(0.01)

    connected(beats_on)
    assert caplog.messages == []


async def said_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: dict[str, Any]) -> None:
    """Say hello as a worker, and return when the head has closed the connection."""
    with contextlib.suppress(LostError):
        worker = await link.establish(reader, writer, rank(1))
        await worker.send(theirs)
        while True:
            await worker.receive()


def after_hello(theirs: dict[str, Any], peer: str = "127.0.0.1") -> tuple[Link | None, dict[str, Any]]:
    """Return the link that a head accepted (or None) and its state, after the hello of a worker."""

    async def scene() -> Link | None:
        head = Supervisor(rank(peer=peer))
        head._meeting.hello = HELLO
        server = await asyncio.start_server(head._meeting.accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        accepted = asyncio.ensure_future(head._meeting.links.get())
        # A head that refuses a worker closes the connection.
        closed = asyncio.ensure_future(said_until_closed(reader, writer, theirs))
        try:
            await asyncio.wait([accepted, closed], timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert accepted.done() or closed.done()
            return accepted.result() if accepted.done() else None
        finally:
            accepted.cancel()
            closed.cancel()
            writer.close()
            server.close()

    head = Supervisor(rank())
    accepted = asyncio.run(scene())
    return accepted, dict(head._state.now)


def test_a_head_accepts_a_worker_that_runs_the_same() -> None:
    assert after_hello(HELLO)[0] is not None


def test_a_head_refuses_a_worker_that_runs_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    accepted, state = after_hello({**HELLO, "toolkit": "0.2.0 (def)"})
    assert accepted is None
    assert state["state"] == "wanted"
    assert "toolkit is 0.1.0 (abc) here and 0.2.0 (def) there" in state["why"]
    assert "Fix: deploy with both hosts in -l." in capsys.readouterr().out


def test_a_head_refuses_another_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert after_hello(HELLO, peer="127.0.0.9")[0] is None
    assert "127.0.0.1 connected, which is not other (127.0.0.9)" in capsys.readouterr().out


def end_of(command: tuple[str, ...], talk: Talk) -> tuple[str, int, LostError | None]:
    """Return how a rank with this command ends while its peer does `talk`."""

    async def scene(head: Link, worker: Link) -> tuple[str, int, LostError | None]:
        one = Supervisor(rank(1))
        child = await asyncio.create_subprocess_exec(*command)
        acting = asyncio.ensure_future(talk(head, worker))
        try:
            return await one._wait_for_end(worker, child)
        finally:
            acting.cancel()
            if child.returncode is None:
                child.kill()
                await child.wait()

    return connected(scene)


async def _beats(head: Link, worker: Link) -> None:
    await head.beat()


async def _nothing(head: Link, worker: Link) -> None:
    link.READ_TIMEOUT_S = SILENCE_S  # the fixture puts it back
    await asyncio.sleep(LIMIT_S)


def test_a_container_that_ends_ends_the_rank_even_with_status_0() -> None:
    assert end_of(("true",), _beats) == ("its container ended with status 0", 1, None)
    assert end_of(("sh", "-c", "exit 78"), _beats) == ("its container ended with status 78", 1, None)


def test_a_silent_peer_ends_the_rank() -> None:
    assert end_of(("sleep", "60"), _nothing)[:2] == ("other is lost: silent for 0 s", 1)


def test_a_head_that_gives_up_ends_its_worker() -> None:
    async def gives_up(head: Link, worker: Link) -> None:
        await head.send({"bye": "its container ended with status 1 (rank 0)", "kind": "gave_up"})

    reason, _, lost = end_of(("sleep", "60"), gives_up)
    assert isinstance(lost, GaveUpError)
    assert reason == "its container ended with status 1 (rank 0)"


def test_a_stopped_peer_is_not_a_failure() -> None:
    async def stops(head: Link, worker: Link) -> None:
        await head.send({"bye": "it was stopped (rank 0)", "kind": "stopped"})

    reason, _, lost = end_of(("sleep", "60"), stops)
    assert reason == "other is lost: it was stopped (rank 0)"
    assert isinstance(lost, StoppedError)


@pytest.mark.parametrize(("number", "gently"), [(0, True), (1, False)])
def test_only_a_stopped_head_ends_gently(number: int, gently: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    async def remove_container(_: str, child: asyncio.subprocess.Process, *, gently: bool) -> None:
        ended.append(gently)
        child.kill()
        await child.wait()

    async def scene(head: Link, worker: Link) -> int | None:
        mine, theirs = (worker, head) if number else (head, worker)
        one = Supervisor(rank(number, command=("sleep", "60"), api="127.0.0.1:9"))
        await theirs.send({"start": 1})
        beats = asyncio.ensure_future(theirs.beat())
        stopping = asyncio.ensure_future(stop_after_its_start(one))
        try:
            return await one._session(mine)
        finally:
            beats.cancel()
            stopping.cancel()

    async def stop_after_its_start(one: Supervisor) -> None:
        while not (one._rank.run_dir / "session.env").exists():
            await asyncio.sleep(0.02)
        one._stop.set()

    monkeypatch.setattr(supervisor, "remove_container", remove_container)
    assert connected(scene) == supervisor.STOPPED
    assert ended == [gently]


HOUR = unit_limits.WITHIN_S


@pytest.mark.parametrize(
    ("past", "restarts", "times"),
    [
        ({}, 0, [HOUR]),  # a deploy started it
        ({"restarts": 0, "times": [10]}, 1, [10, HOUR]),  # systemd restarted it
        ({"restarts": 3, "times": [-1, 10, 20]}, 4, [10, 20, HOUR]),  # the oldest is over an hour ago
        ({"restarts": 4, "times": [10, 20, 30, 40]}, 0, [HOUR]),  # a person started it
        ({"restarts": 4, "times": [10, 20]}, 1, [HOUR]),  # reset-failed in between
        ({"restarts": 4, "times": [10, 20]}, 4, [HOUR]),  # run by hand
    ],
)
def test_the_start_times_of_an_hour(past: dict[str, Any], restarts: int, times: list[float]) -> None:
    assert starts.start_times(past, restarts, HOUR) == {"restarts": restarts, "times": times}


def test_the_reason_of_the_last_end_survives_a_restart() -> None:
    assert host.State(rank()).failed("other is lost") == "other is lost"
    state = host.State(rank())
    state.write("wanted", "it waits for other")
    assert state.now | {"since": 0} == {
        "state": "wanted",
        "why": "it waits for other",
        "since": 0,
        "last_end": "other is lost",
        "peer": "other",
        "written": True,
    }


def test_the_reason_of_liveness_is_that_of_the_end() -> None:
    state = host.State(rank())
    state.write("serving")
    StateOf("demo", rank_module.PLACES).write("failed", "it hung: no token")
    assert state.failed("its container ended with status 137") == "it hung: no token"
    assert state.now["last_end"] == "it hung: no token"


def test_a_rank_starts_despite_a_broken_state_file(tmp_path: Path) -> None:
    (tmp_path / "demo" / "state.json").write_text("{")
    state = host.State(rank())
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
    assert (parsed.rank, parsed.peer, parsed.peer_host) == (number, other.address, other.host)
    assert parsed.port == ports.SUPERVISOR_PORT
    assert parsed.command == ("docker", "run", "--name", "vllm-demo")
    assert bool(parsed.api) == (number == 0)
    assert bool(parsed.first) == (number == 0 and executor == "ray")


def test_a_pair_that_serves_long_enough_forgets_its_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    async def record(*argv: str) -> None:
        calls.append(argv)

    monkeypatch.setattr(host, "run_quietly", record)
    monkeypatch.setattr(unit_limits, "GOOD_S", 0.0)
    rank = rank_module.parse(
        ["--name", "demo", "--rank", "0", "--launch", "h", "--image", "i", "--address", "127.0.0.1",
         "--peer", "127.0.0.1", "--peer-host", "spark2", "--port", "1", "--api", "127.0.0.1:1", "--", "true"]
    )  # fmt: skip
    (rank.run_dir / "lives.json").write_text(json.dumps({"restarts": 4, "times": [1.0, 2.0, 3.0, 4.0]}))

    async def serve() -> bool:
        held = supervisor.Supervisor(rank)
        held._last_attempt = True
        held._serve()
        assert held._becoming_good is not None
        await held._becoming_good
        return held._last_attempt

    assert asyncio.run(serve()) is False
    assert json.loads((rank.run_dir / "lives.json").read_text()) == {"restarts": 0, "times": []}
    assert calls == [("systemctl", "reset-failed", "vllm@demo")]
