"""Records that the toolkit keeps on a host, checked when they are read. Standard library alone.

A full disk, a loss of power or an editor may have left any content. A value of another type than its key has is dropped
here, so code that gets a record may rely on its types. Every key may be absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import parse_object, read_object, read_text

if TYPE_CHECKING:
    from vllm_spark.core.types import Record

NUMBER = (int, float)
# vllm_history removes the oldest line of a history that has so many. A line is below 4 KB, and a busy week has about
# fifty launches.
MAX_LINES = 500
# Types of the values by key. A mapping is the type of an object with these keys, TEXTS that of an object of texts,
# LIST that of a list of texts.
TEXTS, LIST = "texts", "list"
Types = Mapping[str, Any]

# deployed.json (core.types.Record). `previous` is a record, too.
RECORD: Types = {
    **dict.fromkeys(("deployment", "recipe", "recipe_sha256", "image", "digest", "engine", "model", "launch"), str),
    "launch_sha256": str,
    "toolkit": str,
    "rank": int,
    "port": int,
    "derived": TEXTS,
    "room": dict,
    "accepted_known_issues": LIST,
}
JUDGED: Types = {
    **{key: RECORD[key] for key in ("deployment", "recipe", "recipe_sha256", "image", "digest", "engine", "model")},
    **dict.fromkeys(("launch", "toolkit", "time", "verb", "who", "missed", "report"), str),
    "rank": int,
    "derived": TEXTS,
    "holds": bool,
    "gates": {"held": LIST, "missed": LIST},
    "ready_s": NUMBER,
    "before": str,
    "changes": LIST,
}
ADDRESS: Types = {"address": str, "port": int, "socket": str, "model": str, "deadline_s": NUMBER}
LIVENESS: Types = {"ready": bool, "misses": int, "works": bool, "invocation": str, "progress": str}
HOLDER: Types = {
    **dict.fromkeys(("run", "user", "controller", "machine", "started", "verb"), str),
    "pid": int,
    "since": NUMBER,
    "connection": {"pid": int, "started": str},
}
# gates.json (verify.gate_request).
GATES: Types = {
    **dict.fromkeys(("state_path", "unit", "container", "image", "launch", "address", "served_name"), str),
    **dict.fromkeys(("model_root", "engine_version", "bind"), str),
    **dict.fromkeys(("deadline_s", "rank", "port"), int),
    "api_key": bool,
}


def has_type(value: object, type_: Any) -> bool:
    """Return True if a value has a type of this module. True and false are not numbers."""
    if type_ == TEXTS:
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if type_ == LIST:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(type_, Mapping):
        return isinstance(value, dict)
    return isinstance(value, type_) and (type_ is bool or not isinstance(value, bool))


def typed(document: Mapping[str, Any] | None, types: Types) -> dict[str, Any]:
    """Return a document without the values of another type than their key has. Keys that `types` does not know stay:
    another version of the toolkit has written them."""
    result = dict(document or {})
    for key, type_ in types.items():
        if key in result and not has_type(result[key], type_):
            del result[key]
        elif key in result and isinstance(type_, Mapping):
            result[key] = typed(result[key], type_)
    return result


def record_fault(record: Mapping[str, Any]) -> str:
    """Return the first key of deployed.json whose value has another type, with the value; empty if there is none."""
    for key, type_ in RECORD.items():
        if record.get(key) is not None and not has_type(record[key], type_):
            return f"its {key} is {str(record[key])[:60]!r}"
    previous = record.get("previous")
    if previous is not None and not isinstance(previous, dict):
        return f"its previous is {str(previous)[:60]!r}"
    return record_fault(previous) if previous else ""


def read_record(path: str) -> tuple[Record | None, str]:
    """Return (the record in a deployed.json, why it cannot be used). None if there is no file, or if it is broken."""
    if not os.path.exists(path):
        return None, ""
    text = read_text(path) if os.path.isfile(path) else None
    if text is None:
        return None, "it is not a file that can be read"
    record: Any = parse_object(text)
    if record is None:
        return None, "it is empty" if not text.strip() else "it is not one whole JSON object"
    fault = record_fault(record)
    return (None, fault) if fault else (record, "")


def record_of(folder: str) -> dict[str, Any]:
    """Return the record of the launch in a folder; empty if it has none or a broken one."""
    record: Any = read_record(os.path.join(folder, "deployed.json"))[0]
    return dict(record or {})


def history_entries(path: str) -> list[dict[str, Any]]:
    """Return the entries of a history, the oldest first: those of its last MAX_LINES lines that are whole."""
    lines = (read_text(path) or "").splitlines()[-MAX_LINES:]
    return [entry for line in lines if (entry := typed(parse_object(line), JUDGED))]


def gates_of(folder: str) -> dict[str, Any]:
    """Return the parameters of the gates of the launch in a folder; empty without any, or if one has another type:
    nothing can be judged by a part of them."""
    gates = read_object(os.path.join(folder, "gates.json")) or {}
    return gates if typed(gates, GATES) == gates else {}
