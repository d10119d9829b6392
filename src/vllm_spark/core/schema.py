"""Validation against a JSON schema, with every fault at once and each with its path, value and expectation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from vllm_spark.core.fault import Fault

# A longer value is truncated in a message, because an operator only needs enough of it to recognise it.
MAX_VALUE_CHARACTERS = 80


@lru_cache
def validator(schema: Path) -> Validator:
    """Return the validator of a schema file. The schema itself is checked against the metaschema."""
    document = json.loads(schema.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


def faults(document: Any, schema: Path) -> Iterator[Fault]:
    """Yield every fault of a document, sorted by path."""
    for error in sorted(validator(schema).iter_errors(document), key=lambda e: list(map(str, e.absolute_path))):
        yield Fault(f"{location(error)}: {_observed(error)}", _expected(error))


def location(error: ValidationError) -> str:
    """Return the path of a fault in dotted form, e.g. `gates.log[0].pattern`."""
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "(top level)"


def _observed(error: ValidationError) -> str:
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
            return format_value(instance)


# Rules with a number as their value -> the text of what they accept.
BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "minProperties": "at least {} keys",
}


def _expected(error: ValidationError) -> str:  # noqa: PLR0911  one line per rule of the schema
    rule: Any = error.validator_value
    schema: Any = error.schema
    # A schema's title describes what it accepts in words, which reads better than a regular expression.
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
        case "uniqueItems":
            return "every entry once"
        case str() as name if name in BOUNDS:
            return title or BOUNDS[name].format(rule)
        case _:
            return str(error.message)


def _note(schema: Any) -> str:
    return f" ({schema['description']})" if "description" in schema else ""


def format_value(value: object) -> str:
    """Return the JSON of a value for a message, truncated to MAX_VALUE_CHARACTERS."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"
