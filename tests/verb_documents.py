"""Documents of verbs for programs, judged by the tables of docs/reference/json.md: a field is a fault if the page does
not have it or gives it another type, and so is one that is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from vllm_spark.core import json_output, paths

# Action plugin -> the verb whose document it makes, or a part of it.
VERBS = {"vllm_status": "status", "vllm_forecast": "plan"}
EVERY = "Every document"
ROW = re.compile(r"^\| `(?P<path>[^`]+)` \| (?P<type>[^|]+) \| (?P<content>[^|]+) \|$", re.MULTILINE)
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@cache
def sections() -> dict[str, str]:
    """Return verb, or EVERY -> its section of the page."""
    page = (paths.ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in page.split("\n## ")[1:]]
    return {title.partition(":")[0]: text for title, _, text in parts}


@cache
def fields(verb: str) -> dict[str, str]:
    """Return path -> type of each field of the document of a verb."""
    found = {row["path"]: row["type"].strip() for part in (EVERY, verb) for row in ROW.finditer(sections()[part])}
    without = () if "failures" in json_output.DOCUMENTS[verb].body else (".failures",)
    return {path: of for path, of in found.items() if not path.startswith(without or "\n")}


def example(verb: str) -> dict[str, Any]:
    """Return the example of the page."""
    found: dict[str, Any] = json.loads(sections()[verb].partition("```json\n")[2].partition("```")[0])
    return found


def seen(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field of a document."""
    if isinstance(value, list):
        for item in value:
            yield from seen(item, f"{path}[]")
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from (f"{path}.{name}", *seen(part, f"{path}.{name}"))


def judged(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that the page accepts."""
    verb = str(document["schema"]).split("/")[1]
    assert document["schema"] == f"vllm-spark/{verb}/1"
    assert TIME.fullmatch(document["time"])
    assert list(faults(document, fields(verb))) == []
    return dict(document)


def faults(value: Any, known: Mapping[str, str], path: str = "") -> Iterator[str]:
    """Yield what differs from the fields of the page. An object without a field of its own in the page is free."""
    if isinstance(value, list):
        for item in value:
            yield from faults(item, known, f"{path}[]")
    elif isinstance(value, dict):
        own = {name: of for name, of in known.items() if name.rpartition(".")[0] == path}
        present = {f"{path}.{name}": part for name, part in value.items()}
        if own:
            yield from (f"{name}: not in the page" for name in present.keys() - own)
            yield from (f"{name}: missing" for name in own.keys() - present)
        for name, part in present.items():
            if name in own and not _fits(part, own[name]):
                yield f"{name}: {part!r} is no {own[name]}"
            yield from faults(part, known, name)


def _fits(value: Any, kind: str) -> bool:
    if "`" in kind:
        return f"`{json.dumps(value)}`" in kind.replace("VERB", str(value).split("/")[1] if "VERB" in kind else "")
    if value is None:
        return kind.endswith("null")
    kinds = [TYPES[name] for name in kind.split(" or ") if name != "null"]
    return any(isinstance(value, of) and (of is bool or not isinstance(value, bool)) for of in kinds)


def judge_part(plugin: object, result: Mapping[str, Any]) -> None:
    """Judge the part of a document that the result of an action has."""
    if plugin in VERBS and "document" in result:
        judged(json_output.document(VERBS[str(plugin)], result["document"]))
