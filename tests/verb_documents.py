"""Documents of verbs for programs, judged by jsonschema with their schemas closed: a field that no schema has is a
fault. The schemas of the package are open, because a later release may add fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from vllm_spark.core import json_output

# Action plugin -> the verb whose document it makes, or a part of it.
VERBS = {"vllm_status": "status", "vllm_history": "history", "vllm_forecast": "plan", "vllm_verify": "verify"}


def closed(node: Any) -> Any:
    """Return a schema whose objects have no other fields than those that it names."""
    if isinstance(node, list):
        return [closed(part) for part in node]
    if not isinstance(node, dict):
        return node
    more = {"additionalProperties": False} if "properties" in node and "type" in node else {}
    return {**{key: closed(part) for key, part in node.items()}, **more}


def judged(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that its schema accepts."""
    schema = json_output.schema(str(document["schema"]).split("/")[1])
    Draft202012Validator(closed(schema), format_checker=Draft202012Validator.FORMAT_CHECKER).validate(document)
    return dict(document)


def judge_part(plugin: object, result: Mapping[str, Any]) -> None:
    """Judge the part of a document that the result of an action has."""
    if plugin in VERBS and "document" in result:
        judged(json_output.document(VERBS[str(plugin)], result["document"]))
