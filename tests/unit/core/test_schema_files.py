"""Every schema file is a valid schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from vllm_spark.core import paths

FILES = sorted(
    file for folder in ("recipes", "src") for file in (paths.ROOT / folder).rglob("*.json") if "schema" in file.name
)


def test_the_schemas_are_found() -> None:
    assert {"schema.json", "lockfile.schema.json"} <= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_schema_file_is_a_valid_schema(file: Path) -> None:
    """A run does not check its own schemas: the check takes longer than reading the recipe."""
    Draft202012Validator.check_schema(json.loads(file.read_text(encoding="utf-8")))
