"""Print what the vLLM that this Python imports knows of its arguments, as one JSON document.

The test process turns it into recipes/engines/VERSION.json (engine_data.py). Types are described by what they accept:
each is called with the words of PROBES, because most are nameless functions.

- `flags`: name -> `names` (all option strings that mean it), `inverses` (those that mean the opposite), `action`,
  `nargs`, `choices`, `accepts` (the probes that its type takes), `optional` (None is not set), `folds` (upper case and
  dashes do not matter), `keys` (of a flag whose JSON is a configuration object: key -> the JSON types that it takes,
  and its choices), `none` (the words that it reads as no text)
- `later`: name -> values that the engine checks after its parser, e.g. parsers that are registered by name
- `drafter_keys`: the keys of --speculative-config
- `tasks`: what the engine serves a model for, by the name of its architecture
- `variables`: name -> `accepts` (the probes that its reader takes), `choices`, `unread` (no file reads it)
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import check_argv
from check_argv import envs, vllm
from pydantic import ValidationError
from vllm.config.model import _SUFFIX_TO_DEFAULTS as SUFFIXES
from vllm.engine import arg_utils
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

PROBES: list[str] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else []

# JSON type -> values of it that no configuration expects by name.
JSON_VALUES: Mapping[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "string": "no-such-value",
    "array": [],
    "object": {},
    "null": None,
}


def serve_parser() -> argparse.ArgumentParser:
    """Return the parser of the sub-command `serve`."""
    subparsers = next(a for a in check_argv.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return subparsers.choices["serve"]


def accepted(read: Callable[[str], Any]) -> list[str]:
    """Return the probes that a function takes."""
    return [probe for probe in PROBES if takes(read, probe)]


def takes(read: Callable[[str], Any], word: str) -> bool:
    try:
        read(word)
    except Exception:
        # Whatever the engine's code raises here ends its start.
        return False
    return True


def flag(action: argparse.Action) -> dict[str, Any]:
    """Return the description of one action of the parser."""
    # Since 0.33 a boolean --enable-X has the inverse --disable-X.
    inverses = [name for name in getattr(action, "negative_option_strings", ()) if not name.startswith("--no-")]
    boolean = argparse.BooleanOptionalAction
    described: dict[str, Any] = {
        "names": [name for name in action.option_strings if name not in inverses],
        "inverses": inverses,
        "action": (boolean if isinstance(action, boolean) else type(action)).__name__,
    }
    if action.nargs is not None:
        described["nargs"] = action.nargs
    if action.choices is not None:
        described["choices"] = list(action.choices)
    if action.type is not None:
        described["accepts"] = accepted(action.type)
        described["optional"] = takes(action.type, "None") and action.type("None") is None
        described["none"] = [word for word in ("None", "none") if takes(action.type, word) and action.type(word) == ""]
        described["folds"] = takes(action.type, "A-b") and action.type("A-b") == "a_b"
        if keys := dict(object_keys(action.type)):
            described["keys"] = keys
    return described


# --- JSON objects


def object_keys(read: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """Yield (key, the JSON types that it takes) of a type that reads a dataclass from JSON; nothing of another type."""
    if not inspect.isfunction(read):
        return
    inner = inspect.getclosurevars(read).nonlocals.get("return_type")
    cls = inspect.signature(read).parameters.get("cls")
    if inner is not None:
        yield from object_keys(inner)
    elif cls is not None and dataclasses.is_dataclass(cls.default) and refuses_unknown_keys(read):
        hints = typing.get_type_hints(cls.default, include_extras=False)
        for field in dataclasses.fields(cls.default):
            if field.init:
                yield field.name, key_types(read, field.name, hints[field.name])


def refuses_unknown_keys(read: Callable[[str], Any]) -> bool:
    return bool(errors_at(read, "no_such_key", 1))


def key_types(read: Callable[[str], Any], key: str, hint: object) -> Mapping[str, Any]:
    """Return `types`, and `choices` if the key takes only named strings."""
    taken = [name for name, value in JSON_VALUES.items() if not errors_at(read, key, value)]
    # A key that takes no unknown string may take known ones.
    if "string" not in taken:
        named = [word for word in words_of(hint) if not errors_at(read, key, word)]
        return {"types": taken, **({"choices": named} if named else {})}
    return {"types": taken}


def errors_at(read: Callable[[str], Any], key: str, value: object) -> list[Any]:
    """Return the errors of a JSON object that name this key. Others belong to keys that are missing."""
    try:
        read(json.dumps({key: value}))
    except Exception as error:
        cause = error.__cause__ or error
        # The parser chains the error of pydantic, directly or through a second error.
        while not isinstance(cause, ValidationError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ValidationError):
            return [one for one in cause.errors() if one["loc"][:1] == (key,)]
    return []


def words_of(hint: object) -> Iterator[str]:
    """Yield the strings that a type hint names: those of Literals, and the names and values of enums."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            yield from dict.fromkeys(word for word in (member.name, member.value) if isinstance(word, str))
    elif typing.get_origin(hint) is typing.Literal:
        yield from (word for word in typing.get_args(hint) if isinstance(word, str))
    else:
        for part in typing.get_args(hint):
            yield from words_of(part)


# --- what the engine checks later


