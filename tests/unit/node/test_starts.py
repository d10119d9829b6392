"""The count of starts: what counts, what is forgotten, and that two ranks come to the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from vllm_spark.node import starts
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.starts import Count, Moment, Record
from vllm_spark.node.unit_limits import LONGEST_PAUSE_S, MAX_STARTS

DAY = 1.7e9


def at(seconds: float, boot: str = "first") -> Moment:
    return Moment(boot, DAY + seconds, seconds)


def run(start: str, record: Record | None = None, boot: str = "first", seconds: float = 0.0) -> Record:
    return starts.begun(record or Record(boot=boot), start, at(seconds, boot))


def booted(record: Record, boot: str, seconds: float, with_boot: bool = True) -> Record:
    return starts.unit_begins(record, at(seconds, boot), with_boot=with_boot, spark="this Spark")


def test_five_failures_in_a_row_give_up_however_long_they_take() -> None:
    record = Record()
    for number in range(MAX_STARTS):
        assert record.count.gave_up == ""
        record = starts.failed(run(str(number), record, seconds=number * 5000.0), f"status {number}")
        # An end is written once.
        assert starts.failed(record, "again") == record
    assert record.count.gave_up == "5 failed starts in a row, the last ended because status 4"


def test_a_start_that_served_long_enough_forgets_what_failed_before_and_is_no_failure() -> None:
    record = starts.failed(run("a"), "why")
    record = starts.good(run("b", record))
    assert (record.count, starts.good(record)) == (Count(era=1), record)
    assert starts.failed(record, "it hung").count == Count(era=1)


def test_an_end_from_outside_counts_nothing_and_each_pause_is_longer() -> None:
    record, pauses = Record(), []
    for number in range(12):
        record = starts.left(run(str(number), record), at(number))
        pauses.append(starts.pause_s(record, at(number)))
    assert record.count.failures == ()
    assert pauses[:4] == [5, 10, 20, 40]
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE_S
    # The pause is counted from the end, and a clock that was set back makes it no longer.
    assert starts.pause_s(record, at(11 + 590)) == 10
    assert starts.pause_s(record, at(5000)) == 0
    assert starts.pause_s(record, at(-5000)) == LONGEST_PAUSE_S


def test_a_spark_that_goes_down_twice_within_an_hour_does_not_start_it_at_boot() -> None:
    once = booted(run("a"), "second", 600)
    assert (once.count.gave_up, list(once.count.deaths)) == ("", ["a"])
    twice = booted(run("b", once, "second", 700), "third", 3000)
    assert twice.count.gave_up == (
        "not started at boot, because this Spark went down without a shutdown 2 times within 60 min, each time before "
        "the model had served for 5 min"
    )
    # It stays so over the next boot, and a person starts it.
    again = booted(twice, "fourth", 4000)
    assert again.count == twice.count
    assert booted(again, "fourth", 4100).count == Count(era=1)
    # A deployment that does not start with the boot is started by a person.
    assert booted(twice, "fourth", 4000, with_boot=False).count == Count(era=1)


def test_other_power_cuts_bar_nothing() -> None:
    once = booted(run("a"), "second", 600)
    assert booted(run("b", once, "second", 4000), "third", 4300).count.gave_up == ""
    served = starts.good(run("b", once, "second", 700))
    assert booted(served, "third", 3000).count.deaths == {}
    ended = starts.left(run("b", once, "second", 700), at(800))
    assert booted(ended, "third", 3000).count.deaths == once.count.deaths


def test_what_systemd_begins_by_itself_is_no_act_of_a_person() -> None:
    record = starts.gives_up(Record(boot="first"), "why")
    restarted = starts.unit_begins(starts.replace(record, again=True), at(5), with_boot=True, spark="this Spark")
    assert (restarted.count.gave_up, restarted.again) == ("why", False)
    assert booted(restarted, "first", 9).count == Count(era=1)


def test_a_unit_that_was_killed_with_its_program_has_failed() -> None:
    assert booted(run("a"), "first", 9).count.failures == ("a",)


COUNTS = [
    Count(),
    Count(1),
    Count(1, ("a", "b"), {"c": DAY}, 2),
    Count(1, ("b", "d"), {}, 5),
    Count(1, ("a",), {}, 0, "why"),
    Count(1, (), {"d": DAY + 600}, 0),
    Count(2, ("z",)),
]


@pytest.mark.parametrize("one", COUNTS)
@pytest.mark.parametrize("other", COUNTS)
def test_two_ranks_come_to_the_same_count_in_any_order(one: Count, other: Count) -> None:
    both = one.merged(other)
    assert both == other.merged(one) == both.merged(one) == both.merged(other)
    for third in COUNTS:
        left, right = both.merged(third), one.merged(other.merged(third))
        # Of two reasons one is enough.
        assert bool(left.gave_up) == bool(right.gave_up)
        assert starts.replace(left, gave_up="") == starts.replace(right, gave_up="")


def test_a_later_era_knows_nothing_of_the_former() -> None:
    assert COUNTS[4].merged(COUNTS[6]) == COUNTS[6]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "run").mkdir()
    return Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))


def test_a_record_is_read_as_it_was_written(places: Places) -> None:
    written = starts.change("demo", places, lambda old: starts.left(run("a", old), at(3)))
    assert starts.read("demo", places) == written
    assert written.start
    assert written.start.ended


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"count": 1, "start": 2}', '{"count": {"era": -1, "failures": 3, "deaths": [1]}}',
        '{"count": {"era": true, "failures": [1, null], "deaths": {"a": "b"}, "outside": "x"}, "start": {"id": 5}}',
        '{"boot": 1, "paused_from": "x", "again": 1}',
    ],
)  # fmt: skip
def test_a_broken_record_is_an_empty_one(content: str, places: Places) -> None:
    path = Path(places.starts_of("demo"))
    path.parent.mkdir()
    path.write_text(content)
    record = starts.read("demo", places)
    assert (record.count, record.id) == (Count(), "")


def test_a_peer_cannot_make_a_record_grow(places: Places) -> None:
    count = starts.count_of(
        {"failures": [str(n) * 99 for n in range(999)], "deaths": {str(n): 1.0 for n in range(999)}}
    )
    assert len(json.dumps(dataclasses.asdict(count))) < 2000
    assert len(starts.count_of({"gave_up": "x\n" * 9999}).gave_up) < 410


def test_a_record_that_cannot_be_written_ends_no_server(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    Path(places.starts).write_text("a file in its place")
    assert starts.change("demo", places, lambda old: run("a", old)).id == "a"
    assert "<4>vllm-spark: the starts of deployment demo are not counted: " in capsys.readouterr().err


def test_a_boot_has_a_name_of_its_own(places: Places) -> None:
    first = starts.moment(places)
    assert starts.moment(places).boot == first.boot != ""
    Path(places.run, "boot").unlink()
    assert starts.moment(places).boot != first.boot
