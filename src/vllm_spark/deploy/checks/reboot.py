"""A pending reboot."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "reboot-pending",
    runbook="reboot-pending",
    severity="warning",
    needs=("host",),
    what="{host} waits for a reboot since an update of {packages}: the running and the installed versions differ",
    fix="`ansible-playbook stop.yml -l {host}`, `ssh -t {host} sudo systemctl reboot`, then deploy.",
    source="/run/reboot-required of Ubuntu (update-notifier); a driver of two versions finds no GPU at the next start",
)
def reboot_pending(context: HostContext) -> Iterator[Observation]:
    packages = context.host_facts.get("reboot")
    if packages is not None:
        yield Observation({"packages": ", ".join(packages) or "unknown packages"}, evidence="/run/reboot-required")
