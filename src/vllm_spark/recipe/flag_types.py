"""Types of the engine's flags: functions from a word of the command line to a value.

They raise ValueError for a word that the engine's parser refuses.

Each has the behaviour of the type of the same purpose in vLLM (engine/arg_utils.py, utils/argparse_utils.py);
tests/engine compares them with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

# Suffix of a readable number -> its factor. A binary factor takes whole numbers only.
FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
BARE_SIZE = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
OBJECT = re.compile(r"(?s)^\s*{.*}\s*$")


def size(word: str) -> int:
    """Return a number that may end in a factor: 4k is 4000, 4K is 4096."""
    match = SIZE.fullmatch(word.strip())
    if match is None:
        return int(word)
    number, suffix = match.groups()
    return int(number) * FACTORS[suffix] if suffix.isupper() else int(float(number) * FACTORS[suffix])


def size_or_auto(word: str) -> int:
    """Return a size, or -1 for auto."""
    return -1 if word.strip() == "-1" or word.strip().lower() == "auto" else size(word)


def parsed(value: Any) -> Any:
    """Return the map whose JSON a text is, and any other value as it is."""
    try:
        return json_object(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    except ValueError:
        return value


def json_object(word: str) -> Mapping[str, Any]:
    """Return a JSON object, in which numbers may end in a factor."""
    parts = QUOTED.split(word)
    parts[::2] = [BARE_SIZE.sub(lambda match: str(size(match.group())), part) for part in parts[::2]]
    value = json.loads("".join(parts))
    if not isinstance(value, dict):
        raise ValueError(f"{word} is not a JSON object")
    return value


def text_or_object(word: str) -> Any:
    """Return a JSON object if the word is in braces, else the word."""
    return json.loads(word) if OBJECT.match(word) else word


def folded_text(word: str) -> str:
    """Return a name in lower case with underscores."""
    return word.lower().replace("-", "_")


# Name in recipes/engines -> type.
TYPES: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "folded-text": folded_text,
    "integer": int,
    "number": float,
    "size": size,
    "size-or-auto": size_or_auto,
    "json": json.loads,
    "object": json_object,
    "text-or-object": text_or_object,
}

# What a message expects.
DESCRIPTIONS: Mapping[str, str] = {
    "text": "one text",
    "folded-text": "one text",
    "integer": "a whole number",
    "number": "a number",
    "size": "a whole number, or one with a suffix such as 4k",
    "size-or-auto": "a whole number, one with a suffix such as 4k, or auto",
    "json": "JSON",
    "object": "a map",
    "text-or-object": "a text or a map",
}


def optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type that also takes None and an empty word."""
    return lambda word: None if word in ("", "None") else read(word)
