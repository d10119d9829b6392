"""The form of the rows of operators that no fit has met. No test here makes a forecast of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.forecast import measured_rows
from lab.forecast.measured_rows import DOUBTFUL, TO_JUDGE, UNMET, WITHOUT_ACCEPTANCE, Configuration, Row
from vllm_spark.core import strict_yaml
from vllm_spark.sizing import layout

LARGE_MESSAGE_MIB = 16
SMALL_MESSAGE_BYTES = 65536


def _document(name: str) -> Any:
    return strict_yaml.load_own((UNMET / name).read_text(encoding="utf-8"))


def _operators(entries: list[Configuration], kind: str) -> set[str]:
    def counts(entry: Configuration, row: Row) -> bool:
        speed = bool(row.decode or row.total)
        return {
            "one Spark": speed and entry.tensor_parallel == 1 and not entry.drafter,
            "drafter": speed and bool(entry.drafter),
            "several Sparks": entry.tensor_parallel > 1,
            "first token": measured_rows.judges_first_token(entry, row),
            "depth of 8,000 tokens": row.prompt + row.depth >= 8000,
        }[kind]

    return {entry.operator for entry in entries if any(counts(entry, row) for row in entry.rows)}


@pytest.mark.slow
def test_no_unmet_operator_is_in_another_folder() -> None:
    unmet = {entry.operator for entry in measured_rows.configurations(*TO_JUDGE)}
    known = measured_rows.configurations(*measured_rows.FITTED, *measured_rows.NOT_FITTED)
    assert not unmet & {entry.operator for entry in known}


def test_the_unmet_rows_are_enough_to_judge() -> None:
    entries = measured_rows.configurations(UNMET)
    assert len({entry.operator for entry in entries}) >= 20
    assert sum(len(entry.rows) for entry in entries) >= 200


@pytest.mark.parametrize("kind", ["one Spark", "drafter", "first token", "depth of 8,000 tokens"])
def test_five_unmet_operators_have_each_kind_of_row(kind: str) -> None:
    assert len(_operators(measured_rows.configurations(UNMET), kind)) >= 5


def test_five_unmet_operators_of_all_folders_have_several_sparks() -> None:
    assert len(_operators(measured_rows.configurations(*TO_JUDGE), "several Sparks")) >= 5


@pytest.mark.parametrize("folder", TO_JUDGE, ids=str)
def test_an_unmet_folder_uses_each_of_its_protocols(folder: Path) -> None:
    entries = measured_rows.configurations(folder)
    assert {entry.protocol for entry in entries} == set(measured_rows.protocols(folder))


@pytest.mark.parametrize("entry", measured_rows.configurations(*TO_JUDGE), ids=lambda entry: entry.id)
def test_an_unmet_configuration_is_of_a_known_form(entry: Configuration) -> None:
    """Raises in `shape` and `widths` where a name is unknown."""
    assert entry.shape.family
    assert layout.widths(entry.layout)
    assert entry.kv in layout.WIDTHS
    assert bool(entry.drafter) == bool(entry.drafted)
    assert not entry.drafter or measured_rows.shape(entry.drafter)
    assert all(row.prompt > 0 and row.output > 0 and row.streams > 0 for row in entry.rows)


def test_ids_of_unmet_configurations_differ() -> None:
    names = [entry.id for entry in measured_rows.configurations(*TO_JUDGE)]
    assert len(names) == len(set(names))


def test_the_acceptance_of_a_drafter_is_stated_where_the_folder_says_so() -> None:
    """A first token does not depend on the acceptance."""
    for entry in measured_rows.configurations(UNMET, DOUBTFUL):
        decodes = any(row.decode or row.total for row in entry.rows)
        assert bool(entry.accepted) == bool(entry.drafter and decodes), entry.id
    for entry in measured_rows.configurations(WITHOUT_ACCEPTANCE):
        assert entry.drafter, entry.id
        assert not entry.accepted, entry.id


def test_public_all_reduces_are_of_small_and_large_messages() -> None:
    timings = _document("all_reduce.yaml")
    sizes = [size for call in timings["calls"] for size, _ in call["rows"] if size]
    assert sum(size <= SMALL_MESSAGE_BYTES for size in sizes) >= 5
    assert sum((entry["mib"] or 0) >= LARGE_MESSAGE_MIB for entry in timings["bandwidth"]) >= 5
    assert all(call["source"] and call["sparks"] > 1 for call in timings["calls"])
    assert all(microseconds > 0 for call in timings["calls"] for _, microseconds in call["rows"])


def test_public_starts_cover_the_batched_tokens() -> None:
    starts = _document("workspace.yaml")["starts"]
    assert {start["batched"] for start in starts} >= {2048, 4096, 8192, 16384, 32768, 65536}
    for start in starts:
        assert start["source"], start
        assert start["room"] > 0, start
        assert 0 < start["utilization"] < 1, start
        assert not start["architecture"] or measured_rows.shape(start["architecture"])


def test_some_models_were_measured_by_several_unmet_owners() -> None:
    models = _document("spread.yaml")
    assert all(owner["decode"] > 0 for model in models for owner in model["owners"])
    assert sum(len({owner["owner"].partition(",")[0] for owner in model["owners"]}) >= 3 for model in models) >= 4


def test_every_unmet_group_of_dropped_rows_has_a_reason() -> None:
    assert all(group["reason"] and group["ids"] for group in _document("dropped.yaml"))
