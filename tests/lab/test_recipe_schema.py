"""The gates of recipes/schema.json are those of the registry."""

from __future__ import annotations

import json

from lab.pages import recipe_schema


def test_the_schema_of_recipes_has_the_fields_of_the_gates() -> None:
    schema = json.loads(recipe_schema.FILE.read_text(encoding="utf-8"))
    assert schema["properties"]["gates"] == recipe_schema.gates_schema()
    assert recipe_schema.FILE.read_text(encoding="utf-8") == recipe_schema.text()
