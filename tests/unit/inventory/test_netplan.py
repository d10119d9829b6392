"""The direct link of a pair: faults of the inventory and of a host, the netplan file, and the results of the pings."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_netplan
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_lock import Process

from project_files import load_module
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import netplan

SPARKS = ("spark1", "spark2", "spark3")
ONE, TWO = "enp1s0f1np1", "enP2p1s0f1np1"
Change = dict[str, Any]


def fabrics() -> dict[str, Any]:
    """Return vllm_fabric of a pair without faults."""
    return {
        f"spark{n}": {
            "peer": f"spark{3 - n}",
            "addresses": {ONE: f"192.168.177.1{n}/24", TWO: f"192.168.178.1{n}/24"},
        }
        for n in (1, 2)
    }


def netdev(name: str, *addresses: str, **more: Any) -> dict[str, Any]:
    result = [dict(zip(("address", "prefix"), text.split("/"), strict=True)) for text in addresses]
    result = [{"address": entry["address"], "prefix": int(entry["prefix"])} for entry in result]
    return {"name": name, "addresses": result, "mtu": 1500, "carrier": True, "wireless": False, **more}


def host_facts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (fabric facts, netplan facts) of spark1 after an installation of DGX OS."""
    others = [netdev("enP7s7", "10.0.0.5/24"), netdev("wlP9s9", wireless=True), netdev("docker0", "172.17.0.1/16")]
    twins = [netdev(ONE), netdev(TWO)]
    hcas = [{"netdev": name} for name in (ONE, TWO, "enp1s0f0np0", "enP2p1s0f0np0")]
    fabric = {"netdevs": others + twins, "hcas": hcas, "default_route": "enP7s7", "error": ""}
    return fabric, {"netplan": "/usr/sbin/netplan", "reached_by": "enP7s7", "files": [file("01-network-manager-all")]}


def file(name: str, *netdevs: str, **more: Any) -> dict[str, Any]:
    return {"path": f"/etc/netplan/{name}.yaml", "netdevs": list(netdevs), "more": [], "error": "", **more}


def put(document: Any, path: str, value: Any) -> None:
    """Set the value at a path; None removes it."""
    *parents, last = path.split("/")
    for step in parents:
        document = document[step]
    if value is None:
        del document[last]
    else:
        document[last] = value


def messages(error: pytest.ExceptionInfo[RefusedError]) -> str:
    text = str(error.value)
    assert all(" Fix: " in line and " — expected: " in line for line in text.splitlines())
    return text


