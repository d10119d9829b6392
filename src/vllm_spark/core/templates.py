"""The templates folder, for whatever is rendered from it."""

from __future__ import annotations

import shlex
from functools import lru_cache

import jinja2

from vllm_spark.core import paths


@lru_cache
def templates() -> jinja2.Environment:
    """The templates folder, strict: a name that is not given is an error, not an empty word."""
    environment = jinja2.Environment(  # noqa: S701  shell scripts, not HTML
        loader=jinja2.FileSystemLoader(paths.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["words"] = shlex.join
    return environment
