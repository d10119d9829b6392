"""The results of earlier tasks that actions read, on their own host and on others.

A role registers a result as a variable. Only this module has the names of these variables; SparkAction.results reads
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from vllm_spark.core.types import Facts
    from vllm_spark.lifecycle.switch_steps import SwitchOrder
    from vllm_spark.node.pull.hub_cache import ModelState

T_co = TypeVar("T_co", covariant=True)
Json = dict[str, Any]


@dataclass(frozen=True)
class Step(Generic[T_co]):
    """A task that is registered as `variable`: a field of its result, or without `field` the whole of it."""

    variable: str
    field: str = ""

    def known(self, variables: Mapping[str, Any]) -> bool:
        """Return False if the host with these variables has skipped the task, or if it has failed there."""
        result = variables.get(self.variable)
        return self.field in (result or {}) if self.field else result is not None

    def of(self, variables: Mapping[str, Any]) -> T_co | None:
        """Return the result on the host with these variables; None if it is not known."""
        result: Any = variables.get(self.variable)
        return cast("T_co", result[self.field] if self.field else result) if self.known(variables) else None


class PrintedStep(Step[Json]):
    """A command that prints a JSON object. Its result is empty if the host has skipped it."""

    def of(self, variables: Mapping[str, Any]) -> Json:
        """Return the object."""
        return cast("Json", json.loads((variables.get(self.variable) or {}).get("stdout") or "{}"))


# spark_precheck. The spec is None on a host without an active deployment.
SPEC = Step[Json | None]("spark_precheck_resolved", "spec")
RESOLVED = Step[Json]("spark_precheck_resolved")
TURN = Step[list[str]]("spark_precheck_resolved", "turn")
FACTS: Step[Facts] = Step("spark_precheck_box", "facts")
PLAN = Step[Json]("spark_precheck_planned", "plan")
# vllm_server and vllm_verify
REPLACEMENT = Step[Json]("vllm_server_replacement")
REPLACED = PrintedStep("__vllm_server_change")
JUDGED = Step[Json]("vllm_verify_judged")
# vllm_switch: what a host does, its steps, and a deployment that returns after a failure.
SWITCH_ORDER: Step[SwitchOrder] = Step("vllm_switch_order")
SWITCH_CHANGES = Step[list[Any]]("vllm_switch_steps", "change")
SWITCH_BEGUN = Step[float]("__vllm_switch_begun")
SWITCH_DRAINED = PrintedStep("__vllm_switch_drain")
SWITCH_CHANGED = PrintedStep("__vllm_switch_change")
SWITCH_JUDGING_SINCE = Step[float]("__vllm_switch_judging_since")
SWITCH_RESTORED = Step[Json]("__vllm_switch_restored")
SWITCH_AGAIN = Step[Json]("__vllm_switch_again")
# vllm_lend: the facts, what is lent on a host, and what its commands have printed.
LEND_FACTS: Step[Facts] = Step("vllm_lend_box", "facts")
LEND_LINE = Step[str]("vllm_lend_part", "line")
LEND_BEGUN = PrintedStep("__vllm_lend_begun")
LEND_STOPPED = PrintedStep("__vllm_lend_stopped")
LEND_FREE = PrintedStep("__vllm_lend_free")
# vllm_rollback
ROLLBACK_HOLDINGS = Step[Json]("vllm_rollback_box", "holdings")
ROLLBACK_AGAIN = Step[Json]("__vllm_rollback_again")
# vllm_pull
PULLED_SPECS = Step[list[Json]]("vllm_pull_wanted", "specs")
MODEL_STATES: Step[list[ModelState]] = Step("vllm_pull_looked", "looks")
PULL_FACTS: Step[Facts] = Step("vllm_pull_box", "facts")
# spark_fabric
LINK_FACTS: Step[Facts] = Step("__spark_fabric_facts", "facts")
LINK_RATES = Step[list[Any]]("__spark_fabric_rates", "rates")
# The other verbs.
FABRIC_FACTS: Step[Facts] = Step("__spark_fabric_box", "facts")
PLAN_FACTS: Step[Facts] = Step("vllm_plan_box", "facts")
# Of all turns so far: lines for a person, and entries of the document.
PLAN_REFUSED = Step[list[str]]("vllm_plan_reported", "refused")
PLAN_REFUSALS = Step[list[Json]]("vllm_plan_reported", "all_refusals")
STATUS_FACTS: Step[Facts] = Step("vllm_status_box", "facts")
STATUS_EARLIER = Step[list[Json]]("vllm_status_earlier")
STATUS_MESSAGE = Step[str]("vllm_status_box", "msg")
HISTORY = Step[list[Json]]("vllm_history_read", "entries")
BUNDLE = Step[str]("vllm_collect_done", "bundle")
COLLECTED = Step[Json]("vllm_collect_done", "deployments")
EVIDENCE = Step[Json]("vllm_bench_read", "reading")
EDGE_KEYS = Step[Json]("__vllm_edge_keys", "keys")
