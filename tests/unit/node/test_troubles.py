"""What the owner of a Spark is told: tests/data/troubles.yml, and the texts of the messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.node import delivery, troubles
from vllm_spark.node.deployment_state import State
from vllm_spark.node.troubles import Deployment, Look, Memory, Message

CASES = {case["name"]: case for case in yaml.load((DATA / "troubles.yml").read_text(), yaml.CSafeLoader)}
# Epoch seconds of the minute 0 of every case: 2027-01-15 08:00 UTC.
BEGIN = 1_800_000_000.0
LAST_MINUTES = 60


def at(minute: float) -> float:
    return BEGIN + 60 * minute


def state_of(row: dict[str, Any], minute: int) -> State:
    state, _, why = row["state"].partition(": ")
    written = not row.get("unwritten")
    since = at(row.get("since", minute)) if written else 0.0
    peers = row.get("peers", [])
    return State(state=state, why=why, since=since, last_end="", peers=peers, start="", failed=0, written=written)


def looks_of(rows: dict[int, dict[str, Any]]) -> Iterator[tuple[int, Look]]:
    """Yield (minute, what is seen) for each minute of a case."""
    ends = [*list(rows)[1:], max(rows) + LAST_MINUTES]
    for (begin, row), end in zip(rows.items(), ends, strict=True):
        state, days = state_of(row, begin), row.get("certificate")
        for minute in range(begin, end):
            hangs = [(at(row["hang"]), "it hung: no token")] if row.get("hang") is not None and minute == begin else []
            chat = Deployment("chat", state, rank=row.get("rank", 0), deadline_s=900, hangs=hangs)
            edge, certificate_end = row.get("edge"), days and at(minute) + days * 86400
            others = {"spark2": row["spark2"]} if "spark2" in row else {}
            keys = row.get("alert")
            alerts = (
                None if keys is None else {key: Message("alert", key, "", at(minute), fix="see it") for key in keys}
            )
            held = row.get("held", False)
            yield minute, Look("spark1", at(minute), at(-9), held, [chat], edge, certificate_end, others, alerts)


def told_in(rows: dict[int, dict[str, Any]], memory: Memory) -> Iterator[tuple[int, Message]]:
    for minute, look in looks_of(rows):
        # What is kept on the disk is JSON.
        memory = Memory(**json.loads(json.dumps(asdict(memory))))
        yield from ((minute, message) for message in troubles.judge(look, memory))


@pytest.mark.parametrize("name", CASES)
def test_an_owner_is_told_this_and_nothing_else(name: str) -> None:
    told = [*told_in(CASES[name]["looks"], Memory(looked=at(-1)))]
    words = [f"{minute} {message.event}{' over' if message.resolved else ''}" for minute, message in told]
    assert words == CASES[name]["told"]


def test_every_event_is_in_a_case() -> None:
    told = {word.split()[1] for case in CASES.values() for word in case["told"]}
    assert told == set(troubles.FIXES)


def message_of(name: str) -> Message:
    return next(told_in(CASES[name]["looks"], Memory(looked=at(-1))))[1]


@pytest.mark.parametrize(
    ("name", "what", "text"),
    [
        (
            "a server that gave up is told once, and its end",
            "chat on spark1 gave up",
            "Since 2027-01-15 08:05 UTC. Why: 5 starts within 60 min. Fix: `vllm-spark collect -l spark1` has the "
            "cause; `vllm-spark deploy` starts it again.",
        ),
        (
            "a rank that is lost for longer",
            "chat on spark1 waits for spark2",
            "Since 2027-01-15 08:05 UTC. Why: wanted: it waits for spark2. Fix: look at the power and the cable of "
            "spark2; `vllm-spark status` shows both.",
        ),
        (
            "the certificate ends soon, and is renewed",
            "the certificate of the edge of spark1 ends on 2027-02-13",
            "Since 2027-01-15 08:05 UTC. Why: clients refuse the edge after its end. Fix: `vllm-spark deploy` renews "
            "it; replace a certificate of your own first.",
        ),
    ],
)
def test_a_message_says_what_where_since_when_why_and_what_to_type(
    name: str, what: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    message = message_of(name)
    assert (message.what, message.text) == (what, text)
    assert delivery.document(message)["text"] == f"{what}. {text}"


def test_the_time_without_power_does_not_count() -> None:
    """The edge was stopped by a shutdown, or the server loaded when the power went."""
    memory = Memory(looked=at(-1))
    loading = Deployment("chat", state_of({"state": "loading"}, 0))
    stopped = "vllm-edge.service is inactive"
    assert [*troubles.judge(Look("spark1", at(0), at(-9), False, [loading], stopped), memory)] == []
    assert [*troubles.judge(Look("spark1", at(600), at(599), False, [loading], stopped), memory)] == []
    assert memory.bad_since == {"vllm@chat": at(600), "edge-down": at(600)}
    assert [
        one.event for one in troubles.judge(Look("spark1", at(602), at(599), False, [loading], stopped), memory)
    ] == ["edge-down"]


def test_a_trouble_of_a_deployment_that_was_removed_ends_without_a_word() -> None:
    memory = Memory(looked=at(-1))
    assert [message.event for _, message in told_in({0: {"state": "gave up"}}, memory)] == ["gave-up"]
    memory.told = {"vllm@chat": ("gave-up", at(0))}
    assert [*troubles.judge(Look("spark1", at(1)), memory)] == []
    assert memory.told == {}


def test_an_event_of_another_release_is_no_obstacle() -> None:
    memory = Memory(looked=at(-1), told={"vllm@chat": ("flooded", at(-5))})
    assert [message.event for _, message in told_in({0: {"state": "gave up"}}, memory)] == ["gave-up"]
