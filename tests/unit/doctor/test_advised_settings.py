"""Settings that a text advises: the fixes of the doctor, of known issues, and the pages of symptoms. `check` takes each
one: the first advice for too little cache was a larger share, and an owner's Spark rebooted after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import verb_documents
from vllm_spark.core import json_output, paths, strict_yaml
from vllm_spark.recipe import known_issues, loader
from vllm_spark.recipe.loader import Recipe

# A setting, and the value behind it: `X: VALUE`, or `X … to "VALUE"`.
SETTING = re.compile(
    r"(?P<block>\bargs|\benv|\bmemory)\.(?P<name>[A-Za-z_][\w-]*)`?"
    r"(?:: `?\"?(?P<value>[\w-][\w./-]*)|(?: of the (?:deployment|recipe))? to \"(?P<quoted>[^\"]+)\")?"
)
VERB = re.compile(r"(?i)\b(raise|lower|remove)\b")
OLDER = re.compile(r"before vLLM 0\.22")
# Recipes that have what is lowered: a share alone, and bytes with a share that is only asked for.
RECIPES = ("gemma-4-26b-a4b-nvfp4-mtp", "deepseek-v4-flash-tp2")
# Numbers as far down, and as far up, as somebody who follows the text may go.
LOWERED = {"utilization": 0.1, "kv_cache_bytes": 1 << 30, "loading_peak_bytes": 1 << 30}
RAISED = {"utilization": 0.95, "kv_cache_bytes": 1 << 40}
# Pages name these of files, or of a setting in words.
NO_SETTINGS = ("md", "yml", "json")


def texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of every advice, and of the examples of documents for programs."""
    for verb in json_output.DOCUMENTS:
        yield from fixes(verb_documents.example(verb), verb)
    for name in ("signatures.yml", "families.yml"):
        yield from fixes(strict_yaml.load_own((paths.ROOT / "src/vllm_spark/doctor" / name).read_text()), name)
    yield from ((issue.id, issue.instead) for issue in known_issues.load())
    for file in sorted((paths.ROOT / "docs" / "runbooks").glob("*.md")):
        yield file.name, file.read_text().partition("\n## Fix\n")[2].partition("\n## ")[0]


def fixes(node: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each value of a key `fix`, with the id above it."""
    if isinstance(node, dict):
        place = str(node.get("id", place))
        for key, value in node.items():
            yield from [(place, value)] if key == "fix" and isinstance(value, str) else fixes(value, place)
    elif isinstance(node, list):
        for value in node:
            yield from fixes(value, place)


def advised() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (place, version of the engine or an empty text, overrides) of each setting with a value or a direction."""
    for place, text in texts():
        for clause in re.split(r"(?<=[.;]) |\n\n|\n- ", " ".join(line.strip() for line in text.splitlines())):
            for match in SETTING.finditer(clause):
                block, name = match["block"], match["name"]
                before = clause[: match.start()]
                verbs = VERB.findall(before)
                value = match["value"] or match["quoted"]
                if name in NO_SETTINGS or not (value or verbs):
                    continue
                version = "0.21.0" if OLDER.search(before[-40:]) else ""
                yield place, version, {block: {name: value_of(value, verbs, block, name)}}


def value_of(value: str | None, verbs: list[str], block: str, name: str) -> Any:
    if value is not None:
        return value if block == "env" else strict_yaml.load_own(value.rstrip(".,"))
    match verbs[-1].lower():
        case "lower":
            return LOWERED.get(name, 1)
        case "raise":
            return RAISED.get(name, 1 << 20)
    return None


def refused(recipe: Recipe, overrides: dict[str, Any]) -> list[str]:
    """Return what `check` says of a recipe with a setting that it did not say before."""
    document = loader.merged(recipe, overrides)
    faults = [fault.what for fault in loader.merged_faults(document, overrides)]
    before = {refusal.id for refusal in known_issues.refusals(known_issues.of_closed(recipe.document), ())}
    after = known_issues.refusals(known_issues.of_closed(document), ())
    return faults or [refusal.what for refusal in after if refusal.id not in before]


ADVISED = list(advised())


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("place", "version", "overrides"), ADVISED, ids=[f"{row[0]}-{row[2]}" for row in ADVISED])
def test_check_takes_what_a_text_advises(place: str, version: str, overrides: dict[str, Any], name: str) -> None:
    recipe = loader.load(name)
    if version:
        recipe = Recipe({**recipe.document, "engine": {"version": version}, "args": {}, "env": {}})
    assert refused(recipe, overrides) == []


def test_a_larger_share_is_what_check_refuses() -> None:
    """What the two fixes for too little cache advised."""
    [what] = refused(loader.load(RECIPES[0]), {"memory": {"utilization": RAISED["utilization"]}})
    assert "a utilisation of 0.80 reserved 97 GB" in what


def test_settings_are_found_in_the_texts() -> None:
    places = {place for place, _, _ in ADVISED}
    assert {"kv-cache-too-small", "no-kv-cache", "out-of-memory-killed", "engine-memory.md", "swap.md"} <= places
    assert len(ADVISED) > 50
