"""The catalogue: the output of `vllm-spark recipes`, and the sources and expectations of each recipe."""

from __future__ import annotations

import json

import pytest

from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.recipe import loader
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import catalogue

NAMES = list(loader.names([paths.RECIPES]))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_sources_and_a_reported_speed(name: str) -> None:
    document = loader.load(name).document
    assert document["sources"]
    silent = "no-speed-on-record" in [issue["id"] for issue in document.get("known_issues", [])]
    assert (catalogue.entry(document, Lock()).reported is None) == silent


def test_an_entry_names_missing_pins_and_a_lock_file_resolves_them() -> None:
    document = loader.load("gemma-4-31b-nvfp4").document
    document = {**document, "image": {"repository": "vllm/vllm-openai", "tag": "v0.21.0"}}
    assert catalogue.entry(document, Lock()).open == ("image vllm/vllm-openai:v0.21.0",)
    locked = Lock(images={"vllm/vllm-openai:v0.21.0": {"digest": f"sha256:{'5' * 64}"}})
    assert catalogue.entry(document, locked).locked


def test_the_readme_counts_the_recipes_and_the_pinned_ones() -> None:
    entries = [catalogue.entry(loader.load(name).document, Lock()) for name in NAMES]
    pinned = sum(entry.locked for entry in entries)
    assert (
        f"The catalogue has {len(entries)} recipes, {pinned} of them pinned." in (paths.ROOT / "README.md").read_text()
    )


def test_the_list_is_printed_as_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipes"]) == 0
    output = capsys.readouterr().out
    assert main.main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == sorted(NAMES)
    assert all(name in output for name in NAMES)


def test_the_example_of_openclaw_has_no_fallback_and_names_a_served_model() -> None:
    example = json.loads((paths.ROOT / "docs/examples/openclaw.json").read_text(encoding="utf-8"))
    chosen = example["agents"]["defaults"]["model"]
    assert chosen["fallbacks"] == []
    provider, _, served = chosen["primary"].partition("/")
    (listed,) = example["models"]["providers"][provider]["models"]
    assert listed["id"] == served
    assert served in {loader.load(name).document["model"]["served_name"] for name in NAMES}


def test_no_recipe_recommends_itself() -> None:
    """README's table of recommended recipes is derived from their figures and is the one place that recommends."""
    documents = [loader.load(name).document for name in loader.names([paths.RECIPES])]
    assert [one["name"] for one in documents if "recommended" in one["summary"]] == []
