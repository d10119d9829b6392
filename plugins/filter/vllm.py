"""Filters over vllm_spark: for values that tasks must not log, for messages, and for conditions with one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllm_spark.bench import variants
from vllm_spark.core import paths
from vllm_spark.deploy import decision, images, launch
from vllm_spark.inventory import deployment
from vllm_spark.lifecycle import replacement, rollback, switch_report
from vllm_spark.transfer import messages, weights


def ping_results(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the pings of a plan with the exit status and the output of each, from the results of a loop over them."""
    return [{**result["item"], "rc": result["rc"], "said": result["stdout"] + result["stderr"]} for result in results]


class FilterModule:
    """The filters by name. A condition in YAML tests one boolean, so whatever combines two is a function here."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters."""
        return {
            "vllm_bench_inventory": variants.inventory,
            "vllm_can_judge": decision.can_judge,
            "vllm_changes_server": replacement.changes_server,
            "vllm_env": launch.env_file,
            "vllm_has_image_step": images.any_step,
            "vllm_in_site": paths.in_site,
            "vllm_is_occupied": decision.is_occupied,
            "vllm_needs_check": weights.needs_check,
            "vllm_download_failure": messages.download_failure,
            "vllm_proves_all": decision.proves_all,
            "vllm_ping_results": ping_results,
            "vllm_rollback_result": rollback.ended,
            "vllm_rollback_failure": rollback.failure_report,
            "vllm_turns": deployment.turns_of_host,
            "vllm_switch_failure": switch_report.failure_report,
        }
