"""A firewall between the two ranks of a pair."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.links import HostFabric

# The firewalls that a host may have switched on -> the command that accepts everything on a netdev.
RULES = {
    "ufw": "sudo ufw allow in on {}",
    "firewalld": "sudo firewall-cmd --permanent --zone=trusted --add-interface={} && sudo firewall-cmd --reload",
}


@check(
    "firewall-active",
    runbook="firewall",
    severity="warning",
    needs=("host", "fabric"),
    what="{firewall} on {host} drops incoming connections, and no rule accepts them on {netdevs}: the ranks of the "
    "pair wait for each other until they give up",
    fix="`ssh -t {host} '{rules}'`, and the same on the other Spark with its own netdevs.",
    source='a runbook of an owner of two GX10 ("almost always ufw"); ufw is installed and off on DGX OS',
)
def firewall_active(context: HostContext) -> Iterator[Observation]:
    firewall, fabric = context.host_facts.get("firewall"), context.facts.get("fabric")
    if not firewall or not fabric or len(context.spec.deployment.hosts) == 1:
        return
    # Without iptables the policy is unknown, and ufw drops by default.
    if firewall["policy"] not in ("DROP", "REJECT") and not (firewall["ufw"] and not firewall["policy"]):
        return
    used = {link.netdev.name for link in HostFabric.parse(context.host, fabric).links}
    closed = sorted(used - set(firewall["open_netdevs"]))
    if closed:
        program = next((name for name in RULES if firewall.get(name)), "iptables")
        rule = RULES.get(program, "sudo iptables -I INPUT -i {} -j ACCEPT")
        yield Observation(
            {
                "firewall": program,
                "netdevs": ", ".join(closed),
                "rules": " && ".join(rule.format(netdev) for netdev in closed),
            },
            evidence=f"INPUT policy {firewall['policy'] or 'unknown'}, ufw {'on' if firewall['ufw'] else 'off'}",
        )
