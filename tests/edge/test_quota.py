"""The quota of a day at a real edge: the log of requests, the program that counts it, and HAProxy's map."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from test_fair import ask, code

from conftest import Start
from fakes import journal
from fakes.raw_engine import document
from fakes.running_edge import HASH, KEY, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from vllm_spark.node import edge_quota
from waiting import until

USED = {"prompt_tokens": 40, "completion_tokens": 20}


class Counted:
    """An edge whose ada has a quota of 100 tokens a day, and the program with its files."""

    def __init__(self, edge: RunningEdge, lines: Path) -> None:
        self.edge, self.lines = edge, lines

    def ask(self, key: str = KEY) -> str:
        """Ask once, and let the journal have the line. Returns the code of an error."""
        answer = code(ask(self.edge, key))
        line = self.edge.logged().partition(": ")[2].strip()
        with self.lines.open("a") as file:
            file.write(f"{line}\n")
        return answer

    def spent(self) -> dict[str, str]:
        """Return HAProxy's map in memory."""
        rows = [row.split() for row in self.edge.admin(f"show map {self.edge.files.spent}").splitlines()]
        return {row[1]: row[2] for row in rows if row}


@pytest.fixture
def counted(start: Start, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    engine.streams = [Stream(usage=USED)]
    edge = start()
    folder = tmp_path / "bin"
    folder.mkdir()
    lines = journal.place(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    keys = Path(edge.files.keys)
    keys.write_text(f"# comment\n{HASH} ada///100\n")
    monkeypatch.setattr(edge_quota, "KEYS", keys)
    monkeypatch.setattr(edge_quota, "FOLDER", tmp_path)
    monkeypatch.setattr(edge_quota, "SOCKET", edge.files.admin_socket)
    return Counted(edge, lines)


def test_who_has_used_its_tokens_is_refused_until_midnight(
    counted: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edge_quota.main() == 0
    assert [counted.ask(), counted.ask()] == ["", ""]
    assert edge_quota.main() == 0
    midnight = (datetime.now() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert counted.spent() == {"ada": str(int(midnight.timestamp()))}
    assert counted.ask() == "429 quota_exceeded"
    assert counted.edge.ask("GET", "/v1/models").status == 200
    said = "<4>ada has used 120 tokens of today: its requests get a 429 until midnight\n"
    # The next run counts nothing twice, and says nothing again.
    assert edge_quota.main() == 0
    assert capsys.readouterr().out == said


def test_a_refusal_survives_a_restart_and_ends_with_a_larger_quota(counted: Counted) -> None:
    counted.ask()
    counted.ask()
    edge_quota.main()
    before = counted.edge.worker()
    counted.edge.reload()
    until(lambda: counted.edge.has_reloaded(before))
    assert code(ask(counted.edge, KEY)) == "429 quota_exceeded"
    counted.edge.restart()
    counted.edge.wait_for("demo", "UP")
    assert code(ask(counted.edge, KEY)) == "429 quota_exceeded"
    edge_quota.KEYS.write_text(f"{HASH} ada///121\n")
    edge_quota.main()
    assert counted.spent() == {}
    assert code(ask(counted.edge, KEY)) == ""


def test_the_sums_are_kept_while_no_edge_runs_and_begin_again_the_next_day(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ask()
    counted.ask()
    monkeypatch.setattr(edge_quota, "SOCKET", f"{edge_quota.SOCKET}.missing")
    assert edge_quota.main() == 0
    spent, sums = edge_quota.FOLDER / "spent.map", edge_quota.FOLDER / "tokens.json"
    assert spent.read_text().startswith("ada ")
    assert json.loads(sums.read_text()) | {"day": ""} == {"day": "", "tokens": {"ada": 120}, "cursor": "2"}
    sums.write_text(json.dumps({"day": "2020-01-01", "tokens": {"ada": 10**9}, "cursor": "2"}))
    counted.lines.write_text("")
    assert edge_quota.main() == 0
    assert spent.read_text() == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"day": 1}', '{"day": "TODAY", "tokens": [], "cursor": "1"}'])
def test_sums_that_cannot_be_read_are_counted_again(counted: Counted, text: str) -> None:
    counted.ask()
    counted.ask()
    (edge_quota.FOLDER / "tokens.json").write_text(text.replace("TODAY", str(datetime.now().date())))
    assert edge_quota.main() == 0
    assert list(counted.spent()) == ["ada"]


def test_a_journal_that_has_lost_the_last_line_is_counted_again(
    counted: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    counted.ask()
    counted.ask()
    edge_quota.main()
    one = counted.lines.read_text().splitlines()[0]
    counted.lines.write_text(f"{one}\n")
    assert edge_quota.main() == 0
    assert counted.spent() == {}
    capsys.readouterr()
    (counted.lines.parent / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert edge_quota.main() == 1
    assert "<4>the journal does not give the log of the edge" in capsys.readouterr().out


# What an engine answers -> the least and the most that it counts. A prompt of 4,000 bytes has 1,000 tokens or more.
TRUTH = {"prompt_tokens": 90_000, "completion_tokens": 2000}
WORDS = [Event(0.0, content="four words an event ") for _ in range(10)]
ANSWERS = {
    "plain": (Stream(body=json.dumps(document(TRUTH))), (92_000, 92_000)),
    "return_token_ids": (Stream(body=json.dumps(document(TRUTH, prompt_token_ids=[*range(9000)]))), (92_000, 92_000)),
    "no usage": (Stream(body=json.dumps(document())), (1000, 1200)),
    "a stream with usage": (Stream(WORDS, usage=TRUTH), (92_000, 92_000)),
    "a stream without usage": (Stream([Event(0.0, content="word ")] * 10), (1010, 1200)),
    "a stream of a drafter": (Stream(WORDS), (1050, 1300)),
    "an error": (Stream(status=400, body=json.dumps({"error": {}})), (0, 0)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_request_counts_what_it_costs(counted: Counted, engine: ScriptedEngine, name: str) -> None:
    """Or what its bytes cost, where the answer does not say it."""
    stream, (least, most) = ANSWERS[name]
    engine.streams = [stream]
    counted.edge.ask("POST", "/v1/chat/completions", {"model": "model", "stream": True, "messages": ["x" * 4000]})
    tokens: dict[str, int] = {}
    edge_quota.add(counted.edge.logged().partition(": ")[2], tokens)
    assert least <= tokens["ada"] <= most


# A line of the log -> whose tokens it has, and how many.
LINES = {
    "client=1.2.3.4 who=ada model=m path=/p in_tokens=3 out_tokens=4 events=9 sent_bytes=1": {"ada": 7},
    "client=1.2.3.4 who=ada model=m path=/p in_tokens=5 out_tokens=- events=- sent_bytes=1": {"ada": 5},
    # Lines of 0.1.0 have no text_bytes.
    "client=1.2.3.4 who=ada model=m path=/p status=200 in_tokens=- out_tokens=- events=9 sent_bytes=800 "
    "received_bytes=400 end=--": {"ada": 109},
    "client=1.2.3.4 who=ada model=m path=/p status=200 in_tokens=- out_tokens=- events=9 text_bytes=200 sent_bytes=800 "
    "received_bytes=400 end=CD": {"ada": 150},
    "client=1.2.3.4 who=ada model=m path=/p status=200 in_tokens=- out_tokens=- events=- text_bytes=- sent_bytes=800 "
    "received_bytes=400 end=--": {"ada": 300},
    # Its client went before the answer.
    "client=1.2.3.4 who=ada model=- path=/p status=-1 in_tokens=- out_tokens=- events=- text_bytes=- sent_bytes=0 "
    "received_bytes=400 end=CH": {"ada": 100},
    "client=1.2.3.4 who=ada model=m path=/p status=429 in_tokens=- out_tokens=- events=- sent_bytes=9 "
    "received_bytes=400 end=LR": {"ada": 0},
    "client=1.2.3.4 who=ada model=m path=/v1/models status=200 in_tokens=- out_tokens=- events=- sent_bytes=99 "
    "received_bytes=400 end=--": {"ada": 0},
    "client=1.2.3.4 who=- model=- path=- in_tokens=- out_tokens=- events=- sent_bytes=1": {"-": 0},
    "client=1.2.3.4 via=spark1 who=ada model=m path=/p status=200 sent_bytes=1": {},
    "[NOTICE] client=1.2.3.4 who=ada in_tokens=3 out_tokens=4 events=9 ": {},
    "Proxy edge_api started.": {},
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_log_counts_once(line: str) -> None:
    tokens: dict[str, int] = {}
    edge_quota.add(line, tokens)
    assert tokens == LINES[line]
