"""A YAML loader that refuses what YAML accepts and an operator does not mean.

It refuses a key that occurs twice, a key that is not a text, a date, a number that is not finite, and a document whose
aliases expand to more than a document of the toolkit has. Every fault has a line and a column. The parser is libyaml,
which PyYAML's wheels have and Ansible uses for the same files.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer

from vllm_spark.core.plain_data import MAX_DEPTH, MAX_NODES, DocumentError, checked_number, checked_text

YAML = "tag:yaml.org,2002:"
STRING, MERGE = f"{YAML}str", f"{YAML}merge"
# Tags whose values are JSON.
PLAIN = {f"{YAML}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
OURS = "a document of this toolkit"


class StrictLoader(Composer, yaml.CSafeLoader):
    """Loads one document of plain data. Raises DocumentError, and yaml.YAMLError for a text that is not YAML.

    The composer is PyYAML's own, because that of libyaml overflows the stack with 100,000 open brackets."""

    # A date without quotes is a text, as an operator who writes `date: 2026-01-31` means it.
    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{YAML}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._depth = 0
        # Node -> number of its values with aliases in full. An alias is the node of its anchor.
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. Counts its depth and its values."""
        event: Any = self.peek_event()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(event, f"nested deeper than {MAX_DEPTH} levels", OURS)
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                _refuse(event, f"alias *{event.anchor} is inside its own anchor", "an alias of a complete value")
        elif node.tag not in PLAIN:
            _refuse(node, f"a value of type {node.tag.removeprefix(YAML)}", "a text, a number, a list or a map")
        else:
            children = () if isinstance(node, yaml.ScalarNode) else node.value
            nodes = chain.from_iterable(children) if isinstance(node, yaml.MappingNode) else children
            self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in nodes)
        if self._sizes[id(node)] > MAX_NODES:
            _refuse(event, f"more than {MAX_NODES} values, aliases in full", OURS)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return a map. Refuses a key that is not a text, and a key that occurs twice."""
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == MERGE:
                continue
            if key.tag != STRING:
                shown = f"key {key.value}" if isinstance(key, yaml.ScalarNode) else "a list or a map as key"
                _refuse(key, f"{shown} is not a text", "a text as key: put it in quotes")
            if key.value in lines:
                expected = f"every key once; the first is in line {lines[key.value]}"
                _refuse(key, f"key {key.value} occurs twice", expected)
            lines[key.value] = key.start_mark.line + 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Refuses a text and a number that JSON cannot hold."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                return checked_text(value)
            return checked_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        except DocumentError as error:
            _refuse(node, error.fault.what, error.fault.expected)
        except (ValueError, KeyError, IndexError, AttributeError):
            # !!int of a text that is not a number, or a number of more digits than Python reads.
            _refuse(node, f"{str(node.value)[:40]} is not {node.tag.removeprefix(YAML)}", "a number")


def load_own(text: str) -> Any:
    """Return the document of a YAML text of the toolkit itself, which needs no checks."""
    return yaml.load(text, yaml.CSafeLoader)


def load(text: str) -> Any:
    """Return the document of a YAML text. Raises DocumentError. Every call returns a document of its own."""
    return json.loads(_as_json(text))


@lru_cache(maxsize=256)  # two catalogues of recipes, each with its architectures
def _as_json(text: str) -> str:
    """Return the document of a YAML text as JSON, which no caller can change and which is read 60 times as fast."""
    try:
        return json.dumps(yaml.load(text, StrictLoader), ensure_ascii=False)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DocumentError(f"{_place(mark)}not YAML, {error.problem or error.context}", "a YAML document") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise DocumentError(f"not YAML: {' '.join(str(error).split())}", "a YAML document") from error


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def _refuse(at: Any, what: str, expected: str) -> NoReturn:
    raise DocumentError(f"{_place(at.start_mark)}{what}", expected)
