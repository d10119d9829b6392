"""Filters over vllm_spark, for values that no task may show and for messages."""

from __future__ import annotations

from collections.abc import Callable

from vllm_spark import derive, launch


class FilterModule:
    """vllm_env: secrets to the content of the env file. The others: why an overlay or a head's image did not come."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {
            "vllm_env": launch.env_file,
            "vllm_overlay_failure": derive.overlay_failure,
            "vllm_transfer_failure": derive.transfer_failure,
        }
