"""The reasons why the netplan file of the direct link cannot be placed on a host. Pure: facts in, refusals out."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.types import FabricFacts, NetplanFacts, NetplanFileFacts
from vllm_spark.inventory.fabric_refusals import CABLE, FABRIC_NO_CABLE, NO_CABLE, PLUG_IN
from vllm_spark.inventory.link_config import LinkConfig, plan_refusal

FABRIC_NETPLAN_MISSING = register("fabric-netplan-missing", runbook="fabric-netplan")
FABRIC_NETDEV = register("fabric-netdev", runbook="fabric-netdev")
FABRIC_MANAGEMENT = register("fabric-management", runbook="fabric-management")
FABRIC_NETPLAN_UNREADABLE = register("fabric-netplan-unreadable", runbook="fabric-netplan")
FABRIC_NETPLAN_CONFLICT = register("fabric-netplan-conflict", runbook="fabric-netplan")

# After NVIDIA's 40-cx7.yaml, and before 90-NM-*, which NetworkManager writes.
FILE = "/etc/netplan/60-vllm-spark-fabric.yaml"
# The only one of netplan's three folders whose files belong to the owner.
OWNERS_FOLDER = "/etc/netplan/"


def refusals(config: LinkConfig, fabric: FabricFacts, netplan: NetplanFacts, *, replace: bool) -> Iterator[Refusal]:
    """Yield every reason. `replace` allows to move an owner's file that configures nothing else."""
    if not netplan["netplan"]:
        yield FABRIC_NETPLAN_MISSING(
            what=f"{config.host} has no netplan",
            expected="netplan, with which DGX OS configures its network",
            fix=Fix(
                f"ssh -t {config.host} sudo apt-get install netplan.io",
                "Or leave vllm_fabric out and configure the link with the host's own network manager.",
            ),
        )
        return
    yield from _missing_netdevs(config, fabric)
    yield from _management_netdevs(config, fabric, netplan)
    yield from _used_subnets(config, fabric)
    yield from _unreadable_files(config, netplan)
    yield from _conflicting_files(config, fabric, netplan, replace=replace)


def conflicts(config: LinkConfig, netplan: NetplanFacts) -> list[NetplanFileFacts]:
    """Return the other netplan files that configure a netdev of the link."""
    own = _netdevs(config)
    return [file for file in netplan["files"] if file["path"] != FILE and own & set(file["netdevs"])]


def notes(config: LinkConfig, netplan: NetplanFacts) -> list[str]:
    """Return a line for each profile of NetworkManager that names no netdev, so that it may take one of the link."""
    return [
        f"{file['path']} has the NetworkManager profile {uuid}, which names no netdev. The verb fabric leaves it. "
        f"If it takes {' or '.join(twin.netdev for twin in config.twins)}, give it the netdev of your network: ssh "
        f"{config.host} sudo nmcli connection modify {uuid} connection.interface-name NETDEV"
        for file in netplan["files"]
        for uuid in file.get("unbound", [])
    ]


def _netdevs(config: LinkConfig) -> set[str]:
    return {twin.netdev for twin in config.twins}


def _missing_netdevs(config: LinkConfig, fabric: FabricFacts) -> Iterator[Refusal]:
    known = {entry["name"]: entry for entry in fabric["netdevs"]}
    if fabric.get("hotplug") and not fabric["hcas"]:
        missing = [twin.netdev for twin in config.twins if twin.netdev not in known]
        if missing:
            yield FABRIC_NO_CABLE(
                what=f"{' and '.join(missing)} are not on {config.host}: {NO_CABLE}", expected=CABLE, fix=PLUG_IN
            )
            return
    for twin in config.twins:
        netdev = known.get(twin.netdev)
        if netdev is None or netdev["wireless"]:
            state = f"is a WiFi card on {config.host}" if netdev else f"is not on {config.host}"
            error = f" ({fabric['error']})" if fabric.get("error") else ""
            yield FABRIC_NETDEV(
                what=f"{twin.netdev} {state}, which has {', '.join(known) or 'no netdev'}{error}",
                expected="the two netdevs of the socket with the cable",
                fix=Fix(
                    f"ssh -t {config.host} ibdev2netdev",
                    "It names them; write the two with (Up) into vllm_fabric.addresses. If it prints nothing: plug the "
                    "cable in on both ends and wait 10 s.",
                ),
            )


def _management_netdevs(config: LinkConfig, fabric: FabricFacts, netplan: NetplanFacts) -> Iterator[Refusal]:
    """Refuse netdevs that carry the default route or this SSH session."""
    routes = {"has the default route": fabric["default_route"], "carries this connection": netplan["reached_by"]}
    for twin in config.twins:
        uses = [use for use, netdev in routes.items() if netdev == twin.netdev]
        if uses:
            yield FABRIC_MANAGEMENT(
                what=f"{twin.netdev} of {config.host} {' and '.join(uses)}",
                expected="netdevs that only the pair uses",
                fix=f"name the fabric's netdevs in vllm_fabric.addresses (`ssh -t {config.host} ibdev2netdev`), and "
                "reach the Spark over another network.",
            )


def _used_subnets(config: LinkConfig, fabric: FabricFacts) -> Iterator[Refusal]:
    """Refuse a subnet that the host already has on another netdev."""
    others = [entry for entry in fabric["netdevs"] if entry["name"] not in _netdevs(config)]
    for entry in others:
        for address in entry["addresses"]:
            present = IPv4Interface(f"{address['address']}/{address['prefix']}")
            for twin in config.twins:
                if twin.subnet.overlaps(present.network):
                    yield plan_refusal(
                        f"{config.host} has {present.network} on {entry['name']} already, and {twin.netdev} is to get "
                        f"{twin.address}",
                        "a subnet that the host does not use elsewhere",
                        "other subnets for both hosts.",
                    )


def _unreadable_files(config: LinkConfig, netplan: NetplanFacts) -> Iterator[Refusal]:
    for file in netplan["files"]:
        if file["error"]:
            yield FABRIC_NETPLAN_UNREADABLE(
                what=f"{file['path']} on {config.host}: {file['error']}",
                expected="files that netplan can read, or it applies none",
                fix=Fix(f"ssh -t {config.host} sudo netplan generate", "It shows the line."),
            )


def _conflicting_files(
    config: LinkConfig, fabric: FabricFacts, netplan: NetplanFacts, *, replace: bool
) -> Iterator[Refusal]:
    own = _netdevs(config)
    fabric_netdevs = own | {hca["netdev"] for hca in fabric["hcas"] if hca["netdev"]}
    for file in conflicts(config, netplan):
        more = sorted(set(file["netdevs"]) - fabric_netdevs) + list(file["more"])
        movable = file["path"].startswith(OWNERS_FOLDER) and not more
        if movable and replace:
            continue
        shared = ", ".join(sorted(own & set(file["netdevs"])))
        fix: str | Fix
        if movable:
            fix = "vllm_fabric_replace: true moves the file into the journal; vllm_fabric_state=absent restores it."
        elif file.get("profiles"):
            # NetworkManager writes such a file again from its profile.
            delete = " && ".join(f"sudo nmcli connection delete {uuid}" for uuid in file["profiles"])
            fix = Fix(f"ssh -t {config.host} '{delete}'")
        else:
            fix = f"take {shared} out of {file['path']} by hand, then `sudo netplan apply` on {config.host}."
        yield FABRIC_NETPLAN_CONFLICT(
            what=f"{file['path']} on {config.host} configures {shared} already"
            + (f", and also {', '.join(more)}" if more else ""),
            expected=f"one file for them, {FILE}: netplan would join the addresses of both",
            fix=fix,
        )
