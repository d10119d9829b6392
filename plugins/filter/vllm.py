"""Filters over vllm_spark: secret values that must not become task results, and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_spark.deploy import launch
from vllm_spark.lifecycle import rollback, switch_report
from vllm_spark.transfer import messages


class FilterModule:
    """vllm_env returns the content of the env file. vllm_rollback_due returns True if the previous launch must return.
    All others return the message of a result or of a failure."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "vllm_env": launch.env_file,
            "vllm_overlay_failure": messages.overlay_failure,
            "vllm_rollback_due": rollback.should_roll_back,
            "vllm_rollback_result": rollback.ended,
            "vllm_rollback_failure": rollback.failure_report,
            "vllm_switch_report": switch_report.success_report,
            "vllm_switch_failure": switch_report.failure_report,
            "vllm_transfer_failure": messages.transfer_failure,
        }
