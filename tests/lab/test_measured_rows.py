"""The prediction against public rows, and against those of a second hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.forecast import evidence_rows, measured_rows, reported_speeds

KNOWN = (measured_rows.FOLDER, measured_rows.HELD_BACK, measured_rows.LATER)


def test_the_rows_of_a_second_hardware_are_inside_15_percent_after_one_calibration() -> None:
    """Streams and depth were not in the calibration. All tokens of a model without weights choose the same experts."""
    rows = list(evidence_rows.rows())
    assert len(rows) >= 60
    tested = reported_speeds.summary([row.error for row in rows if not row.fitted])
    assert tested.rows >= 25
    assert tested.share_inside >= 0.95
    everything = reported_speeds.summary([row.error for row in rows])
    assert set(evidence_rows.hardware()["rows"]) <= set(evidence_rows.hardware()["constants"])
    assert everything.mean <= 0.05
    assert everything.share_inside >= 0.95


@pytest.fixture(scope="module")
def errors() -> dict[str, measured_rows.Errors]:
    return measured_rows.errors(measured_rows.configurations())


def test_public_rows_are_near_their_prediction(errors: dict[str, measured_rows.Errors]) -> None:
    counted = {name: found for name, found in errors.items() if len(found.speed) >= 10}
    assert len(counted) >= 9
    assert sum(len(found.speed) for found in errors.values()) >= 700
    for name, found in counted.items():
        summary = reported_speeds.summary(found.speed)
        assert summary.mean <= 0.08, name
        assert summary.share_inside >= 0.85, name


def test_the_first_token_of_public_rows_is_near_its_prediction(errors: dict[str, measured_rows.Errors]) -> None:
    together = [error for found in errors.values() for error in found.first_token]
    assert len(together) >= 500
    assert sum(abs(error) <= 0.25 for error in together) / len(together) >= 0.8


def test_every_public_row_has_a_source_and_a_protocol() -> None:
    for entry in measured_rows.configurations():
        assert entry.source
        assert measured_rows.protocols()[entry.protocol]
        assert entry.rows


def test_the_halves_of_the_gathered_rows_share_no_operator_and_met_no_fit() -> None:
    halves = [measured_rows.configurations(folder) for folder in measured_rows.GATHERED_HALVES.values()]
    known = {entry.operator for folder in KNOWN for entry in measured_rows.configurations(folder)}
    first, second = ({entry.operator for entry in entries} for entries in halves)
    assert len(first | second) >= 12
    assert not first & second
    assert not (first | second) & known
    assert all(sum(len(entry.rows) for entry in entries) >= 120 for entries in halves)


@pytest.mark.parametrize("folder", measured_rows.GATHERED_HALVES.values(), ids=str)
def test_every_gathered_row_has_a_source_and_a_protocol(folder: Path) -> None:
    entries = measured_rows.configurations(folder)
    assert entries
    assert all(entry.source and measured_rows.protocols(folder)[entry.protocol] for entry in entries)


@pytest.mark.parametrize("folder", [*KNOWN, *measured_rows.GATHERED_HALVES.values()])
def test_every_row_has_a_figure_to_judge(folder: Path) -> None:
    empty = [
        (entry.id, row)
        for entry in measured_rows.configurations(folder)
        for row in entry.rows
        if not (row.decode or row.total or row.first_token_ms)
    ]
    assert not empty


def test_totals_of_many_streams_are_near_those_of_a_public_page() -> None:
    """The page plots one FP8 model on one Spark and on two, at 2 to 64 streams, by the definition of llama-benchy."""
    configurations = [*measured_rows.configurations(), *measured_rows.configurations(measured_rows.HELD_BACK)]
    found = [
        measured_rows.speed_error(row, entry.served(row))
        for entry in configurations
        if "gemma4-26b-topology" in entry.source
        for row in entry.rows
        if row.streams > 1
    ]
    assert len(found) == 12
    assert all(error is not None and abs(error) <= 0.20 for error in found)


def test_every_public_group_of_dropped_rows_has_a_reason() -> None:
    assert all(group["reason"] and group["ids"] for group in measured_rows.dropped())
