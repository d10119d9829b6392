"""recipes/engines/VERSION.json: what the real parser of each version knows. Run it (`make engine-flags`) to write the
files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import engine_process  # noqa: E402
import environments  # noqa: E402

from lab.pages.recipe_schema import format_json  # noqa: E402
from vllm_spark.authoring import task  # noqa: E402
from vllm_spark.recipe import engine_flags, flag_types  # noqa: E402

# Words that tell the types apart by what they accept.
PROBES = ("text", "1", "-1", " 1", "5000", "1.5", "1k", "2K", "1.5K", "1.5k", "auto", "inf", "true", "null", "[]", "{}",
          '{"a": 1}', "{a}")  # fmt: skip
# Words that stand for no value.
EMPTY = ("", "None")
KINDS = {"BooleanOptionalAction": "boolean", "_StoreTrueAction": "switch"}


@cache
def described(version: str) -> dict[str, Any]:
    """Return what describe_parser.py prints for a version."""
    output = engine_process.output(version, "describe_parser.py", json.dumps([*PROBES, *EMPTY]))
    document: dict[str, Any] = json.loads(output)
    return document


def text(version: str) -> str:
    """Return the text of the version's file."""
    document = described(version)
    later = document["later"]
    flags = {}
    for name, flag in document["flags"].items():
        bare = name.removeprefix("--")
        flags[bare] = flag_entry(flag, later.get(bare, ()))
    return (
        format_json(
            {
                "version": document["version"],
                "drafter_keys": document["drafter_keys"],
                "flags": dict(sorted(flags.items())),
                "variables": {name: variable_entry(one) for name, one in document["variables"].items()},
            },
            0,
        )
        + "\n"
    )


def tasks_text() -> str:
    """Return the text of recipes/tasks.json: the tasks that the newest engine serves."""
    return format_json(described(list(environments.ENGINES)[-1])["tasks"], 0) + "\n"


def flag_entry(flag: Mapping[str, Any], later: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an engine_flags.Flag that differ from their defaults."""
    entry: dict[str, Any] = {}
    if flag["action"] in KINDS:
        entry["kind"] = KINDS[flag["action"]]
    else:
        entry["type"] = "folded-text" if flag.get("folds") else type_of(flag.get("accepts", PROBES))
        entry["optional"] = flag.get("optional", False)
        entry |= {key: flag[key] for key in ("nargs", "choices") if key in flag}
    if flag.get("keys"):
        entry["type"] = "object"
        entry["keys"] = {key: key_entry(one) for key, one in flag["keys"].items()}
    if later and not flag.get("choices"):
        entry["later"] = [*later, *flag.get("none", ())]
    aliases = [name.lstrip("-") for name in flag["names"][1:] if not name.startswith("--no-")]
    if aliases:
        entry["aliases"] = aliases
    if flag["inverses"]:
        (inverse,) = flag["inverses"]
        entry["inverse"] = inverse.lstrip("-")
    defaults = {"type": "text", "optional": False}
    return {key: value for key, value in entry.items() if defaults.get(key) != value}


def key_entry(key: Mapping[str, Any]) -> list[str] | None:
    """Return the strings that a key of a JSON object accepts, or None for any."""
    return None if "string" in key["types"] else key.get("choices", [])


def variable_entry(variable: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an engine_flags.Variable that differ from their defaults."""
    entry: dict[str, Any] = {}
    if "choices" in variable:
        entry["choices"] = variable["choices"]
    elif "accepts" in variable and (type_ := type_of(variable["accepts"], default="")) not in ("", "text"):
        entry["type"] = type_
    if variable.get("unread"):
        entry["unread"] = True
    return entry


def type_of(accepts: Sequence[str], default: str | None = None) -> str:
    """Return the type that accepts exactly these probes. Raises LookupError if there is none and no default."""
    words = {word for word in accepts if word not in EMPTY}
    for name, read in flag_types.TYPES.items():
        if words == {word for word in PROBES if takes(read, word)}:
            return name
    # A configuration object refuses the key of one probe.
    if words == {"{}"}:
        return "object"
    if default is None:
        raise LookupError(f"no type of flag_types.py accepts exactly {sorted(words)}")
    return default


def takes(read: Callable[[str], Any], word: str) -> bool:
    try:
        read(word)
    except ValueError:
        return False
    return True


def main() -> None:
    engine_flags.FOLDER.mkdir(exist_ok=True)
    for version in environments.ENGINES:
        file = engine_flags.FOLDER / f"{version}.json"
        file.write_text(text(version), encoding="utf-8")
        print(file)
    task.FILE.write_text(tasks_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
