"""Rendering of the files in templates/."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from vllm_spark.core import paths

if TYPE_CHECKING:
    import jinja2


class ShellVariable(str):
    """A word of a command that the shell replaces, such as `$memory`. The script sets the variable before it."""

    __slots__ = ()


def words(command: Iterable[str]) -> str:
    """Return the words of a command as a shell must read them."""
    return " ".join(f'"{word}"' if isinstance(word, ShellVariable) else shlex.quote(word) for word in command)


def unchanged(path: str) -> str:
    """Return the text of a file of the templates folder that is the same on every host. `path`: its name, or the path
    that it has on a host."""
    return (paths.TEMPLATES / path.rpartition("/")[2]).read_text(encoding="utf-8")


@lru_cache
def templates() -> jinja2.Environment:
    """Return the environment of the templates folder. It is strict: an undefined variable is an error."""
    import jinja2  # noqa: PLC0415  it takes 30 ms, and most commands render nothing

    environment = jinja2.Environment(  # noqa: S701  shell scripts, not HTML
        loader=jinja2.FileSystemLoader(paths.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["words"] = words
    return environment
