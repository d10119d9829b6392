"""A record of a deployment on the host that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Fix
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "broken-record",
    runbook="broken-record",
    severity="refusal",
    needs=("broken_records",),
    what="{path} on {host} cannot be used: {why}",
    expected="the record that deploy has written, because the launch before and its image are known only from it",
    fix=Fix("ssh -t {host} sudo mv {path} {path}.broken", "Then deploy: it places the files again."),
)
def broken_record(context: HostContext) -> Iterator[Observation]:
    for path, why in (context.facts.get("broken_records") or {}).items():
        yield Observation({"path": path, "why": why})