# A change to the good pair (path to value), and parts of the expected messages.
INVENTORY: list[tuple[Change, list[str]]] = [
    ({"spark1/adresses": {}}, ["spark1 has vllm_fabric with peer, addresses, adresses"]),
    ({"spark1/peer": None}, ["spark1 has vllm_fabric with addresses"]),
    ({"spark1": "enp1s0f1np1"}, ["vllm_fabric with 'enp1s0f1np1'"]),
    ({"spark1/peer": "spark1"}, ["spark1 has the peer spark1"]),
    ({"spark1/peer": "spark9"}, ["spark1 has the peer spark9", "another of spark1, spark2, spark3"]),
    ({"spark1/peer": "spark3"}, ["spark3, the peer of spark1, has no vllm_fabric"]),
    ({"spark2/peer": "spark3"}, ["spark1 has the peer spark2, and spark2 has spark3"]),
    ({"spark2": None}, ["spark2, the peer of spark1, has no vllm_fabric"]),
    ({f"spark1/addresses/{TWO}": None}, [f"addresses for {ONE}", "the two netdevs of one socket"]),
    ({"spark1/addresses/enp1s0f0np0": "192.168.179.1/24"}, ["the two netdevs of one socket"]),
    ({"spark1/addresses": []}, ["addresses for []"]),
    ({"spark1/addresses": {"a b": "192.168.177.1/24", TWO: "192.168.178.1/24"}}, ["names a b"]),
    ({f"spark1/addresses/{ONE}": "192.168.177.300/24"}, ["192.168.177.300/24 is not an IPv4 address"]),
    ({f"spark1/addresses/{ONE}": "fd00::1/64"}, ["fd00::1/64 is not an IPv4 address"]),
    ({f"spark1/addresses/{ONE}": "192.168.177.11"}, ["192.168.177.11 has no prefix"]),
    ({f"spark1/addresses/{ONE}": "192.168.177.0/24"}, ["is the network address of 192.168.177.0/24"]),
    ({f"spark1/addresses/{ONE}": "192.168.177.255/24"}, ["is the broadcast address of 192.168.177.0/24"]),
    ({f"spark1/addresses/{ONE}": "192.168.177.11/32"}, ["has no room for the peer"]),
    ({f"spark1/addresses/{ONE}": "169.254.3.4/16"}, ["cannot be the address of a host"]),
    ({f"spark1/addresses/{ONE}": "127.0.0.2/8"}, ["cannot be the address of a host"]),
    ({f"spark1/addresses/{TWO}": "192.168.177.12/24"}, [f"{TWO} 192.168.177.12/24 in one subnet"]),
    ({f"spark1/addresses/{TWO}": "192.168.0.9/16"}, ["in one subnet"]),
    ({"spark1/mtu": "9000"}, ["spark1 has mtu '9000'"]),
    ({"spark1/mtu": True}, ["spark1 has mtu True"]),
    ({"spark1/mtu": 500}, ["spark1 has mtu 500", "a number from 1280 to 9978"]),
    ({"spark1/mtu": 1500}, ["spark1 has mtu 1500 and spark2 9000"]),
    (
        {f"spark2/addresses/{TWO}": "192.168.179.12/24"},
        ["subnets 192.168.177.0/24, 192.168.178.0/24 and spark2 192.168.177.0/24, 192.168.179.0/24"],
    ),
    ({f"spark2/addresses/{ONE}": "192.168.177.12/25"}, ["192.168.177.0/25"]),
    ({f"spark2/addresses/{ONE}": "192.168.177.11/24"}, ["spark1 and spark2 both have 192.168.177.11"]),
    (
        {"spark1/mtu": 1500, f"spark2/addresses/{ONE}": "192.168.177.11/24"},
        ["spark1 has mtu 1500 and spark2 9000", "both have 192.168.177.11"],
    ),
]


@pytest.mark.parametrize(("change", "says"), INVENTORY, ids=[says[0] for _, says in INVENTORY])
def test_a_faulty_inventory_is_refused(change: Change, says: list[str]) -> None:
    inventory = fabrics()
    for path, value in change.items():
        put(inventory, path, value)
    with pytest.raises(RefusedError) as refused:
        netplan.pair("spark1", inventory, SPARKS, SPARKS)
    assert [part for part in says if part not in messages(refused)] == []


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(RefusedError, match="Fix: -l spark1,spark2"):
        netplan.pair("spark1", fabrics(), SPARKS, ["spark1"])


