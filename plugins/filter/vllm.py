"""Filters over vllm_spark, for values that no task may show."""

from __future__ import annotations

from collections.abc import Callable

from vllm_spark import launch


class FilterModule:
    """vllm_env: secrets to the content of the env file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"vllm_env": launch.env_file}
