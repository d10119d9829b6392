"""JSON-schema validation that names file, path, value and what was expected, every fault at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

# A value longer than this is cut in a message: an operator needs to find it, not to read it.
SHOWN_VALUE_LENGTH = 80


@lru_cache
def validator(schema: Path) -> Validator:
    """The validator of a schema file, checked against the metaschema once."""
    document = json.loads(schema.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


def faults(document: Any, schema: Path) -> Iterator[str]:
    """Yield one line per fault: `<path>: <value> — expected: <what>`."""
    for error in sorted(validator(schema).iter_errors(document), key=lambda e: list(map(str, e.absolute_path))):
        yield f"{location(error)}: {_seen(error)} — expected: {_expected(error)}"


def location(error: ValidationError) -> str:
    """The place of a fault in dotted form, e.g. `gates.log[0].pattern`."""
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "(top level)"


def _seen(error: ValidationError) -> str:
    rule: Any = error.validator_value
    schema: Any = error.schema
    instance: Any = error.instance
    match error.validator:
        case "additionalProperties":
            unknown = sorted(key for key in instance if key not in schema.get("properties", {}))
            return f"unknown key{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        case "required":
            missing = [key for key in rule if key not in instance]
            return f"missing key{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        case _:
            return shown(instance)


def _expected(error: ValidationError) -> str:  # noqa: PLR0911  one line per rule of the schema
    rule: Any = error.validator_value
    schema: Any = error.schema
    # A schema's title is its own wording of what it accepts; a regular expression is a poor substitute.
    title = schema.get("title", "")
    match error.validator:
        case "additionalProperties":
            return f"only {', '.join(sorted(schema.get('properties', {})))}" + _note(schema)
        case "required":
            return f"{', '.join(rule)}"
        case "type":
            return title or "a value of type " + (rule if isinstance(rule, str) else " or ".join(rule))
        case "pattern":
            return title or f"text like {rule}"
        case "enum":
            return "one of " + ", ".join(map(str, rule))
        case "const":
            return f"{rule}"
        case _:
            return str(error.message)


def _note(schema: Any) -> str:
    return f" ({schema['description']})" if "description" in schema else ""


def shown(value: object) -> str:
    """A value as a message shows it: its JSON, cut to a length that fits a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"
