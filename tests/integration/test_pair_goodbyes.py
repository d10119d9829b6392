"""A pair whose peer is stopped in an orderly way, as by a reboot, has no failed start: it waits, and serves again. Real
supervisors on the loopback device; this test takes the place of systemd, which starts a rank again after its end."""

from __future__ import annotations

import json

import pytest
from test_pair_link import HEAD, WORKER, api, port, ranks, serving  # noqa: F401  fixtures

from fakes.rank_process import RankProcess
from vllm_spark.node.supervise import supervisor
from vllm_spark.node.unit_limits import MAX_STARTS
from waiting import until

Ranks = tuple[RankProcess, RankProcess]


def restarted(rank: RankProcess, number: int, port: int, api: str = "") -> None:  # noqa: F811
    own, peer = (WORKER, HEAD) if number else (HEAD, WORKER)
    rank.start(number, own, peer, port, api)


def both_serve(ranks: Ranks) -> None:  # noqa: F811
    until(lambda: [rank.state["state"] for rank in ranks] == ["serving", "serving"])


def goodbye(ranks: Ranks, number: int, port: int, api: str) -> None:  # noqa: F811
    """Stop a rank as a reboot of its Spark does, and start it again. The other one waits meanwhile."""
    leaving, staying = ranks[number], ranks[1 - number]
    leaving.end()
    assert leaving.status == supervisor.STOPPED
    until(lambda: staying.state["state"] == "wanted")
    assert staying.status is None
    restarted(leaving, number, port, api)
    both_serve(ranks)


def failure(ranks: Ranks) -> list[int | None]:  # noqa: F811
    """Let the head's container crash. Returns how both supervisors ended."""
    ranks[0].kill_container()
    until(lambda: all(rank.status is not None for rank in ranks))
    return [rank.status for rank in ranks]


@pytest.mark.parametrize("number", [0, 1])
def test_a_peer_that_reboots_six_times_in_an_hour_ends_no_pair(ranks: Ranks, port: int, api: str, number: int) -> None:  # noqa: F811
    serving(ranks, port, api)
    for _ in range(6):
        goodbye(ranks, number, port, api)
    # The rank that stayed has been one start for systemd, too.
    counted = json.loads((ranks[0].folder / "run" / "demo" / "lives.json").read_text())
    assert len(counted["times"]) == 1
    history = ranks[1 - number].folder / "states" / "demo.jsonl"

    def states() -> list[str]:
        return [json.loads(line)["state"] for line in history.read_text().splitlines()]

    # A state is written before its line of the history.
    until(lambda: states().count("serving") >= 7)
    assert states().count("serving") == 7
    assert "failed" not in states()


def test_five_failures_between_goodbyes_give_up(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    serving(ranks, port, api)
    for count in range(1, MAX_STARTS):
        goodbye(ranks, 1, port, api)
        assert failure(ranks) == [1, 1]
        assert ranks[0].state["state"] == "failed"
        assert ranks[0].state["last_end"] == "its container ended with status -9"
        for number, rank in enumerate(ranks):
            rank.restarted(count)
            restarted(rank, number, port, "" if number else api)
        both_serve(ranks)
    goodbye(ranks, 1, port, api)
    assert failure(ranks) == [supervisor.GAVE_UP, supervisor.GAVE_UP]
    for rank in ranks:
        assert rank.state["state"] == "gave up"
        assert rank.state["why"].startswith("5 starts within 60 min, the last ended because ")
