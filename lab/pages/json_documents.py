"""docs/reference/json.md: the documents of verbs for programs; and in their schemas what they have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from lab.pages.markdown import table
from lab.pages.recipe_schema import format_json
from vllm_spark.core import json_output, paths

COMMON = json_output.PACKAGE / "core" / "documents.schema.json"
# The fields that every document has.
SHARED = ("schema", "toolkit", "time", "refusals", "failures")
# Schema -> the commands that print its document.
COMMANDS = {"plan": "`ansible-playbook plan.yml -e json=true`, `vllm-spark plan RECIPE --json`"}
LOCAL = ("doctor",)
COLUMNS = ("field", "type", "content")
HEAD = """\
# JSON for programs

`make docs` writes this page from the schemas, `src/vllm_spark/*/*.document.json` (JSON Schema 2020-12); do not edit it.

With `-e json=true` the stdout of these verbs is one JSON document and nothing else, also with `-v` and after a
refusal. `vllm-spark VERB --json` is the same. stderr keeps the lines for a person. The callback of
`ansible.cfg`, `vllm_spark.toolkit.brief`, prints the document.
[status.md](../operations/status.md#for-programs) has examples with jq.

- A later release may add fields, so a reader ignores those that it does not know. A field that is removed or changes
  its meaning makes a new version: `vllm-spark/status/2`.
- An unknown value is `null`. Fields that end in `_bytes` are bytes, in `_s` seconds, in `_tok_per_s` tokens per second.
- A Spark that does not answer has its row: `answers` is `false`, and `problem` has the reason.
- The exit status is that of the verb: 0; 1 if it could not begin, as without an inventory; 2 if it failed or a
  refusal stops it; 4 if a Spark could not be reached (of `status` that is a row, and 4 only if none could be read).
  Of `vllm-spark plan RECIPE` it is 1 for everything but `go`; of `vllm-spark doctor` 0 without a finding, 1 for a
  failure, 2 for a log that cannot be read, 3 for warnings, 4 for unknown.
- After Ctrl-C, and for arguments that the program does not know, there is no document.
"""


def schemas() -> dict[str, str]:
    """Return path in the repository -> text of each schema, with what the documents have in common."""
    common = json.loads(COMMON.read_text(encoding="utf-8"))["$defs"]
    texts = {}
    for verb, file in json_output.SCHEMAS.items():
        own = json_output.schema(verb)
        new = {**own, "$defs": {**own["$defs"], **common}}
        texts[str(file.relative_to(paths.ROOT))] = f"{format_json(new, 0)}\n"
    return texts


def pages() -> dict[str, Any]:
    """Return path in the repository -> the function that returns the text."""
    return {"docs/reference/json.md": text, **{name: partial(schemas().__getitem__, name) for name in schemas()}}


def text() -> str:
    """Return the page."""
    every = json_output.schema("history")
    shared = list(_rows({"properties": {name: every["properties"][name] for name in SHARED}}, every["$defs"]))
    every_table = table(COLUMNS, shared).replace("/history/", "/VERB/")
    parts = [HEAD, f"## Every document\n{every_table}\nThat of `doctor` has no `failures`.\n"]
    for verb in json_output.SCHEMAS:
        schema = json_output.schema(verb)
        own = {name: part for name, part in schema["properties"].items() if name not in SHARED}
        default = f"`vllm-spark {verb} --json`" if verb in LOCAL else f"`ansible-playbook {verb}.yml -e json=true`"
        parts += [
            f"## {verb}: {schema['title']}\n{COMMANDS.get(verb, default)}\n",
            f"{table(COLUMNS, _rows({'properties': own}, schema['$defs']))}\n",
            *(f"```json\n{format_json(example, 0)}\n```\n" for example in schema["examples"]),
        ]
    return "\n".join(parts)


def _rows(node: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield a row per field, with the path that jq takes."""
    for name, field in node.get("properties", {}).items():
        found, place = _resolved(field, defs), f"{path}.{name}"
        yield f"`{place}`", _type(found), found.get("description", "")
        items = _resolved(found.get("items", {}), defs)
        yield from _rows(items, defs, f"{place}[]")
        yield from _rows(found, defs, place)


def _resolved(field: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field with the definition that it names. Its own description wins."""
    if "anyOf" in field:
        found = _resolved(field["anyOf"][0], defs)
        return {**found, "type": [found["type"], "null"], "description": field["description"]}
    return {**defs[field["$ref"].rpartition("/")[2]], **field} if "$ref" in field else dict(field)


def _type(field: Mapping[str, Any]) -> str:
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(kinds)