HOSTS: list[tuple[Change, Change, list[str]]] = [
    ({}, {"netplan": ""}, ["spark1 has no netplan"]),
    ({"netdevs": [netdev(ONE)]}, {}, [f"{TWO} is not on spark1, which has {ONE}", "ibdev2netdev"]),
    (
        {"netdevs": [netdev("enP7s7", "10.0.0.5/24")], "hcas": [], "hotplug": True},
        {},
        [f"{ONE} and {TWO} are not on spark1: no cable, and without one DGX OS powers the NIC down", "wait 10 s"],
    ),
    ({"netdevs": [], "error": "ip: not found"}, {}, ["which has no netdev (ip: not found)"]),
    ({"netdevs": [netdev(ONE, wireless=True), netdev(TWO)]}, {}, [f"{ONE} is a WiFi card on spark1"]),
    ({"default_route": ONE}, {}, [f"{ONE} of spark1 has the default route"]),
    ({}, {"reached_by": TWO}, [f"{TWO} of spark1 carries this connection"]),
    ({"default_route": ONE}, {"reached_by": ONE}, ["has the default route and carries this connection"]),
    (
        {"netdevs": [netdev(ONE), netdev(TWO), netdev("br0", "192.168.0.7/16")]},
        {},
        ["spark1 has 192.168.0.0/16 on br0 already", f"{TWO} is to get 192.168.178.11/24"],
    ),
    ({}, {"files": [file("50-broken", error="not a netplan file: ScannerError")]}, ["50-broken.yaml", "ScannerError"]),
    (
        {},
        {"files": [file("40-cx7", ONE, TWO, "enp1s0f0np0")]},
        [f"/etc/netplan/40-cx7.yaml on spark1 configures {TWO}, {ONE} already", "Fix: vllm_fabric_replace: true"],
    ),
]


@pytest.mark.parametrize(("fabric", "changes", "says"), HOSTS, ids=[says[0] for *_, says in HOSTS])
def test_a_host_that_cannot_take_the_link_is_refused(fabric: Change, changes: Change, says: list[str]) -> None:
    fabric_facts, netplan_facts = host_facts()
    ends = netplan.pair("spark1", fabrics(), SPARKS, SPARKS)
    with pytest.raises(RefusedError) as refused:
        netplan.plan(ends, fabric_facts | fabric, netplan_facts | changes, replace=False)
    assert [part for part in says if part not in messages(refused)] == []


# Files that must not be moved: the rest of their configuration would be lost.
KEEP: list[tuple[dict[str, Any], str]] = [
    (file("00-all", ONE, "enP7s7"), "and also enP7s7"),
    (
        file("90-NM-1", ONE, "enP7s7", profiles=["1-2-3"]),
        "Fix: ssh -t spark1 'sudo nmcli connection delete 1-2-3'.",
    ),
    (file("00-all", ONE, more=["bonds"]), "and also bonds"),
    (file("x", ONE) | {"path": "/usr/lib/netplan/00-x.yaml"}, "take enp1s0f1np1 out of /usr/lib/netplan/00-x.yaml"),
]


@pytest.mark.parametrize(("other", "says"), KEEP, ids=[says for _, says in KEEP])
def test_a_file_with_other_configuration_is_not_moved(other: dict[str, Any], says: str) -> None:
    fabric_facts, netplan_facts = host_facts()
    ends = netplan.pair("spark1", fabrics(), SPARKS, SPARKS)
    with pytest.raises(RefusedError) as refused:
        netplan.plan(ends, fabric_facts, netplan_facts | {"files": [other]}, replace=True)
    assert says in messages(refused)
    assert "vllm_fabric_replace" not in messages(refused)


def planned(fabric: Change | None = None, changes: Change | None = None, *, replace: bool = False) -> netplan.LinkPlan:
    fabric_facts, netplan_facts = host_facts()
    ends = netplan.pair("spark1", fabrics(), SPARKS, SPARKS)
    return netplan.plan(ends, fabric_facts | (fabric or {}), netplan_facts | (changes or {}), replace=replace)


def test_the_file() -> None:
    plan = planned()
    assert plan["path"] == "/etc/netplan/60-vllm-spark-fabric.yaml"
    link = {"mtu": 9000, "dhcp4": False, "dhcp6": False, "link-local": [], "optional": True}
    assert yaml.load(plan["content"], yaml.CSafeLoader) == {
        "network": {
            "version": 2,
            "ethernets": {
                ONE: {"addresses": ["192.168.177.11/24"], **link},
                TWO: {"addresses": ["192.168.178.11/24"], **link},
            },
        }
    }
    assert plan["known_as"] == "spark2,192.168.177.12,192.168.178.12"
    assert plan["move"] == []


