"""The starts of a pair: which ends count as failed, and that both ranks give up. Real supervisors on the loopback
device; this test takes the place of systemd, which starts a rank again after its end."""

from __future__ import annotations

import json

import pytest
from test_pair_link import HEAD, WORKER, api, port, ranks, serving  # noqa: F401  fixtures

from fakes.rank_process import RankProcess
from vllm_spark.node.supervise import attempt
from vllm_spark.node.unit_limits import MAX_STARTS
from waiting import until

Ranks = tuple[RankProcess, RankProcess]
SHUTDOWN = {"list-jobs": "4711 vllm@demo.service stop running\n", "is-system-running": "stopping\n"}


def both(ranks: Ranks, state: str) -> None:  # noqa: F811
    """Start each rank that has ended, until both are in a state."""

    def reached() -> bool:
        ended = [rank.again() for rank in ranks]
        return not any(ended) and {rank.state["state"] for rank in ranks} == {state}

    until(reached)


def goodbye(ranks: Ranks, number: int) -> None:  # noqa: F811
    """Stop a rank as a reboot of its Spark does, and let both serve again."""
    leaving, staying = ranks[number], ranks[1 - number]
    for command, text in SHUTDOWN.items():
        leaving.says(command, text)
    leaving.end()
    assert leaving.status == attempt.STOPPED
    until(lambda: staying.status is not None)
    assert staying.status == attempt.OVER
    assert staying.state["state"] == "wanted"
    why = f"other is lost: it was stopped: its Spark shuts down (rank {number}); it starts again with other"
    assert staying.state["last_end"] == why
    for command in SHUTDOWN:
        leaving.says(command, "")
    both(ranks, "serving")


def failure(ranks: Ranks, number: int = 0) -> None:  # noqa: F811
    """Let the container of a rank crash, and wait for both supervisors."""
    ranks[number].kill_container()
    until(lambda: all(rank.status is not None for rank in ranks))
    assert [rank.status for rank in ranks] == [attempt.FAULT] * 2


def counts(ranks: Ranks) -> list[tuple[int, int]]:  # noqa: F811
    """Return of each rank how many starts have failed, and how many have ended from outside."""
    return [(len(rank.count["failures"]), rank.count["outside"]) for rank in ranks]


@pytest.mark.parametrize("number", [0, 1])
def test_a_peer_that_reboots_six_times_in_an_hour_ends_no_pair(ranks: Ranks, port: int, api: str, number: int) -> None:  # noqa: F811
    serving(ranks, port, api)
    for _ in range(6):
        assert ranks[0].start_id == ranks[1].start_id
        goodbye(ranks, number)
    # The Spark that goes down writes its end with the unit.
    assert counts(ranks)[1 - number] == (0, 6)
    history = ranks[1 - number].folder / "states" / "demo.jsonl"

    def states() -> list[str]:
        return [json.loads(line)["state"] for line in history.read_text().splitlines()]

    # A state is written before its line of the history.
    until(lambda: states().count("serving") >= 7)
    assert states().count("serving") == 7
    assert "failed" not in states()


def test_five_failures_between_goodbyes_give_up(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    serving(ranks, port, api)
    for _ in range(1, MAX_STARTS):
        goodbye(ranks, 1)
        failure(ranks)
        assert [rank.state["state"] for rank in ranks] == ["failed", "failed"]
        assert ranks[0].state["last_end"] == "its container ended with status -9"
        both(ranks, "serving")
    assert counts(ranks) == [(4, 4)] * 2
    ranks[1].kill_container()
    both(ranks, "gave up")
    why = "5 failed starts in a row, the last ended because "
    for rank in ranks:
        assert rank.status is None
        assert rank.state["why"].startswith(why)
        assert f"vllm-spark: giving up: {why}" in rank.journal


def given_up(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    """Let both ranks give up."""
    serving(ranks, port, api)
    for _ in range(1, MAX_STARTS):
        failure(ranks)
        both(ranks, "serving")
    ranks[0].kill_container()
    both(ranks, "gave up")


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_was_away_hears_that_the_pair_gave_up(ranks: Ranks, port: int, api: str, number: int) -> None:  # noqa: F811
    given_up(ranks, port, api)
    away = ranks[number]
    away.end()
    record = away.folder / "starts" / "demo.json"
    document = json.loads(record.read_text())
    # As if it had lost its power before the last start failed.
    document["count"] |= {"gave_up": "", "failures": document["count"]["failures"][:4]}
    record.write_text(json.dumps(document))
    away.again()
    until(lambda: away.count == ranks[1 - number].count)
    until(lambda: away.journal.count("vllm-spark: giving up: ") == 2)
    assert away.state["state"] == "gave up"


@pytest.mark.parametrize("number", [0, 1])
def test_a_person_who_starts_one_rank_starts_both(ranks: Ranks, port: int, api: str, number: int) -> None:  # noqa: F811
    given_up(ranks, port, api)
    ranks[number].end()
    record = ranks[number].folder / "starts" / "demo.json"
    # As the unit writes after systemctl restart.
    record.write_text(json.dumps({"count": {"era": 1}}))
    both(ranks, "serving")
    assert counts(ranks) == [(0, 0)] * 2


def test_ray_that_does_not_start_in_its_own_time_starts_again(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    head, worker = ranks
    slow = "Exception: The current node timed out during startup. This could happen because some of the raylet failed"
    (worker.folder / "etc" / "demo" / "gates.json").write_text('{"deadline_s": 600}')
    worker.says("--quiet", f"INFO start\n{slow}\n")
    head.start(0, HEAD, WORKER, port, f"{HEAD}:1")  # its API does not answer
    worker.words = ["RAY_ADDRESS=10.0.0.1:1"]
    worker.start(1, WORKER, HEAD, port)
    until(lambda: worker.container_env)
    start = worker.start_id
    for nth in ("second", "third"):
        (worker.folder / "seen.env").unlink()
        worker.kill_container()
        until(lambda: worker.container_env)
        until(lambda nth=nth: f"vllm-spark: the start of rank 1 failed: {slow}; {nth} try" in worker.journal)
    assert (worker.start_id, worker.count["failures"], head.status) == (start, [], None)
    # The engine of the head is told to serve, so what ends now has another reason.
    worker.says("--quiet", "")
    worker.kill_container()
    until(lambda: head.status == worker.status == attempt.FAULT)
    assert worker.count["failures"] == head.count["failures"] == [start]
