"""The fabric: hosts recorded as trees of sysfs, read by the collector, judged by the plan.

expect.json of a case holds `choices` or `refusals` (id -> parts of the messages, in order).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_fabric

from fakes.recorded_hosts import CASES, HOSTS, load, record, recorded
from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.inventory import fabric
from vllm_spark.inventory.fabric import FabricChoice
from vllm_spark.inventory.links import HostFabric


@pytest.fixture
def pair_facts(tmp_path: Path) -> Any:
    """A function that returns the facts of both hosts of a case."""

    def read(case: str) -> dict[str, dict[str, Any]]:
        return {host: record(tmp_path / host, recorded(case, host)) for host in HOSTS}

    return read


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path, tmp_path: Path) -> None:
    expected = json.loads((case / "expect.json").read_text())
    facts = {host: record(tmp_path / host, load(case, host)) for host in HOSTS}
    refused: tuple[Refusal, ...] = ()
    chosen: dict[str, FabricChoice] = {}
    try:
        chosen = fabric.choose(facts)
    except RefusedError as error:
        refused = error.refusals
    messages: dict[str, list[str]] = {}
    for refusal in refused:
        messages.setdefault(refusal.id, []).append(str(refusal))
    assert messages.keys() == expected.get("refusals", {}).keys(), messages
    for name, parts in expected.get("refusals", {}).items():
        text = "\n".join(messages[name])
        for part in parts:
            assert part in text
    for host, fields in expected.get("choices", {}).items():
        assert_choice(chosen[host], fields)


def assert_choice(choice: FabricChoice, fields: Mapping[str, Any]) -> None:
    """Assert every field, a part of each note, and the number of notes."""
    for name, value in fields.items():
        if name != "notes":
            actual = getattr(choice, name)
            assert (list(actual) if isinstance(actual, tuple) else actual) == value, name
    assert len(choice.notes) == len(fields["notes"]), choice.notes
    for part, note in zip(fields["notes"], choice.notes, strict=True):
        assert part in note
        assert choice.host in note


def test_the_order_of_the_hosts_does_not_matter(pair_facts: Any) -> None:
    facts = pair_facts("different-ports")
    reverse = dict(reversed(facts.items()))
    assert fabric.choose(facts) == fabric.choose(reverse)


def test_a_fabric_joins_two_hosts(pair_facts: Any) -> None:
    facts = pair_facts("one-cable")
    with pytest.raises(ValueError, match="two hosts or more, not 1: spark1"):
        fabric.choose({"spark1": facts["spark1"]})


def test_every_message_has_a_fix_and_an_existing_runbook(pair_facts: Any, tmp_path: Path) -> None:
    texts: list[str] = []
    for case in CASES:
        facts = {host: record(tmp_path / case.name / host, load(case, host)) for host in HOSTS}
        try:
            texts += [note for choice in fabric.choose(facts).values() for note in choice.notes]
        except RefusedError as error:
            texts += map(str, error.refusals)
    assert len(texts) > 10
    for text in texts:
        assert " — expected: " in text
        assert "Fix: " in text
        assert (paths.ROOT / text.rpartition("See ")[2]).is_file(), text


# The collector


def test_the_collector_reads_a_whole_host(tmp_path: Path) -> None:
    facts = record(tmp_path, recorded("one-cable"))
    assert facts["ib_core"] is True
    assert facts["default_route"] == "enP7s7"
    assert facts["devices"][:2] == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    assert facts["error"] == ""
    netdevs = {entry["name"]: entry for entry in facts["netdevs"]}
    assert netdevs["enp1s0f1np1"] == {
        "name": "enp1s0f1np1",
        "addresses": [{"address": "192.168.100.10", "prefix": 24}],
        "mac": "",
        "mtu": 9000,
        "carrier": True,
        "wireless": False,
        "pci": "0000:01:00.1",
        "master": "",
    }
    assert netdevs["enp1s0f0np0"]["carrier"] is False
    hcas = {entry["name"]: entry for entry in facts["hcas"]}
    assert hcas["roceP2p1s0f1"] == {
        "name": "roceP2p1s0f1",
        "netdev": "enP2p1s0f1np1",
        "state": "ACTIVE",
        "rate": "200 Gb/sec (4X HDR)",
        "pci": "0002:01:00.1",
        "pci_width": 4,
        "pci_max_width": 4,
        "pci_speed": "32.0 GT/s PCIe",
        "pci_max_speed": "32.0 GT/s PCIe",
        "gids": [
            {"index": 0, "type": "IB/RoCE v1", "address": "fe80::4ebb:47ff:fe00:1"},
            {"index": 1, "type": "RoCE v2", "address": "fe80::4ebb:47ff:fe00:1"},
            {"index": 2, "type": "IB/RoCE v1", "address": "192.168.101.10"},
            {"index": 3, "type": "RoCE v2", "address": "192.168.101.10"},
        ],
        "gids_from": "sysfs",
    }


def test_the_collector_runs_ibdev2netdev_if_sysfs_has_no_hca(tmp_path: Path) -> None:
    facts = record(tmp_path, recorded("sandbox"))
    (hca,) = facts["hcas"]
    assert (hca["name"], hca["netdev"], hca["state"]) == ("rocep1s0f1", "eth1", "ACTIVE")
    assert (hca["gids"], hca["gids_from"], hca["pci"]) == ([], "", None)


@pytest.mark.parametrize("line", ["rocep1s0f1 port 1 ==> (none) (Down)\n", "rocep1s0f1 port 1 ==> (Down)\n"])
def test_an_hca_without_a_netdev(tmp_path: Path, line: str) -> None:
    facts = record(tmp_path, recorded("sandbox") | {"ibdev2netdev": line})
    assert [(hca["netdev"], hca["state"]) for hca in facts["hcas"]] == [(None, "DOWN")]


def test_the_collector_runs_show_gids_if_sysfs_has_no_table(tmp_path: Path) -> None:
    host = recorded("one-cable")
    host["hcas"]["rocep1s0f1"]["gids"] = None
    host["show_gids"] = (
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n"
        "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
        "rocep1s0f1\t1\t1\tfe80:0000:0000:0000:4ebb:47ff:fe00:0001\t\t\tv2\tenp1s0f1np1\n"
        "rocep1s0f1\t1\t5\t0000:0000:0000:0000:0000:ffff:c0a8:640a\t192.168.100.10  \tv2\tenp1s0f1np1\n"
        "n_gids_found=2\n"
    )
    facts = record(tmp_path, host)
    gids = {hca["name"]: (hca["gids_from"], hca["gids"][-1]) for hca in facts["hcas"]}
    assert gids["rocep1s0f1"] == ("show_gids", {"index": 5, "type": "RoCE v2", "address": "192.168.100.10"})
    assert gids["roceP2p1s0f1"][0] == "sysfs"


def test_unknown_gids_are_not_refused(tmp_path: Path) -> None:
    facts = {}
    for host in HOSTS:
        description = recorded("one-cable", host)
        for hca in description["hcas"].values():
            hca["gids"] = None
        facts[host] = record(tmp_path / host, description)
    assert [choice.gid_index for choice in fabric.choose(facts).values()] == [None, None]


def test_the_default_route_is_the_one_with_the_lowest_metric(tmp_path: Path) -> None:
    record(tmp_path, recorded("one-cable"))
    routes = [
        {"dst": "default", "dev": "wlP9s9", "metric": 600},
        {"dst": "default", "dev": "enP7s7", "metric": 100},
        {"dst": "192.168.1.0/24", "dev": "wlP9s9"},
    ]
    (tmp_path / "ip-route.json").write_text(json.dumps(routes))
    assert spark_fabric.fabric(str(tmp_path))["default_route"] == "enP7s7"


def test_a_host_without_netdevs_is_not_an_error(tmp_path: Path) -> None:
    facts = spark_fabric.fabric(str(tmp_path))
    assert (facts["netdevs"], facts["hcas"], facts["devices"], facts["ib_core"]) == ([], [], [], False)


def test_a_missing_ip_command_is_reported_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    facts = spark_fabric.fabric()
    assert "ip: not found" in facts["error"]
    assert facts["default_route"] is None


# Links and twins


def test_links_are_up_have_an_address_and_are_sorted_by_subnet(tmp_path: Path) -> None:
    links = HostFabric.parse("spark1", record(tmp_path, recorded("two-cables"))).links
    assert [str(link.subnet) for link in links] == [f"192.168.{n}.0/24" for n in (100, 101, 102, 103)]
    assert HostFabric.parse("spark1", record(tmp_path / "other", recorded("no-cable"))).links == []


@pytest.mark.parametrize("with_pci", [True, False])
def test_twins_are_the_hcas_of_one_socket(tmp_path: Path, with_pci: bool) -> None:
    facts = record(tmp_path, recorded("two-cables"))
    for hca in facts["hcas"]:
        hca["pci"] = hca["pci"] if with_pci else None
    ports: dict[str, set[str]] = {}
    for link in HostFabric.parse("spark1", facts).links:
        ports.setdefault(link.hca.port, set()).add(link.hca.name)
    assert sorted(map(sorted, ports.values())) == [["roceP2p1s0f0", "rocep1s0f0"], ["roceP2p1s0f1", "rocep1s0f1"]]


def test_a_second_address_of_a_netdev_is_not_a_second_rail(pair_facts: Any) -> None:
    facts = pair_facts("one-twin")
    for number, host_facts in enumerate(facts.values()):
        netdev = next(entry for entry in host_facts["netdevs"] if entry["name"] == "enp1s0f1np1")
        netdev["addresses"].append({"address": f"192.168.99.{number + 1}", "prefix": 24})
        for hca in host_facts["hcas"]:
            hca["gids_from"] = ""  # the recorded tables do not have the new address
    choice = fabric.choose(facts)["spark1"]
    assert (choice.address, choice.hcas) == ("192.168.99.1", ("rocep1s0f1",))


# The environment


def choices(pair_facts: Any, case: str) -> tuple[FabricChoice, FabricChoice]:
    chosen = fabric.choose(pair_facts(case))
    return chosen["spark1"], chosen["spark2"]


def test_the_environment_of_a_rank_over_mp(pair_facts: Any) -> None:
    _, other = choices(pair_facts, "different-ports")
    assert fabric.environment(other, "mp") == {
        "VLLM_HOST_IP": "192.168.100.11",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "UCX_NET_DEVICES": "enp1s0f0np0",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_DMABUF_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }


def test_the_environment_of_a_rank_over_ray(pair_facts: Any) -> None:
    mine, _ = choices(pair_facts, "one-cable")
    over_mp, over_ray = (fabric.environment(mine, executor) for executor in ("mp", "ray"))
    assert {name: over_ray[name] for name in over_ray.keys() - over_mp.keys()} == {
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_NODE_IP_ADDRESS": "192.168.100.10",
        "RAY_OVERRIDE_NODE_IP_ADDRESS": "192.168.100.10",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    assert over_mp.items() <= over_ray.items()


def test_no_gid_index_is_pinned(pair_facts: Any) -> None:
    mine, _ = choices(pair_facts, "one-cable")
    assert mine.gid_index == 3
    assert not [name for name in fabric.environment(mine, "ray") if "GID" in name]


V2 = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"


@pytest.mark.parametrize(
    ("case", "engine", "refused"),
    [
        ("different-ports", ("ray", "0.19.1", {}), True),
        ("different-ports", ("ray", "0.20.2", {}), True),
        ("different-ports", ("ray", "0.22.1", {}), True),
        ("different-ports", ("ray", "0.20.2rc1.dev49+g9b4e83934", {}), True),
        ("different-ports", ("ray", "0.23.0", {}), False),
        ("different-ports", ("ray", "0.23.0", {V2: "0"}), True),
        ("different-ports", ("ray", "0.33.0", {}), False),
        ("different-ports", ("mp", "0.20.2", {}), False),
        ("different-ports", ("ray", "0.20.2", {V2: "1"}), False),
        ("different-ports", ("ray", "0.20.2", {V2: "0"}), True),
        ("different-ports", ("ray", "0.19.1", {V2: "1"}), True),
        ("one-cable", ("ray", "0.20.2", {}), False),
        ("sandbox", ("ray", "0.20.2", {}), True),  # its eth1 is eth2 on spark2
    ],
)
def test_names_that_the_head_overwrites_are_refused(
    pair_facts: Any, case: str, engine: tuple[str, str, dict[str, str]], refused: bool
) -> None:
    executor, version, env = engine
    mine, other = choices(pair_facts, case)
    found = list(fabric.env_refusals(mine, executor, version, other, env))
    assert bool(found) is refused
    if not refused:
        return
    (refusal,) = found
    assert refusal.id == "fabric-names-differ"
    assert version in refusal.what
    assert f"NCCL_SOCKET_IFNAME is ={mine.netdev} on spark1, ={other.netdev} on spark2" in refusal.what


@pytest.mark.parametrize("name", ["';touch${IFS}M;'", "eth$(id)", "a\nb", '"', "`id`"])
@pytest.mark.parametrize("kind", ["netdev", "hca"])
def test_a_device_whose_name_a_shell_could_read_is_refused(pair_facts: Any, kind: str, name: str) -> None:
    facts = pair_facts("one-cable")
    used = HostFabric.parse("spark2", facts["spark2"]).links[0]
    old = used.netdev.name if kind == "netdev" else used.hca.name
    renamed = json.loads(json.dumps(facts).replace(json.dumps(old), json.dumps(name)))
    facts["spark2"] = renamed["spark2"]
    with pytest.raises(RefusedError) as refused:
        fabric.choose(facts)
    assert [refusal.id for refusal in refused.value.refusals] == ["fabric-name"]
    message = str(refused.value)
    assert f"spark2 has a fabric device with the name {name!r}" in message
    assert "\n" not in message