def test_the_profiles_of_the_link_win_over_a_profile_without_a_netdev() -> None:
    """NetworkManager activates the profile that was used last, whose `match: {}` fits the netdevs of the cable."""
    loose = file("90-NM-1", profiles=["1-2-3"]) | {"unbound": ["1-2-3"]}
    ethernets = yaml.load(planned(changes={"files": [loose]})["content"], yaml.CSafeLoader)["network"]["ethernets"]
    expected = {"passthrough": {"connection.autoconnect-priority": "100"}}
    assert [ethernets[netdev]["networkmanager"] for netdev in (ONE, TWO)] == [expected, expected]
    assert "networkmanager" not in planned()["content"]


def test_the_ends_can_have_other_names_in_any_order() -> None:
    inventory = fabrics()
    inventory["spark2"]["addresses"] = {"enP2p1s0f0np0": "192.168.178.12/24", "enp1s0f0np0": "192.168.177.12/24"}
    fabric_facts, netplan_facts = host_facts()
    plan = netplan.plan(netplan.pair("spark1", inventory, SPARKS, SPARKS), fabric_facts, netplan_facts, replace=False)
    assert [(ping["netdev"], ping["peer"], ping["size"]) for ping in plan["pings"]] == [
        (ONE, "192.168.177.12", 8972),
        (ONE, "192.168.177.12", 56),
        (TWO, "192.168.178.12", 8972),
        (TWO, "192.168.178.12", 56),
    ]


def test_the_own_file_and_files_of_other_netdevs_do_not_conflict() -> None:
    own = file("60-vllm-spark-fabric", ONE, TWO)
    assert planned(changes={"files": [own, file("90-NM-1", "enP7s7")]}, replace=True)["move"] == []


def test_a_replaced_file_is_moved() -> None:
    old = file("40-cx7", ONE, TWO, "enp1s0f0np0", "enP2p1s0f0np0")
    assert planned(changes={"files": [old]}, replace=True)["move"] == ["/etc/netplan/40-cx7.yaml"]


def shown(addresses: Sequence[str], mtu: int = 9000, *, carrier: bool = True) -> list[dict[str, Any]]:
    """Return what `ip -json addr` shows of the two netdevs."""
    flags = ["UP", "LOWER_UP"] if carrier else ["UP"]
    split = [address.split("/") for address in addresses]
    infos = [{"family": "inet", "local": address, "prefixlen": int(prefix)} for address, prefix in split]
    return [
        {"ifname": name, "mtu": mtu, "flags": flags, "addr_info": [info]}
        for name, info in zip((ONE, TWO), infos, strict=True)
    ]


RIGHT = ("192.168.177.11/24", "192.168.178.11/24")


@pytest.mark.parametrize(
    ("links", "changed"),
    [
        (shown(RIGHT), False),
        (shown(RIGHT, mtu=1500), True),
        (shown(("192.168.177.11/16", RIGHT[1])), True),
        # Without a cable there is no address to wait for; otherwise every run would be a change.
        (shown(("10.0.0.1/8", "10.0.0.2/8"), mtu=1500, carrier=False), False),
    ],
)
def test_a_link_that_is_as_its_file_says_is_not_applied_again(
    links: list[dict[str, Any]],
    changed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    module = load_module("spark_netplan")
    monkeypatch.setattr(module, "ip_json", lambda _: links)
    monkeypatch.setattr(module, "fingerprint", lambda _: (b"a: 1", 0o600, 0, 0))
    addresses = dict(zip((ONE, TWO), RIGHT, strict=True))
    arguments: dict[str, Any] = {"state": "present", "path": str(tmp_path / "1.yaml"), "content": "a: 1"}
    arguments |= {"restore": "x"}
    arguments |= {"addresses": addresses, "mtu": 9000, "_ansible_check_mode": True}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] is changed
    assert result["netdevs"][ONE]["carrier"] is ("LOWER_UP" in links[0]["flags"])


