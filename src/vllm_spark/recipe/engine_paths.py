"""The paths that not every engine has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_spark.core.engine_version import numbers

MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
# Path -> the first vLLM whose wheel has it: 0.11.0 and 0.16.0 are the last ones without.
FIRST: Mapping[str, str] = {MESSAGES: "0.11.1", COUNT_TOKENS: "0.17.0"}


def lacking(version: str) -> dict[str, str]:
    """Return the paths that an engine does not have, each with the first version that has it."""
    return {path: first for path, first in FIRST.items() if numbers(version) < numbers(first)}
