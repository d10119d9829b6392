"""The firewall table of a host. `make edge` loads the same tables with the real nft."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_firewall as NODE  # noqa: N812

from fakes.loaded_table import table_facts
from vllm_spark.core import paths
from vllm_spark.core.ports import ALL_INTERFACES
from vllm_spark.deploy import firewall
from vllm_spark.inventory.edge import EdgeBackend, EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import host_layout

Resolve = Callable[..., Spec]
GOLDEN = paths.ROOT / "tests" / "data" / "firewall"

SITE = {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}
BACKEND = EdgeBackend("demo", ("model",), ALL_INTERFACES, 8000, "0.33.0")
# Name of the golden file -> the edge, its deployments, the ports of sshd.
CASES: dict[str, tuple[dict[str, Any], tuple[EdgeBackend, ...], list[int]]] = {
    "private-networks": ({}, (BACKEND,), [22]),
    "one-network": ({"allow_from": ["192.168.1.0/24", "192.168.1.7", "fd00::/8"]}, (BACKEND,), [2222, 22]),
    "ipv4-alone": ({"allow_from": ["10.0.0.0/8"]}, (BACKEND, replace(BACKEND, port=8001)), [22]),
    "everybody": ({"allow_from": ["0.0.0.0/0", "::/0"]}, (BACKEND,), [22]),
    "loopback": ({}, (replace(BACKEND, bind="127.0.0.1"),), [22]),
    "site-with-metrics": ({"site": SITE, "metrics_from": ["192.168.1.9"]}, (BACKEND,), [22]),
}


def closed(settings: dict[str, Any], backends: tuple[EdgeBackend, ...]) -> HostIntent:
    settings_ = EdgeSettings.from_json({"open": False, **settings})
    return HostIntent("spark1", edge=Edge("spark1", settings_, backends))


@pytest.mark.parametrize("name", CASES)
def test_the_table_is_the_one_that_was_reviewed(name: str) -> None:
    settings, backends, ports = CASES[name]
    text = firewall.table(closed(settings, backends), ports)
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / f"{name}.nft").write_text(text)
    assert text == (GOLDEN / f"{name}.nft").read_text()


HOST = closed({}, (BACKEND,))


def found(**more: Any) -> Any:
    """Return the facts of a host that has the table, but for `more`."""
    return {"table": table_facts(HOST) | more}


def test_a_host_that_has_the_table_needs_nothing() -> None:
    assert firewall.steps(HOST, found()) == firewall.FirewallSteps()
    assert list(firewall.lines(firewall.FirewallSteps(), HOST, None, acts=True)) == []


@pytest.mark.parametrize(
    "more",
    [
        {"loaded": False},
        {"ssh_ports": [2222]},
        {"files": {}},
        {"unit": {"ActiveState": "active", "UnitFileState": "disabled"}},
        {"unit": {"ActiveState": "inactive", "UnitFileState": "enabled"}},
        {"unit": {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "yes"}},
    ],
)
def test_a_host_that_lacks_a_part_of_it_gets_it(more: dict[str, Any]) -> None:
    facts = found(**more)
    planned = firewall.steps(HOST, facts)
    assert planned.differs
    assert (planned.table, planned.package) == (firewall.table(HOST, facts["table"]["ssh_ports"]), False)


def test_nft_is_installed_where_it_is_missing() -> None:
    assert firewall.steps(HOST, found(program=False, loaded=False)).package


def test_an_open_server_of_one_spark_needs_no_table(resolve: Resolve) -> None:
    spec = resolve()
    assert not firewall.wanted(HostIntent.of_rank(spec))
    assert firewall.steps(HostIntent.of_rank(spec), found(files={}, loaded=False)) == firewall.FirewallSteps()


def test_the_table_of_a_closed_spark_lets_every_client_in_after_it_was_opened(resolve: Resolve) -> None:
    spec = resolve()
    planned = firewall.steps(HostIntent.of_rank(spec), found())
    assert planned.table == firewall.table(HostIntent.of_rank(spec), [22])
    assert 'tcp dport 8000 accept comment "clients"' in planned.table
    assert "dport 8000 ip" not in planned.table
    opened: Any = {"table": table_facts(HostIntent.of_rank(spec))}
    assert firewall.steps(HostIntent.of_rank(spec), opened) == firewall.FirewallSteps()


@pytest.mark.parametrize(("rank", "ports"), [(0, [8000]), (1, [])])
def test_clients_of_an_open_pair_reach_its_head(rank: int, ports: list[int], resolve: Resolve) -> None:
    spec = resolve()
    placed = replace(spec.deployment, hosts=("spark1", "spark2"))
    spec = replace(spec, deployment=placed, rank=rank)
    assert firewall.wanted(HostIntent.of_rank(spec))
    found = list(firewall.entrances(HostIntent.of_rank(spec)))
    assert [entrance.port for entrance in found] == ports
    assert all(networks is None for entrance in found for networks in entrance.networks.values())


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({"ufw": False, "firewalld": False}, []),
        ({"ufw": True, "firewalld": False}, ["ufw is on and decides too: clients need `sudo ufw allow 8000/tcp`"]),
        (
            {"ufw": False, "firewalld": True},
            ["firewalld is on and decides too: clients need `sudo firewall-cmd --permanent --add-port=8000/tcp`"],
        ),
    ],
)
def test_other_firewalls_are_named(present: dict[str, bool], expected: list[str]) -> None:
    others: Any = present
    said = list(firewall.lines(firewall.steps(HOST, found(loaded=False)), HOST, others, acts=False))
    assert said == ["the firewall table would be loaded, which decides who reaches 8000; it only drops", *expected]


def test_the_host_and_the_plan_use_the_same_places() -> None:
    assert (NODE.FILE, NODE.UNIT, NODE.UNIT_FILE, " ".join(NODE.TABLE), NODE.FILE_MODE) == (
        host_layout.FIREWALL,
        host_layout.FIREWALL_UNIT,
        host_layout.FIREWALL_UNIT_FILE,
        host_layout.FIREWALL_TABLE,
        "0644",
    )
    unit = firewall.unit_file()
    assert f"{NODE.PROGRAM} --file {NODE.FILE}\n" in unit
    assert f"{NODE.PROGRAM} delete table {host_layout.FIREWALL_TABLE}\n" in unit


@pytest.mark.parametrize(
    ("said", "ports"),
    [
        ("port 22\naddressfamily any\n", [22]),
        ("port 2222\nport 22\nlistenaddress 0.0.0.0:2200\nlistenaddress [::]:2200\n", [22, 2200, 2222]),
        (None, [22]),
        ("something else\n", [22]),
    ],
)
def test_the_ports_of_sshd_are_read_from_its_configuration(
    said: str | None, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = NODE.run("true")._replace(status=127 if said is None else 0, stdout=said or "")
    monkeypatch.setattr(NODE, "run", lambda *_argv: result)
    assert NODE.ssh_ports() == ports
