"""Filters over vllm_spark, for values that no task may show and for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_spark.deploy import decision, launch
from vllm_spark.lifecycle import rollback, switch_report
from vllm_spark.transfer import messages


class FilterModule:
    """vllm_env: secrets to the content of the env file. vllm_*_failure: why an overlay or a head's image did not come.
    vllm_rollback_*: whether a launch goes back, and what is said of it. vllm_switch_*: what is said of a
    switch."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "vllm_can_judge": decision.can_judge,
            "vllm_env": launch.env_file,
            "vllm_overlay_failure": messages.overlay_failure,
            "vllm_rollback_ended": rollback.ended,
            "vllm_rollback_told": rollback.failure_report,
            "vllm_switch_told": switch_report.failure_report,
            "vllm_transfer_failure": messages.transfer_failure,
        }