ANSWER = "3 packets transmitted, 3 received, 0% packet loss, time 402ms\nrtt min/avg/max/mdev = 0.112/0.144/0.2/0.01 ms"
NOTHING = "49 packets transmitted, 0 received, 100% packet loss, time 9848ms"
TOO_LONG = f"ping: local error: message too long, mtu=1500\n{NOTHING}"


def judged(*answers: tuple[int, str], carrier: bool = True) -> tuple[list[str], list[str]]:
    plan = planned()
    pings = [ping | {"rc": rc, "said": text} for ping, (rc, text) in zip(plan["pings"], answers, strict=True)]
    lines, refusals = netplan.judge_pings(plan, pings, {name: {"carrier": carrier} for name in (ONE, TWO)})
    return lines, [str(refusal) for refusal in refusals]


def test_both_subnets_answer() -> None:
    lines, refusals = judged(*[(0, ANSWER)] * 4)
    assert lines[0] == f"✓ 192.168.177.0/24 {ONE} → 192.168.177.12: 3 of 3 with 8972 bytes undivided, 0.144 ms"
    assert len(lines) == 2
    assert refusals == []


def test_one_subnet_carries_only_small_packets_and_the_other_nothing() -> None:
    lines, refusals = judged((1, TOO_LONG), (0, ANSWER), (1, NOTHING), (1, NOTHING), carrier=False)
    assert lines == []
    assert "56 bytes come back and 8972 undivided do not (ping: local error: message too long, mtu=1500)" in refusals[0]
    assert "expected: MTU 9000 on both ends" in refusals[0]
    assert refusals[0].endswith("fabric-mtu.md")
    assert f"192.168.178.0/24 {TWO} → 192.168.178.12: no answer (49 packets" in refusals[1]
    assert f"{TWO} has no cable" in refusals[1]


def test_the_refusal_of_a_lost_host_states_the_action_of_the_host() -> None:
    text = str(netplan.lost_refusal("spark1", 60, "timed out"))
    assert "spark1 does not answer over a new connection since netplan was applied (timed out)" in text
    assert "restores its old files by itself, 60 s after" in text


PRESENT = {
    "enp1s0f1np1": {"mac": "aa:00:00:00:00:01", "driver": "mlx5_core"},
    "enP2p1s0f1np1": {"mac": "aa:00:00:00:00:02", "driver": "mlx5_core"},
    "enP7s7": {"mac": "aa:00:00:00:00:07", "driver": "r8127"},
}
DEFINITIONS = [
    ("{network: {version: 2, renderer: NetworkManager}}", [], []),
    # As NVIDIA/dgx-spark-playbooks' 40-cx7.yaml is often copied, with a renderer.
    ("{network: {version: 2, renderer: networkd, ethernets: {enp1s0f1np1: {dhcp4: false}}}}", ["enp1s0f1np1"], []),
    (
        "{network: {version: 2, ethernets: {enp1s0f1np1: {link-local: [ipv4]}, gone0: {}}}}",
        ["enp1s0f1np1", "gone0"],
        [],
    ),
    ("{network: {ethernets: {NM-1: {match: {name: 'enp1*'}}}}}", ["enp1s0f1np1"], []),
    ("{network: {ethernets: {all: {match: {driver: [mlx5_core]}}}}}", ["enP2p1s0f1np1", "enp1s0f1np1"], []),
    ("{network: {ethernets: {a: {match: {macaddress: 'AA:00:00:00:00:07'}, set-name: lan}}}}", ["enP7s7", "lan"], []),
    ("{network: {ethernets: {every: {match: {}}}}}", sorted(PRESENT), []),
    (
        "{network: {ethernets: {a: {match: {name: enP7s7}}}, bonds: {bond0: {interfaces: [a, enp1s0f1np1]}}}}",
        ["enP7s7", "enp1s0f1np1"],
        ["bonds"],
    ),
    ("{network: {vlans: {v7: {id: 7, link: enp1s0f1np1}}}}", ["enp1s0f1np1"], ["vlans"]),
    ("", [], []),
]


