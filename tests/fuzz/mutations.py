"""Strategies of hypothesis that damage a sound document: values, keys, structure, text and bytes."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

# A key of a map or an index of a list, from the top of a document.
Place = tuple[Any, ...]


class Tagged(str):
    """A subclass of str, as the templating of Ansible returns it."""


NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 16, 4096, 80000, 2**31, 2**63, 2**70, 10**400, 4.0, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), -float("inf")),
    *("", " ", "4096", "lots", "-1", "4k", "auto", "null", "yes", "on", "1.10", "017", "a\nb", "a\0b", "x" * 5000),
    *("é", "\u202e", "--port", "-c", "../../etc/passwd", "$(id)", "{{ 7 }}", "'", '"', "http://x:99999", "(?P<value>"),
    *("sha256:" + "0" * 64, "0" * 40, "float13", "bfloat16", "fp8", "[::1", "999.1.1.1"),
    *(Tagged("4096"), Tagged("lots"), datetime.date(2026, 1, 31), b"bytes"),
    *([], {}, [[]], [None], [{}], {"": ""}, {"a": {"b": {}}}, {8000: 1}, {None: 1}, {"a b": 1}, [1, "1", 1.0, True]),
)
# Flags of the engine with a value in words of the oracle (tests/fuzz/oracle.py), in the spellings that vLLM takes.
FLAGS = (
    *("max-model-len", "max_model_len", "--max-model-len", "max-num-seqs", "max_num_seqs", "max-num-batched-tokens"),
    *("block-size", "dtype", "kv-cache-dtype", "seed", "port", "tensor_parallel_size", "gpu-memory-utilization"),
    *("enable-prefix-caching", "enforce-eager", "pipeline-parallel-size", "max-logprobs", "swap-space", "api_key"),
)


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of every value of a document but of the document itself."""
    if not isinstance(document, dict | list):
        return
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*at, key)
        yield from places(value, (*at, key))


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def values() -> st.SearchStrategy[Any]:
    """Values of any type."""
    scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    tree = scalar | st.lists(scalar, max_size=3) | st.dictionaries(st.text(max_size=5), scalar, max_size=3)
    # A copy, because a later mutation may change the value.
    return st.sampled_from(NASTY).map(copy.deepcopy) | st.builds(nested, st.sampled_from([20, 40, 90])) | tree


# Built once, because hypothesis checks a strategy for each place that builds it.
VALUES = values()
KEYS = st.text(max_size=8) | st.sampled_from((8000, None, True, "", "a b", "--port"))
COUNTS = st.sampled_from((1, 1, 1, 2, 3))
OPERATIONS = st.sampled_from(("replace", "replace", "delete", "rename", "insert", "flag", "flag"))
FLAG = st.sampled_from(FLAGS)


@st.composite
def mutated(draw: st.DrawFn, documents: Sequence[Any]) -> Any:
    """One of the documents with one to three mutations."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(COUNTS)):
        known = list(places(document))
        if not known:
            return draw(VALUES)
        *folders, key = draw(st.sampled_from(known))
        holder = document
        for folder in folders:
            holder = holder[folder]
        operation = draw(OPERATIONS)
        if operation == "replace":
            holder[key] = draw(VALUES)
        elif operation == "delete":
            del holder[key]
        elif operation == "flag":
            _set_flag(document, draw(FLAG), draw(VALUES))
        elif isinstance(holder, dict):
            new = draw(KEYS)
            holder[new] = holder.pop(key) if operation == "rename" else draw(VALUES)
        else:
            holder.insert(key, draw(VALUES))
    return document


def _set_flag(document: Any, flag: str, value: Any) -> None:
    """Set a flag in the args of a recipe, or in the overrides of the first deployment of a list."""
    if isinstance(document, list) and document and isinstance(document[0], dict):
        overrides = document[0].setdefault("overrides", {})
        document = overrides if isinstance(overrides, dict) else {}
    if isinstance(document, dict):
        args = document.setdefault("args", {})
        if isinstance(args, dict):
            args[flag] = value


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
PIECES = (
    *("\t", "[", "{", "}", ": ", "- ", "&a ", "*a", "<<: *a", "!!python/object:os.system x", "!!binary aGk=", "? "),
    *("\n---\n", "\n...\n", '"', "'", "|\n", "%YAML 9\n", "#", "\0", "\x85", "\ufeff", ".nan", "0x", "1:30", "{" * 400),
    *("[" * 3000, "9" * 5000, BOMB, "a: &a [*a]\n", "{{", "'''"),
)
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "cp1252")


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """The bytes of a text with a piece too much, a part missing, a line twice, or in another encoding."""
    match draw(st.sampled_from((*("none",) * 7, "piece", "cut", "twice", "encoding", "byte", "long"))):
        case "piece":
            at = draw(st.integers(0, len(text)))
            text = text[:at] + draw(st.sampled_from(PIECES)) + text[at:]
        case "cut":
            text = text[: draw(st.integers(0, len(text)))]
        case "twice":
            lines = text.splitlines(keepends=True) or [""]
            at = draw(st.integers(0, len(lines) - 1))
            text = "".join([*lines[: at + 1], *lines[at:]])
        case "encoding":
            return f"{text}# é\n".encode(draw(st.sampled_from(ENCODINGS)), errors="replace")
        case "byte":
            raw = text.encode(errors="replace")
            at = draw(st.integers(0, len(raw)))
            return raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at:]
        case "long":
            text += "# x\n" * 60_000
    return text.encode(errors="surrogatepass")


@st.composite
def yaml_files(draw: st.DrawFn, documents: Sequence[Any]) -> bytes:
    """The bytes of a YAML file with a mutated document."""
    document = draw(mutated(documents))
    try:
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False)
    except (yaml.YAMLError, RecursionError, UnicodeError):
        text = json.dumps(document, default=str, skipkeys=True)
    return draw(damaged(text))


@st.composite
def json_files(draw: st.DrawFn, documents: Sequence[Any]) -> bytes:
    """The bytes of a JSON file with a mutated document."""
    return draw(damaged(json.dumps(draw(mutated(documents)), default=str, skipkeys=True)))


class _Dumper(yaml.CSafeDumper):
    """Writes subclasses of str as texts."""


_Dumper.add_representer(Tagged, lambda dumper, value: dumper.represent_str(str(value)))
