"""Four ranks of one server: a head with a link to each worker. Real supervisors on the loopback device; this test takes
the place of systemd, which starts a rank again after its end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pair_goodbyes import SHUTDOWN
from test_pair_link import KEY, api, port  # noqa: F401  fixtures

from fakes.rank_process import RankProcess
from vllm_spark.node.supervise import attempt
from vllm_spark.node.unit_limits import MAX_STARTS
from waiting import until

Ranks = tuple[RankProcess, ...]
HOSTS = {f"spark{number}": f"127.0.0.{number}" for number in range(1, 5)}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """The head and three workers, not started."""
    for host in HOSTS:
        (tmp_path / host).mkdir()
    star = tuple(RankProcess(tmp_path / host, KEY) for host in HOSTS)
    yield star
    for rank in star:
        rank.end()


def start(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    for number, (rank, (host, address)) in enumerate(zip(ranks, HOSTS.items(), strict=True)):
        others = {name: own for name, own in HOSTS.items() if name != host}
        rank.start(number, address, others, port, "" if number else api)


def all_in(ranks: Ranks, state: str) -> None:
    """Start each rank that has ended, until all are in a state."""

    def reached() -> bool:
        ended = [rank.again() for rank in ranks]
        return not any(ended) and {rank.state["state"] for rank in ranks} == {state}

    until(reached)


def statuses(ranks: Ranks) -> set[int | None]:
    """Return how the supervisors ended, once all have."""
    until(lambda: all(rank.status is not None for rank in ranks))
    return {rank.status for rank in ranks}


def counts(ranks: Ranks) -> list[tuple[int, int]]:
    """Return of each rank how many starts have failed, and how many have ended from outside."""
    return [(len(rank.count["failures"]), rank.count["outside"]) for rank in ranks]


def test_all_ranks_have_one_start_and_one_end(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    start(ranks, port, api)
    all_in(ranks, "serving")
    assert len({rank.start_id for rank in ranks}) == 1
    ranks[2].kill_container()
    assert statuses(ranks) == {attempt.FAULT}
    assert len({json.dumps(rank.count["failures"]) for rank in ranks}) == 1
    why = ranks[2].state["why"]
    assert why.startswith("its container ended with status ")
    assert ranks[0].state["why"] == f"spark3 is lost: {why} (rank 2)"
    assert ranks[1].state["why"] == f"spark1 is lost: {ranks[0].state['why']} (rank 0)"
    all_in(ranks, "serving")
    assert counts(ranks) == [(1, 0)] * 4


def test_the_end_of_the_head_s_container_counts_once_for_all(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    start(ranks, port, api)
    all_in(ranks, "serving")
    ranks[0].kill_container()
    assert statuses(ranks) == {attempt.FAULT}
    assert counts(ranks) == [(1, 0)] * 4


def test_a_worker_that_shuts_down_is_no_failure_of_any(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    start(ranks, port, api)
    all_in(ranks, "serving")
    for command, text in SHUTDOWN.items():
        ranks[3].says(command, text)
    ranks[3].end()
    assert statuses(ranks[:3]) == {attempt.OVER}
    assert [rank.state["state"] for rank in ranks[:3]] == ["wanted"] * 3
    for command in SHUTDOWN:
        ranks[3].says(command, "")
    all_in(ranks, "serving")
    assert counts(ranks[:3]) == [(0, 1)] * 3


def test_a_silent_worker_is_the_reason_why_another_one_s_container_ends(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    """As if its Spark had no power: the engine of another rank notices it first."""
    start(ranks, port, api)
    all_in(ranks, "serving")
    assert ranks[3].process
    ranks[3].process.send_signal(signal.SIGSTOP)
    ranks[1].kill_container()
    assert statuses(ranks[:3]) == {attempt.OVER}
    assert ranks[0].state["why"].startswith("spark4 is lost: it does not answer")
    ranks[3].process.send_signal(signal.SIGCONT)
    all_in(ranks, "serving")
    assert {failures for failures, _ in counts(ranks)} == {0}


def test_a_killed_supervisor_ends_all(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    start(ranks, port, api)
    all_in(ranks, "serving")
    assert ranks[1].process
    ranks[1].process.kill()
    assert statuses((ranks[0], *ranks[2:])) == {attempt.OVER}
    all_in(ranks, "serving")


@pytest.mark.parametrize("differs", ["image", "launch"])
def test_one_rank_that_runs_something_else_stops_all_before_a_start(
    ranks: Ranks,
    port: int,  # noqa: F811
    api: str,  # noqa: F811
    differs: str,
) -> None:
    odd = ranks[2]
    if differs == "image":
        (odd.folder / "no-image").touch()
    else:
        odd.launch = "2f"
    start(ranks, port, api)
    why = f"spark3 and this Spark are not one deployment: {differs} is "
    until(lambda: str(ranks[0].state.get("why")).startswith(why))
    # The other workers say what the head waits for.
    until(lambda: all(str(rank.state.get("why")).startswith(f"spark1 is here: {why}") for rank in (ranks[1], ranks[3])))
    until(lambda: "spark1 and this Spark are not one deployment" in odd.state["why"])
    assert [rank.container_env for rank in ranks] == [""] * 4


def test_what_one_worker_knows_all_learn(ranks: Ranks, port: int, api: str) -> None:  # noqa: F811
    starts = ranks[3].folder / "starts"
    starts.mkdir()
    failures = [f"{number:02}" for number in range(MAX_STARTS)]
    count = {"era": 7, "failures": failures, "gave_up": "5 failed starts in a row"}
    (starts / "demo.json").write_text(json.dumps({"count": count}))
    start(ranks, port, api)
    all_in(ranks, "gave up")
    assert [rank.count["failures"] for rank in ranks] == [failures] * 4
    assert [rank.container_env for rank in ranks] == [""] * 4
    # A person acts on one Spark, and all begin anew.
    ranks[1].end()
    record = json.loads((ranks[1].folder / "starts" / "demo.json").read_text())
    (ranks[1].folder / "starts" / "demo.json").write_text(json.dumps({**record, "count": {"era": 8}}))
    all_in(ranks, "serving")
