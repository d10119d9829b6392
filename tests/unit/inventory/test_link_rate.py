"""The measured rate of the fabric: which ends are measured, and the judgement."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from fakes.cabled_sparks import facts
from fakes.fake_ansible import FakeRun
from fakes.recorded_hosts import HOSTS, record, recorded
from vllm_spark.inventory import link_rate
from vllm_spark.sizing import reference_spark
from vllm_spark.transfer import jobs

ENDS = link_rate.RailEnds(
    netdev="enp1s0f1np1",
    subnet="192.168.177.0/24",
    own="192.168.177.11",
    peer="192.168.177.12",
    host="spark2",
    first=True,
    turn=0,
)


def received(gbps: float, **more: Any) -> link_rate.Received:
    return link_rate.Received(netdev=ENDS["netdev"], received_bytes=int(gbps * 2e9 / 8), seconds=2.0, **more)


def test_a_limited_nic_is_named_and_a_sound_one_is_shown() -> None:
    # 12.86 and 92.57 Gb/s: NVIDIA/dgx-spark-playbooks#108
    [slow], refusals, rates = link_rate.judge("spark1", [ENDS], [received(12.86)], 40.0)
    assert "fabric-slow: spark1: 192.168.177.0/24 enp1s0f1np1 ← 192.168.177.12 received 12.9 Gb/s" in slow
    assert "expected: 40 Gb/s or more" in slow
    assert "reboot both Sparks with the cable in" in slow
    assert slow.endswith("docs/runbooks/fabric-slow.md")
    assert refusals == []
    assert rates == [("spark1", "spark2", pytest.approx(12.86))]
    lines, refusals, _ = link_rate.judge("spark1", [ENDS], [received(92.57)], 40.0)
    assert (lines, refusals) == (["✓ 192.168.177.0/24 enp1s0f1np1 ← 192.168.177.12: 92.6 Gb/s"], [])


def test_a_subnet_without_tcp_is_refused_with_the_rule_of_the_firewall() -> None:
    failed = received(0, error="no connection came to 192.168.177.11 port 5201")
    lines, [refusal], rates = link_rate.judge("spark1", [ENDS], [failed], 40.0)
    assert (lines, rates) == ([], [])
    assert "no TCP over this subnet (no connection came to 192.168.177.11 port 5201)" in str(refusal)
    assert "ssh -t spark1 sudo ufw allow in on enp1s0f1np1" in refusal.fix


def test_both_ends_of_recorded_hosts_name_each_other(tmp_path: Any) -> None:
    known: Any = {host: record(tmp_path / host, recorded("one-cable", host)) for host in HOSTS}
    own, other = (link_rate.of_facts(host, known) for host in HOSTS)
    assert len(own) == 2
    assert [(end["own"], end["peer"], end["subnet"]) for end in own] == [
        (end["peer"], end["own"], end["subnet"]) for end in other
    ]


@pytest.mark.parametrize(
    ("fabric", "sparks", "turns"), [("triangle", 3, 6), ("ring", 4, 4), ("switch", 3, 6), ("switch", 8, 4)]
)
def test_each_spark_measures_with_both_beside_it_and_nobody_twice_at_once(fabric: str, sparks: int, turns: int) -> None:
    known = facts(fabric, sparks)
    ends = {host: link_rate.of_facts(host, known) for host in known}
    of_turn: dict[int, list[tuple[str, str, bool]]] = {}
    for host, rails in ends.items():
        assert [rail["turn"] for rail in rails] == sorted(rail["turn"] for rail in rails)
        assert len({rail["host"] for rail in rails}) == 2
        for rail in rails:
            of_turn.setdefault(rail["turn"], []).append((host, rail["host"], rail["first"]))
    assert set(of_turn) == set(range(turns))
    for meetings in of_turn.values():
        assert len({host for host, _, _ in meetings}) == len(meetings)
        # Each meeting is in the lists of both, and one of the two is first.
        assert {(peer, host, not first) for host, peer, first in meetings} == set(meetings)


def test_the_slowest_link_is_named_first() -> None:
    rates = [("a", "b", 92.0), ("b", "a", 95.0), ("b", "c", 13.2), ("c", "d", 90.0), ("d", "c", 13.0), ("d", "a", 92.5)]
    line = link_rate.slowest(rates)
    assert line == (
        "slowest link, which decides for all ranks: c ↔ d with 13.0 Gb/s of TCP; b ↔ c 13.2, a ↔ b 92.0, a ↔ d 92.5"
    )


@pytest.mark.parametrize(("moved", "seconds", "warned"), [(16e9, 10.0, True), (16e9, 5.0, False), (1e9, 10.0, False)])
def test_a_slow_copy_of_a_large_model_names_the_link(moved: float, seconds: float, warned: bool) -> None:
    summary = jobs.JOBS["fetch-peer"].summary({"moved": int(moved), "seconds": seconds, "files": 3})
    assert ("fabric-slow" in summary) is warned


def fabric_plan() -> dict[str, Any]:
    """Return the plan of fabric.yml on spark1, as far as a measurement reads it."""
    ends = {"netdev": ENDS["netdev"], "subnet": ENDS["subnet"], "peer": ENDS["peer"]}
    pings = [ends | {"size": size} for size in (8972, 56)]
    return {
        "host": "spark1",
        "peer": "spark2",
        "addresses": {ENDS["netdev"]: f"{ENDS['own']}/24"},
        "pings": pings,
    }


def test_the_action_measures_the_link_of_fabric_yml() -> None:
    run = FakeRun(modules={"spark_link_rate": {"received": [received(92.57)]}})
    run.act("vllm_link_rate", plan=fabric_plan(), least_gbps="40")
    assert run.calls == [("spark_link_rate", {"rails": [ENDS]})]
    assert run.lines == ["spark1  ✓ 192.168.177.0/24 enp1s0f1np1 ← 192.168.177.12: 92.6 Gb/s"]


def test_the_action_measures_the_fabric_of_a_pair_from_its_facts() -> None:
    known = {host: {"spark_precheck_box": {"facts": {"fabric": reference_spark.fabric(host)}}} for host in HOSTS}
    slow = [{**received(13.2), "netdev": netdev} for netdev, *_ in reference_spark.LANES]
    run = FakeRun(host="spark2", hostvars=known, modules={"spark_link_rate": {"received": slow}})
    run.act("vllm_link_rate", hosts=list(HOSTS), least_gbps=40)
    [(_, args)] = run.calls
    assert [(rail["first"], rail["turn"]) for rail in args["rails"]] == [(False, 0), (False, 1)]
    assert [rail["peer"] for rail in args["rails"]] == ["192.168.177.10", "192.168.178.10"]
    assert len(run.lines) == 2
    assert all(line.startswith("spark2  warning fabric-slow: spark2: ") for line in run.lines)


def test_the_action_measures_nothing_for_one_host() -> None:
    run = FakeRun()
    run.act("vllm_link_rate", hosts=["spark1"], least_gbps=40)
    assert run.calls == []


def test_the_action_fails_where_no_tcp_arrives() -> None:
    closed = {"received": [received(0, error="no connection came to 192.168.177.11 port 5201")]}
    with pytest.raises(AnsibleActionFail, match="no TCP over this subnet"):
        FakeRun(modules={"spark_link_rate": closed}).act("vllm_link_rate", plan=fabric_plan(), least_gbps=40)
