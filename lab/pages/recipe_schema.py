"""recipes/schema.json with the properties of `gates` as the gates define them. The rest of the file is hand-written."""

from __future__ import annotations

import json
from typing import Any

from vllm_spark.core import paths
from vllm_spark.verify import registry

FILE = paths.RECIPES / "schema.json"

START = '"gates": '
# The object `gates` is a property of the recipe, two levels deep.
INDENT = 4
LINE_LENGTH = 120


def text() -> str:
    """Return the text of the file with its object `gates` generated."""
    current = FILE.read_text(encoding="utf-8")
    start = current.index(START) + len(START)
    _, end = json.JSONDecoder().raw_decode(current, start)
    return current[:start] + format_json(gates_schema(), INDENT) + current[end:]


def gates_schema() -> dict[str, Any]:
    """Return the JSON schema of `gates` in a recipe: the fields of every gate, in the order of the gates."""
    fields: dict[str, Any] = {}
    for gate in registry.GATES:
        fields.update(gate.more_fields)
        if gate.schema is not None:
            fields[gate.name] = gate.schema
    return {"type": "object", "additionalProperties": False, "required": ["ready"], "properties": fields}


def format_json(value: Any, indent: int, key: str = "") -> str:
    """Return JSON whose objects and lists are on one line if they fit. `indent` and `key` precede the value."""
    line = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, dict) and any(isinstance(part, dict) for part in value.values())
    if not isinstance(value, dict | list) or (not nested and indent + len(key) + len(line) <= LINE_LENGTH):
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        keys = {name: json.dumps(name, ensure_ascii=False) + ": " for name in value}
        parts = [f"{pad}{keys[name]}{format_json(part, indent + 2, keys[name])}" for name, part in value.items()]
    else:
        parts = [f"{pad}{format_json(part, indent + 2)}" for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(parts) + f"\n{' ' * indent}{last}"
