"""Rendering of the files in templates/."""

from __future__ import annotations

import shlex
from functools import lru_cache

import jinja2

from vllm_spark.core import paths


@lru_cache
def templates() -> jinja2.Environment:
    """Return the environment of the templates folder. It is strict: an undefined variable is an error."""
    environment = jinja2.Environment(  # noqa: S701  shell scripts, not HTML
        loader=jinja2.FileSystemLoader(paths.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["words"] = shlex.join
    return environment
