"""Validation against a JSON schema, with every fault at once and each with its path, value and expectation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from vllm_spark.core.fault import Fault

# A longer value is truncated in a message, because an operator only needs enough of it to recognise it.
MAX_VALUE_CHARACTERS = 80


# The types of a schema, in the words of a message.
TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a map",
    "string": "a text in quotes",
}


def _is_integer(_checker: Any, value: object) -> bool:
    """Return True for an int. JSON Schema also counts 4.0, which the engine's parser refuses."""
    return isinstance(value, int) and not isinstance(value, bool)


def _pattern(_validator: Any, pattern: str, value: object, _schema: Any) -> Iterator[ValidationError]:
    """Check a pattern. Python's `$` also matches before a line break at the end, a schema's does not."""
    if isinstance(value, str) and not re.search(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


StrictValidator: Any = extend(  # type: ignore[no-untyped-call]  # missing in the stubs
    Draft202012Validator,
    {"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


@lru_cache
def validator(schema: Path) -> Validator:
    """Return the validator of a schema file. The tests check the schema itself against the metaschema."""
    strict: Validator = StrictValidator(json.loads(schema.read_text(encoding="utf-8")))
    return strict


def faults(document: Any, schema: Path, label: Callable[[Sequence[str | int]], str] | None = None) -> Iterator[Fault]:
    """Yield every fault of a document once, sorted by path. The document is plain data (core.plain_data). `label` names
    the place of a fault from its path, `location` by default."""
    errors = sorted(validator(schema).iter_errors(document), key=lambda e: list(map(str, e.absolute_path)))
    # jsonschema has an error per missing key, and `_observed` names all missing keys of a map.
    yield from dict.fromkeys(
        Fault(f"{(label or location)(error.absolute_path)}: {_observed(error)}", _expected(error)) for error in errors
    )


def location(path: Sequence[str | int]) -> str:
    """Return the path of a fault in dotted form, e.g. `gates.log[0].pattern`."""
    text = ""
    for part in path:
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
            in_key = "propertyNames" in error.absolute_schema_path
            return f"key {format_value(instance)}" if in_key else format_value(instance)


# Rules with a number as their value -> the text of what they accept.
BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} character{}",
    "maxLength": "at most {} character{}",
    "minItems": "at least {} entr{}",
    "maxItems": "at most {} entr{}",
    "minProperties": "at least {} key{}",
}


def _expected(error: ValidationError) -> str:  # noqa: PLR0911  one line per rule of the schema
    rule: Any = error.validator_value
    schema: Any = error.schema
    # A schema's title describes what it accepts in words, which reads better than a regular expression. The title of a
    # whole document is its name.
    title = "" if "$id" in schema else schema.get("title", "")
    match error.validator:
        case "additionalProperties":
            return f"only {', '.join(sorted(schema.get('properties', {})))}" + _note(schema)
        case "required":
            return f"{', '.join(rule)}"
        case "type":
            return title or " or ".join(TYPES[name] for name in ([rule] if isinstance(rule, str) else rule))
        case "pattern":
            return title or f"text like {rule}"
        case "enum":
            return "one of " + ", ".join(map(str, rule))
        case "const":
            return f"{rule}"
        case "uniqueItems":
            return "every entry once"
        case str() as name if name in BOUNDS:
            return BOUNDS[name].format(rule, _ending(name, rule))
        case _:
            return title or f"a value that fulfils the rule {error.validator} of the schema"


def _ending(rule: str, count: float) -> str:
    """Return the ending of the counted noun of a bound."""
    singular, plural = ("y", "ies") if rule.endswith("Items") else ("", "s")
    return singular if count == 1 else plural


def _note(schema: Any) -> str:
    return f" ({schema['description']})" if "description" in schema else ""


def format_value(value: object) -> str:
    """Return the JSON of a value for a message, truncated to MAX_VALUE_CHARACTERS."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"
