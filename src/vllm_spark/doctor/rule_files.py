"""The files of rules in this package. The doctor, `runbook`, `status`, `verify` and `collect` read the same."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from vllm_spark.core import strict_yaml


@cache
def load(name: str) -> dict[str, Any]:
    """Return a file of rules by its stem."""
    text = resources.files("vllm_spark.doctor").joinpath(f"{name}.yml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = strict_yaml.load_own(text)
    return loaded
