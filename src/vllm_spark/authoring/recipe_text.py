"""The text of a recipe or architecture file: YAML as the catalogue writes it, with open questions at their fields."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from vllm_spark.authoring.model_facts import Question
from vllm_spark.core.types import Document

WIDTH = 118


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as yamllint asks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def text(document: Document, schema: str, questions: Iterable[Question] = ()) -> str:
    """Return the file. `schema` is the path of its schema for editors."""
    left = list(questions)
    blocks = [f"# yaml-language-server: $schema={schema}\n---"]
    for key, value in document.items():
        own = [question for question in left if question.field.partition(".")[0].partition(" ")[0] == key]
        left = [question for question in left if question not in own]
        indent = "  " if isinstance(value, dict) else ""
        blocks.append("\n".join([_block(key, value), *_comments(own, indent)]))
    return "\n".join([*blocks, *_comments(left, "")]) + "\n"


def _block(key: str, value: Any) -> str:
    """Return a key with its value: a line per key or entry, and what is deeper as a flow."""
    if isinstance(value, dict) and value:
        lines = "".join(_dump({name: entry}) for name, entry in value.items())
        return f"{key}:\n{textwrap.indent(lines, '  ')}".rstrip("\n")
    return _dump({key: value}).rstrip("\n")


def _dump(document: Document) -> str:
    nested = any(isinstance(value, dict | list) for value in document.values())
    dumped: str = yaml.dump(
        dict(document),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None if nested else False,
        width=WIDTH,
        allow_unicode=True,
    )
    return dumped


def _comments(questions: Iterable[Question], indent: str) -> Iterator[str]:
    for question in questions:
        line, section = str(question), question.field.partition(".")
        line = line.removeprefix(f"{section[0]}.") if section[2] else line
        yield from textwrap.wrap(
            f"open: {line}",
            WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}#   ",
            break_long_words=False,
        )
