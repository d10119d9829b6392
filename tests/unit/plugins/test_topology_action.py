"""The action that judges links which something else has configured, with the facts of each Spark."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from fakes.cabled_sparks import facts
from fakes.fake_ansible import FakeRun

HOSTS = ["spark1", "spark2", "spark3"]
ARGS = {"topology": {"fabric": "triangle", "sparks": HOSTS}, "sparks": HOSTS}


def run_on(host: str, **more: Any) -> FakeRun:
    """Return a run of three Sparks in a triangle."""
    known = facts("triangle", 3)
    rates = {
        "spark1": [("spark1", "spark2", 92.0), ("spark1", "spark3", 91.0)],
        "spark2": [("spark2", "spark1", 92.0), ("spark2", "spark3", 48.0)],
        "spark3": [("spark3", "spark2", 90.0), ("spark3", "spark1", 92.0)],
    }
    hostvars = {
        name: {
            "__spark_fabric_facts": {"facts": {"fabric": known[name]}},
            "__spark_fabric_rates": {"rates": [list(rate) for rate in rates[name]]},
            **more,
        }
        for name in HOSTS
    }
    return FakeRun(host=host, hosts=HOSTS, hostvars=hostvars)


def test_the_first_spark_speaks_and_each_one_gets_its_tests() -> None:
    first, other = run_on("spark1"), run_on("spark3")
    plan = first.act("vllm_topology", phase="judge", **ARGS)["plan"]
    assert [line.partition(":")[0] for line in first.lines] == [
        "spark1  ✓ accepted spark1 port 0 ↔ spark2 port 1 (LLDP)",
        "spark1  ✓ accepted spark2 port 0 ↔ spark3 port 1 (LLDP)",
        "spark1  ✓ accepted spark3 port 0 ↔ spark1 port 1 (LLDP)",
    ]
    assert {rail["host"] for rail in plan["rails"]} == {"spark2", "spark3"}
    assert other.act("vllm_topology", phase="judge", **ARGS)["plan"]["host"] == "spark3"
    assert other.lines == []


def test_the_slowest_link_is_named_once() -> None:
    first, other = run_on("spark1"), run_on("spark2")
    assert first.act("vllm_topology", phase="rates", **ARGS) == {"changed": False}
    [line] = first.lines
    assert line.startswith("spark1  slowest link, which decides for all ranks: spark2 ↔ spark3 with 48.0 Gb/s of TCP; ")
    other.act("vllm_topology", phase="rates", **ARGS)
    assert other.lines == []


def test_the_accepted_links_are_pinged_as_a_configured_one_is() -> None:
    run = run_on("spark2")
    plan = run.act("vllm_topology", phase="judge", **ARGS)["plan"]
    pings = [{**ping, "rc": 1 if ping["size"] > 1000 else 0, "said": "100% packet loss"} for ping in plan["pings"]]
    with pytest.raises(AnsibleActionFail) as failed:
        run.act("vllm_fabric_link", phase="pinged", plan=plan, pings=pings, netdevs=plan["netdevs"])
    assert "56 bytes come back and 8972 undivided do not" in str(failed.value)
    assert "expected: MTU 9000 on both ends" in str(failed.value)


def test_a_spark_with_a_link_of_the_toolkit_is_refused() -> None:
    with pytest.raises(AnsibleActionFail, match="spark1, spark2, spark3 with a vllm_fabric"):
        run_on("spark1", vllm_fabric={"peer": "spark2"}).act("vllm_topology", phase="judge", **ARGS)
