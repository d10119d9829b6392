"""The table of README.md: which recipe is named for a use."""

from __future__ import annotations

from typing import Any

import pytest

from lab.pages import where_to_begin
from vllm_spark.core import paths
from vllm_spark.sizing import uses
from vllm_spark.sizing.uses import Use

CHAT = Use("chat")


def recipe(name: str, *figures: tuple[int, float], nodes: int = 1, gates: tuple[str, ...] = ()) -> dict[str, Any]:
    expected = [
        {"metric": "decode", "value": value, "unit": "tok/s", "load": "l", "source": "s", "cell": {"streams": streams}}
        for streams, value in figures
    ]
    return {
        "name": name,
        "model": {"repository": "owner/name"},
        "topology": {"nodes": nodes},
        "gates": {gate: {} for gate in gates},
        "expected": expected,
    }


def names(text: str) -> list[str]:
    return [line.split("|")[3].strip().strip("`") for line in text.splitlines()[2:]]


def test_the_fastest_recipe_of_a_use_is_named() -> None:
    documents = [recipe("slow", (1, 10), (8, 90)), recipe("fast", (1, 20), (8, 60))]
    text = where_to_begin.written(documents, [CHAT, Use("many", streams=8)])
    assert names(text) == ["fast", "slow"]
    assert "| one Spark | chat | `fast` | 20 | l | s |" in text


def test_uses_with_one_recipe_and_figure_share_a_row() -> None:
    documents = [recipe("one", (1, 20), (8, 90), gates=("vision",))]
    text = where_to_begin.written(documents, [CHAT, Use("pictures", gates=("vision",)), Use("many", streams=8)])
    assert names(text) == ["one", "one"]
    assert "| one Spark | chat, pictures | `one` | 20 |" in text
    assert "| one Spark | many | `one` | 90 |" in text


def test_a_use_needs_its_gates() -> None:
    documents = [recipe("blind", (1, 20)), recipe("seeing", (1, 10), gates=("vision", "tools"))]
    assert names(where_to_begin.written(documents, [Use("pictures", gates=("vision",))])) == ["seeing"]


def test_one_and_two_sparks_have_rows_of_their_own() -> None:
    documents = [recipe("one", (1, 20)), recipe("pair", (1, 10), nodes=2)]
    assert names(where_to_begin.written(documents, [CHAT])) == ["one", "pair"]


def test_a_use_without_a_figure_has_no_row() -> None:
    assert names(where_to_begin.written([recipe("quiet"), recipe("others", (4, 30))], [CHAT])) == []


def test_only_decode_speeds_count() -> None:
    document = recipe("one", (1, 20))
    document["expected"].insert(0, {**document["expected"][0], "metric": "prefill", "value": 5000})
    assert uses.figure_of(document, 1) == document["expected"][1]


def test_a_readme_without_its_marks_is_named() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        where_to_begin.readme(f"# Title\n{where_to_begin.BEGIN}\n")


def test_the_readme_has_the_table_of_the_catalogue() -> None:
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert where_to_begin.readme(text) == text
    assert names(where_to_begin.written(where_to_begin.pinned()))[0] in text
    # An unpinned recipe is no place to begin.
    assert "gemma-4-26b-a4b-nvfp4-patched" not in {one["name"] for one in where_to_begin.pinned()}