@pytest.mark.parametrize(("text", "netdevs", "more"), DEFINITIONS)
def test_the_netdevs_of_a_netplan_file(text: str, netdevs: list[str], more: list[str]) -> None:
    present = copy.deepcopy(PRESENT)
    assert spark_netplan.definitions(yaml.load(text, yaml.CSafeLoader), present) == (netdevs, more)


# As NetworkManager 1.46 writes the profile "Wired connection 1" of an Ubuntu 24.04 (iiab/iiab#4347), and the same after
# `nmcli connection modify … connection.interface-name enP7s7`.
PROFILE = """
network:
  version: 2
  ethernets:
    NM-626dd384-8b3d-3690-9511-192b2c79b3fd:
      renderer: NetworkManager
      match: {MATCH}
      dhcp4: true
      dhcp6: true
      ipv6-address-generation: "stable-privacy"
      wakeonlan: true
      networkmanager:
        uuid: "626dd384-8b3d-3690-9511-192b2c79b3fd"
        name: "Wired connection 1"
        passthrough:
          connection.autoconnect-priority: "-999"
          ethernet._: ""
          proxy._: ""
"""
UUID = "626dd384-8b3d-3690-9511-192b2c79b3fd"


@pytest.mark.parametrize(("match", "netdevs", "unbound"), [("{}", [], [UUID]), ("{name: enP7s7}", ["enP7s7"], [])])
def test_a_profile_of_networkmanager_configures_the_netdev_that_it_names(
    match: str, netdevs: list[str], unbound: list[str], tmp_path: Path
) -> None:
    path = tmp_path / f"90-NM-{UUID}.yaml"
    path.write_text(PROFILE.replace("{MATCH}", match))
    configured = spark_netplan.configured(str(path), copy.deepcopy(PRESENT))
    assert configured == {"netdevs": netdevs, "more": [], "profiles": [UUID], "unbound": unbound, "error": ""}


def test_a_profile_without_a_netdev_is_a_note_with_the_command_that_binds_it() -> None:
    plan = planned(changes={"files": [file("90-NM-1", profiles=[UUID], unbound=[UUID])]})
    assert plan["move"] == []
    assert f"sudo nmcli connection modify {UUID} connection.interface-name NETDEV" in plan["notes"][0]


def test_the_session_is_found_above_a_sudo_that_drops_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = {"/proc/30/environ": "HOME=/root\0", "/proc/20/environ": "A=b\0SSH_CONNECTION=c 5 fe80::1%eth0 22\0"}
    monkeypatch.setattr(spark_netplan.os, "getpid", lambda: 30)
    monkeypatch.setattr(spark_netplan, "read_text", environments.get)
    monkeypatch.setattr(spark_netplan, "process", lambda pid: Process(parent={30: 20}.get(pid, 1)))
    link = {"ifname": "eth0", "addr_info": [{"local": "fe80::1"}]}
    monkeypatch.setattr(spark_netplan, "ip_json", lambda _: [{"ifname": "lo", "addr_info": []}, link])
    assert spark_netplan.reached_by() == "eth0"
    environments.pop("/proc/20/environ")
    assert spark_netplan.reached_by() == ""


def test_a_host_without_an_answer_of_ip_gets_a_message_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = {"state": "present", "path": str(tmp_path / "1.yaml"), "content": "a: 1", "restore": "x"}
    with patch_module_args({**arguments, "_ansible_check_mode": True}), pytest.raises(SystemExit) as ended:
        load_module("spark_netplan").main()
    result = json.loads(capsys.readouterr().out)
    assert (ended.value.code, result["failed"]) == (1, True)
    assert result["msg"].startswith("ip -json addr ended with 127: ip: not found — expected: exit status 0.")
    assert "Fix: " in result["msg"]
    assert "docs/runbooks/fabric-netplan.md" in result["msg"]
