"""A YAML loader that refuses what YAML accepts and an operator does not mean.

It refuses a key that occurs twice, a key that is not a text, a date, a number that is not finite, and a document whose
aliases expand to more than a document of the toolkit has. Every fault has a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from vllm_spark.core.plain_data import MAX_DEPTH, MAX_NODES, DocumentError, checked_number, checked_text

STRING, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
TIMESTAMP = "tag:yaml.org,2002:timestamp"
# Tags of YAML whose values are not JSON.
FOREIGN = ("timestamp", "binary", "set", "omap", "pairs")
# What libyaml accepts in places where PyYAML's own parser does not.
UNLIKE = re.compile(r"[\t\ufeff]|[|>][-+\d]*#")


class StrictLoader(yaml.SafeLoader):
    """Loads one document of plain data. Raises DocumentError, and yaml.YAMLError for a text that is not YAML."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._begin()

    def _begin(self) -> None:
        self._depth = 0
        self._nodes = 0
        # Node -> number of its values with aliases in full. An alias is the node of its anchor.
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. Counts its depth and its values."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # missing in the stubs
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            _refuse(event, f"nested deeper than {MAX_DEPTH} levels", "a document of this toolkit")
        if self._nodes > MAX_NODES:
            _refuse(event, f"more than {MAX_NODES} values", "a document of this toolkit")
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                _refuse(event, f"alias *{event.anchor} is inside its own anchor", "an alias of a complete value")
        else:
            self._sizes[id(node)] = 1 + sum(self._sizes.get(id(child), 1) for child in _children(node))
        if self._sizes[id(node)] > MAX_NODES:
            _refuse(event, f"aliases expand to more than {MAX_NODES} values", "a document of this toolkit")
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
            lines[key.value] = _line(key)
        return node


if yaml.__with_libyaml__:  # PyYAML's wheels have it
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # missing in the stubs

    class FastLoader(CParser, StrictLoader):
        """Loads the documents of `StrictLoader` by the parser of libyaml. Its faults have other words."""

        get_single_node = Composer.get_single_node  # CParser's own composer does not count

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)
            self._begin()

        def compose_scalar_node(self, anchor: Any) -> Any:
            """Return the next scalar. PyYAML's parser ends a plain one within brackets at `?`, and has no tag `!`."""
            event: Any = self.peek_event()
            if event.tag == "!" or ("?" in event.value and not event.style):
                _refuse(event, event.value, "a text that both parsers take")
            return Composer.compose_scalar_node(self, anchor)


def load_own(text: str) -> Any:
    """Return the document of a YAML text of the toolkit itself, which needs no checks."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  a SafeLoader, in C if there is one


def load(text: str) -> Any:
    """Return the document of a YAML text. Raises DocumentError. Every call returns a document of its own."""
    return json.loads(_as_json(text))


@lru_cache(maxsize=256)  # two catalogues of recipes, each with its architectures
def _as_json(text: str) -> str:
    """Return the document of a YAML text as JSON, which no caller can change and which is read 60 times as fast."""
    if not yaml.__with_libyaml__ or UNLIKE.search(text):
        return _in_python(text)
    try:
        return json.dumps(yaml.load(text, FastLoader), ensure_ascii=False)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, DocumentError, UnicodeError):
        return _in_python(text)


def _in_python(text: str) -> str:
    """Return the document of a YAML text as JSON, or raise the fault in the words of PyYAML's own parser."""
    try:
        return json.dumps(yaml.load(text, StrictLoader), ensure_ascii=False)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DocumentError(f"{place}not YAML, {error.problem or error.context}", "a YAML document") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {' '.join(str(error).split())}", "a YAML document") from error


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _line(place: Any) -> int:
    return int(place.start_mark.line) + 1


def _refuse(place: Any, what: str, expected: str) -> NoReturn:
    raise DocumentError(f"line {_line(place)}: {what}", expected)


def _checked(construct: Callable[[StrictLoader, Any], Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a constructor of scalars that checks its value. The fault gets the line of the value."""

    def constructor(loader: StrictLoader, node: Any) -> Any:
        try:
            return check(construct(loader, node))
        except DocumentError as error:
            _refuse(node, error.fault.what, error.fault.expected)
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            # !!int of a text that is not a number, or a number of more digits than Python reads.
            line, shown = _line(node), str(node.value)[:40]
            raise DocumentError(f"line {line}: {shown} is not {node.tag.rpartition(':')[2]}", "a number") from error

    return constructor


def _foreign(loader: StrictLoader, node: Any) -> NoReturn:
    _refuse(node, f"a value of type {node.tag.rpartition(':')[2]}", "a text, a number, a list or a map")


def _bool(loader: StrictLoader, node: Any) -> Any:
    return loader.construct_yaml_bool(node)


StrictLoader.add_constructor(STRING, _checked(lambda loader, node: loader.construct_scalar(node), checked_text))
for _name, _construct in (("int", yaml.SafeLoader.construct_yaml_int), ("float", yaml.SafeLoader.construct_yaml_float)):
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{_name}", _checked(_construct, checked_number))
StrictLoader.add_constructor("tag:yaml.org,2002:bool", _checked(_bool, bool))
for _name in FOREIGN:
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{_name}", _foreign)
# A date without quotes is a text, as an operator who writes `date: 2026-01-31` means it.
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
