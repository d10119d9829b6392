"""The client against a server that streams by a script: what it sends, and what it does when the server misbehaves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench_streams import recording, steady, usage
from fakes.scripted_engine import MODEL, ScriptedEngine, Stream
from vllm_spark.node.bench import evidence_file, observation, stream
from vllm_spark.node.bench.records import Cell, RunRecord
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.runner import Progress, Runner
from vllm_spark.node.bench.server import Server, ServerError
from vllm_spark.node.bench.stream import Endpoint
from vllm_spark.node.bench.telemetry import Sampler
from waiting import until

pytestmark = pytest.mark.integration

EVENTS = steady(8, first=0.02, gap=0.005)
GOOD = Stream(EVENTS, usage(EVENTS))
Connect = Callable[..., Server]
Exact = Callable[[ScriptedEngine], ScriptedEngine]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Run a scripted engine in a thread and return it as a server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def _connect(engine: ScriptedEngine, path: Path | None = None) -> Server:
        if path:
            asyncio.run_coroutine_threadsafe(engine.start_unix(str(path)), loop).result()
            return Server.connect(Endpoint(f"unix:{path}"))
        port = asyncio.run_coroutine_threadsafe(engine.start(), loop).result()
        return Server.connect(Endpoint(f"http://127.0.0.1:{port}", "a-key"))

    async def _cancel() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    yield _connect
    asyncio.run_coroutine_threadsafe(_cancel(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Exact:
    """A function after which the client sees an engine's streams at the times of their script.

    The requests are sent as always. Other work of this machine delays what arrives, and these tests judge times.
    """
    post_all = stream.post_all

    def _exact(engine: ScriptedEngine) -> ScriptedEngine:
        def post(*args: Any) -> list[stream.Recording]:
            first = len(engine.requests)
            sent = post_all(*args)
            assert [one.error for one in sent] == [""] * len(sent)
            streams = [engine.streams[number % len(engine.streams)] for number in range(first, first + len(sent))]
            return [recording(one, sent[0].sent) for one in streams]

        monkeypatch.setattr(stream, "post_all", post)
        return engine

    return _exact


def cell(streams: int = 1, **more: Any) -> Cell:
    sizes = {"corpus": "chat", "prompt": 5, "output": 8, "depth": 0, "streams": streams}
    return {"id": f"cell s{streams}", **sizes, "sampling": {"temperature": 0.7}, "server": {}, **more}  # type: ignore[typeddict-item]


def run_record() -> RunRecord:
    key = dict.fromkeys(
        ("model", "commit", "layout", "image", "launch", "topology", "hosts", "toolkit", "protocol"), ""
    )
    subject = dict.fromkeys(("deployment", "recipe", "served_name", "url", "engine_version"), "")
    return {
        "record": "run",
        "schema": 1,
        "id": "0" * 12,
        "started": "2026-01-01T00:00:00Z",
        "profile": {"name": "test"},
        "key": key,
        "subject": subject,
        "host": {},
    }  # type: ignore[typeddict-item]


def runner_of(server: Server, seen: list[Progress] | None = None) -> Runner:
    return Runner(
        server,
        Rules(least_runs=2, most_runs=2),
        prompt=lambda of, run, number: [{"role": "user", "content": f"{of['id']} {run} {number}"}],
        samples=lambda begin, zero: {"spark1": [{"t": zero}]},
        report=(seen if seen is not None else []).append,
    )


def cells_of(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["record"] == "cell"]


def test_a_run_warms_up_and_asks_for_the_exact_length(connect: Connect, tmp_path: Path) -> None:
    engine = ScriptedEngine([GOOD])
    runner_of(connect(engine)).run(run_record(), [cell(streams=2)], tmp_path / "run.jsonl")
    assert len(engine.requests) == 6  # a warm-up and two runs, of two streams each
    assert {request["temperature"] for request in engine.requests} == {0.7}
    assert [request["max_tokens"] for request in engine.requests] == [8] * 6
    assert all(request["ignore_eos"] and request["return_token_ids"] for request in engine.requests)
    assert len({request["messages"][0]["content"] for request in engine.requests}) == 6
    [record] = cells_of(tmp_path / "run.jsonl")
    assert (record["state"], record["runs"]) == ("measured", 2)
    assert record["figures"]["output"]["values"] == [8.0, 8.0]


def test_a_run_over_a_unix_socket(connect: Connect, tmp_path: Path) -> None:
    engine = ScriptedEngine([GOOD], {"vllm:request_success_total": 0.0}, {"vllm:request_success_total": 1.0})
    server = connect(engine, tmp_path / "api.sock")
    assert (server.model, server.version, server.max_model_len) == (MODEL, "0.21.0", 131072)
    assert server.count_tokens("one two three") == 3
    runner_of(server).run(run_record(), [cell(streams=2)], tmp_path / "run.jsonl")
    assert len(engine.requests) == 6
    [record] = cells_of(tmp_path / "run.jsonl")
    assert (record["state"], record["runs"]) == ("measured", 2)
    assert record["figures"]["output"]["values"] == [8.0, 8.0]


def test_a_socket_that_nobody_serves_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"unix:.*/api.sock/v1/models does not answer: .*No such file"):
        Server.connect(Endpoint(f"unix:{tmp_path}/api.sock"))
    recording = stream.post_all(Endpoint(f"unix:{tmp_path}/api.sock"), "/v1/chat/completions", [{}])[0]
    assert "No such file" in recording.error


def test_a_run_whose_first_chunk_is_late_is_a_warning(connect: Connect, exact: Exact, tmp_path: Path) -> None:
    late = steady(8, first=0.3, gap=0.005)
    engine = exact(ScriptedEngine([GOOD, Stream(late, usage(late)), GOOD, GOOD]))
    runner = replace(runner_of(connect(engine)), rules=Rules(3, 3))
    runner.run(run_record(), [cell()], tmp_path / "run.jsonl")
    [record] = cells_of(tmp_path / "run.jsonl")
    assert (record["state"], record["runs"]) == ("measured", 3)
    assert "late-chunk" in [fault["id"] for fault in record["faults"]]


def test_a_server_that_is_not_vllm_gets_no_parameters_of_vllm(connect: Connect) -> None:
    server = connect(ScriptedEngine([GOOD], version=""))
    assert set(server.body([], 8, {})) == {"model", "messages", "stream", "stream_options", "max_tokens"}
    assert server.count_tokens("x" * 440) == 100
    assert server.counters() == {}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Stream(status=429, body='{"error": "too many"}'), "status-429"),
        (Stream(status=500, body="EngineDeadError"), "status-500"),
        (Stream(EVENTS, ending="cut"), "cut"),
        (Stream(EVENTS, ending="error"), "error-event"),
        (Stream(EVENTS, ending="stall"), "stalled"),
    ],
)
def test_a_server_that_fails_is_a_cell_with_its_reason(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Stream, reason: str
) -> None:
    if bad.ending == "stall":
        monkeypatch.setattr(stream, "GAP_S", 1.0)
    server = connect(ScriptedEngine([GOOD, GOOD, bad, GOOD]))
    runner_of(server).run(run_record(), [cell(), cell(streams=2)], tmp_path / "run.jsonl")
    first, second = cells_of(tmp_path / "run.jsonl")
    assert (first["state"], first["figures"], first["faults"][0]["id"]) == ("failed", {}, reason)
    assert second["cell"]["id"] == "cell s2"


def test_an_interrupted_run_continues_and_repeats_no_cell(connect: Connect, tmp_path: Path) -> None:
    engine, path = ScriptedEngine([GOOD]), tmp_path / "run.jsonl"
    server = connect(engine)
    runner_of(server).run(run_record(), [cell()], path)
    before = len(engine.requests)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + '{"record": "ce', encoding="utf-8")  # without `end`, cut in the next cell
    runner_of(server).run(run_record(), [cell(), cell(streams=2)], path)
    assert len(engine.requests) - before == 6
    assert [record["cell"]["id"] for record in cells_of(path)] == ["cell s1", "cell s2"]
    other: Any = {**run_record(), "profile": {"name": "other"}}
    with pytest.raises(evidence_file.OtherRunError, match="profile"):
        runner_of(server).run(other, [cell()], path)


def test_the_samples_of_a_continued_run_have_its_times(connect: Connect, tmp_path: Path) -> None:
    server, path = connect(ScriptedEngine([GOOD])), tmp_path / "run.jsonl"
    earlier = {**run_record(), "record": "cell", "cell": cell(), "state": "measured", "started": 0.0, "seconds": 500.0}
    path.write_text("".join(f"{json.dumps(record)}\n" for record in (run_record(), earlier)), encoding="utf-8")
    with Sampler(time.perf_counter(), 0.02, nvidia_smi=["no-such-program"], clock=time.perf_counter) as sampler:

        def prompt_after_a_sample(*_: object) -> list[dict[str, str]]:
            before = len(sampler.samples())
            until(lambda: len(sampler.samples()) > before)
            return [{"role": "user", "content": "hi"}]

        runner = replace(
            runner_of(server),
            prompt=prompt_after_a_sample,
            samples=lambda begin, zero: {"spark1": sampler.since(begin, zero)},
        )
        now = time.time()
        runner.run(run_record(), [cell(), cell(streams=2)], path)
    record = cells_of(path)[-1]
    times = [sample["t"] for sample in record["samples"]["spark1"]]
    # Far from the zeros of the other clocks, and also on a busy machine.
    assert record["started"] == pytest.approx(500, abs=60)
    assert record["clock"] == pytest.approx(now, abs=60)
    assert len(times) > 2
    # Each of the four figures is rounded to a millisecond.
    begin, end = record["started"] - 0.002, record["started"] + record["seconds"] + 0.002
    assert begin <= min(times) <= max(times) <= end


def test_a_server_that_is_gone_ends_the_run(connect: Connect, tmp_path: Path) -> None:
    server = connect(ScriptedEngine([GOOD]))
    server.endpoint = Endpoint("http://127.0.0.1:1")
    progress = runner_of(server).run(run_record(), [cell(), cell(streams=2)], tmp_path / "run.jsonl")
    assert progress.last is not None
    assert [fault["id"] for fault in progress.last["faults"]] == ["refused"]
    assert len(cells_of(tmp_path / "run.jsonl")) == 1


def test_the_engines_counters_are_those_of_the_run(connect: Connect, tmp_path: Path) -> None:
    moves = {observation.DRAFTS: 4.0, observation.DRAFTED_TOKENS: 8.0, observation.ACCEPTED_TOKENS: 4.0}
    server = connect(ScriptedEngine([GOOD], counters={observation.DRAFTS: 100.0}, moves=moves))
    runner_of(server).run(run_record(), [cell()], tmp_path / "run.jsonl")
    [record] = cells_of(tmp_path / "run.jsonl")
    assert record["figures"]["tokens_per_step"]["values"] == [2.0, 2.0]


def test_a_busy_engine_that_counts_late_has_no_other_clients(connect: Connect, exact: Exact, tmp_path: Path) -> None:
    counts = {observation.FINISHED: 5.0}
    engine = ScriptedEngine([GOOD], counters=counts, moves={observation.FINISHED: 1.0}, counts_after_s=0.2)
    runner_of(connect(exact(engine))).run(run_record(), [cell(), cell(streams=2)], tmp_path / "run.jsonl")
    first, second = cells_of(tmp_path / "run.jsonl")
    assert (first["state"], first["faults"]) == ("measured", [])
    assert (second["state"], [fault["id"] for fault in second["faults"]]) == ("measured", ["short-window"])


def test_progress_names_the_cell_and_the_time_that_is_left(connect: Connect, tmp_path: Path) -> None:
    seen: list[Progress] = []
    last = runner_of(connect(ScriptedEngine([GOOD])), seen).run(run_record(), [cell()], tmp_path / "run.jsonl")
    assert seen
    assert (last.done, last.cells, last.left_s) == (1, 1, 0.0)


@pytest.mark.parametrize(("model", "text"), [("other", f"serves {MODEL}, not other"), ("", "")])
def test_the_model_is_checked(connect: Connect, model: str, text: str) -> None:
    server = connect(ScriptedEngine([GOOD]))
    if not text:
        assert Server.connect(server.endpoint, model).model == MODEL
        return
    with pytest.raises(ServerError, match=text):
        Server.connect(server.endpoint, model)


def test_a_reply_without_an_end_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(ScriptedEngine([GOOD]))
    monkeypatch.setattr("vllm_spark.node.bench.server.MAX_REPLY_BYTES", 10)
    with pytest.raises(ServerError, match="/v1/models answers with more than 10 bytes"):
        Server.connect(server.endpoint)


@pytest.mark.parametrize(("prompt", "runs"), [(5, 2), (64, 4)])
def test_a_long_prompt_is_repeated_until_its_first_token_agrees(
    connect: Connect, exact: Exact, tmp_path: Path, prompt: int, runs: int
) -> None:
    late = steady(8, first=0.3, gap=0.005)
    server = connect(exact(ScriptedEngine([GOOD, GOOD, Stream(late, usage(late)), GOOD, GOOD])))
    runner = replace(runner_of(server), rules=Rules(least_runs=2, most_runs=4, spread=0.5))
    runner.run(run_record(), [cell(prompt=prompt)], tmp_path / "run.jsonl")
    [record] = cells_of(tmp_path / "run.jsonl")
    assert (record["state"], record["runs"]) == ("measured", runs)