def later() -> dict[str, list[str]]:
    """Return the values that the engine looks up by name after its parser has accepted any text."""
    from vllm.reasoning import ReasoningParserManager  # noqa: PLC0415  loads parsers
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415

    backends = AttentionBackendEnum.__members__
    return {
        "tool-call-parser": sorted(ToolParserManager.list_registered()),
        "reasoning-parser": sorted(ReasoningParserManager.list_registered()),
        "quantization": sorted(QUANTIZATION_METHODS),
        # The engine changes it to upper case.
        "attention-backend": sorted({*backends, *map(str.lower, backends)}),
        "load-format": sorted(table("model_executor/model_loader/__init__.py", "_LOAD_FORMAT_TO_MODEL_LOADER")),
        "tokenizer-mode": sorted({*hinted("tokenizer_mode"), *table("tokenizers/registry.py", "_VLLM_TOKENIZERS")}),
        "config-format": ["auto", *table("transformers_utils/config.py", "_CONFIG_FORMAT_TO_CONFIG_PARSER")],
        "kv-cache-dtype": hinted("kv_cache_dtype"),
        "mamba-backend": sorted({word for name in hinted("mamba_backend") for word in (name.upper(), name.lower())}),
    }


def hinted(field: str) -> list[str]:
    """Return the strings that the type of an argument names beside any text; none for an argument that there is not."""
    # A Literal of the arguments has a name of its own; other types of the class exist for a type checker alone.
    hint = inspect.get_annotations(EngineArgs).get(field)
    parts = hint.split("|") if isinstance(hint, str) else [hint]
    named = (vars(arg_utils).get(part.strip()) if isinstance(part, str) else part for part in parts)
    return sorted({word for part in named for word in words_of(part)})


def table(file: str, name: str) -> dict[str, Any]:
    """Return a table of a file that cannot be imported without the engine's kernels: its names, and values as text."""
    path = Path(vllm.__file__).parent / file
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(getattr(node, "value", None), ast.Dict) and any(
            getattr(one, "id", "") == name for one in targets
        ):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {key.value: ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}
    return {}


# --- the task of a model

REGISTRY = "model_executor/models/registry.py"
# Table of the registry -> the task of its models.
OTHERS = {
    "_EMBEDDING_MODELS": "embed",
    "_LATE_INTERACTION_MODELS": "embed",
    "_REWARD_MODELS": "classify",
    "_TOKEN_CLASSIFICATION_MODELS": "classify",
    "_SEQUENCE_CLASSIFICATION_MODELS": "classify",
    "_SPECULATIVE_DECODING_MODELS": "draft",
}


def tasks() -> dict[str, Any]:
    """Return `suffixes`, which tell the task of an architecture that the engine does not list, in its order, and
    `architectures`: those that it serves for another task than their suffix says."""
    suffixes = [[suffix, "chat" if runner == "generate" else convert] for suffix, (runner, convert) in SUFFIXES]
    generating = {**table(REGISTRY, "_TEXT_GENERATION_MODELS"), **table(REGISTRY, "_MULTIMODAL_MODELS")}
    found = {
        name: task for listed, task in OTHERS.items() for name in table(REGISTRY, listed) if name not in generating
    }
    for name, place in generating.items():
        module, cls = ast.literal_eval(place)
        if transcribes(module, cls):
            found[name] = "transcribe"
    promised = {name: next((task for suffix, task in suffixes if name.endswith(suffix)), "chat") for name in found}
    return {
        "suffixes": suffixes,
        "architectures": {name: task for name, task in sorted(found.items()) if promised[name] != task},
    }


def transcribes(module: str, cls: str) -> bool:
    """Return True for a class that serves transcriptions alone."""
    path = Path(vllm.__file__).parent / f"model_executor/models/{module}.py"
    if not path.exists() or "supports_transcription_only = True" not in path.read_text(encoding="utf-8"):
        return False
    body = ast.parse(path.read_text(encoding="utf-8")).body
    named = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == cls), None)
    return named is not None and any("supports_transcription_only = True" in ast.unparse(node) for node in named.body)


def drafter_keys() -> list[str]:
    """Return the keys of --speculative-config, which the engine reads into SpeculativeConfig."""
    return sorted(field.name for field in dataclasses.fields(check_argv.SpeculativeConfig) if field.init)


# --- variables


def variables() -> dict[str, dict[str, Any]]:
    """Return every variable of envs.py."""
    read = check_argv.read_variables()
    return {name: variable(name, reader, name in read) for name, reader in sorted(envs.environment_variables.items())}


def variable(name: str, reader: Callable[[], Any], is_read: bool) -> dict[str, Any]:
    described: dict[str, Any] = {} if is_read else {"unread": True}
    if name.startswith("VLLM_"):
        described["accepts"] = accepted(lambda word: read_as(name, reader, word))
        choices = inspect.getclosurevars(reader).nonlocals.get("choices") if inspect.isfunction(reader) else None
        if callable(choices):
            choices = choices()
        if choices:
            described["choices"] = sorted(choices)
    return described


def read_as(name: str, reader: Callable[[], Any], word: str) -> Any:
    with mock.patch.dict(os.environ, {name: word}):
        return reader()


def main() -> None:
    actions = [action for action in serve_parser()._actions if action.option_strings and action.dest != "help"]
    document = {
        "version": vllm.__version__,
        "flags": {action.option_strings[0]: flag(action) for action in actions},
        "later": later(),
        "drafter_keys": drafter_keys(),
        "tasks": tasks(),
        "variables": variables(),
    }
    print(json.dumps(document), file=check_argv.VERDICTS, flush=True)


if __name__ == "__main__":
    main()
