"""A family sets the flags that the engine's project recommends, or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.authoring import family
from vllm_spark.authoring.composing import PARSERS
from vllm_spark.authoring.family import Facts
from vllm_spark.core import documents, paths
from vllm_spark.core.types import Document

OFFICIAL: list[dict[str, Any]] = documents.read_yaml(paths.ROOT / "tests" / "data" / "official-flags.yml")


def known(row: Document) -> Document:
    return family.of_config(row["model"], {"model_type": row["model_type"]})


def flags(row: Document, facts: Facts) -> dict[str, Any]:
    """Return the flags of a family for a model: its parsers, and its arguments."""
    found: dict[str, Any] = {}
    for kind, flag in PARSERS.items():
        rows = known(row).get("parsers", {}).get(kind, ())
        parser = (
            family.parser(rows, row["template"], facts.model_types) if "template" in row else next(iter(rows), None)
        )
        found |= {flag: parser["name"]} if parser else {}
    for args in family.rows(known(row), "args", facts):
        found |= args["set"]
    return found


def drafter(row: Document, facts: Facts) -> dict[str, Any]:
    """Return --speculative-config of the family's first drafter, without where its files are."""
    first = next(iter(family.rows(known(row), "drafters", facts)), None)
    return {"num_speculative_tokens": first["tokens"], **first.get("config", {})} if first else {}


@pytest.mark.parametrize("row", OFFICIAL, ids=lambda row: row["model"])
def test_a_family_says_what_the_official_recipe_says(row: dict[str, Any]) -> None:
    image = row.get("image", "vllm/vllm-openai:v0.33.0")
    facts = Facts(row["model"], [row["model_type"]], row["widths"], row.get("nodes", 1), own_head=True, image=image)
    found, differs = flags(row, facts), row.get("differs", {})
    names = row["flags"].keys() | found.keys()
    assert {name for name in names if found.get(name) != row["flags"].get(name)} == differs.keys() - {"drafter"}
    assert drafter(row, facts) == row.get("drafter", {})
