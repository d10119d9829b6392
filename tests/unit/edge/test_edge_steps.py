"""What a deploy does about an edge: nothing if it is as planned, and no more than what differs."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes import edge_cases
from fakes.cases import asked
from vllm_spark.deploy import plan
from vllm_spark.edge import authority, config, steps, switch_request
from vllm_spark.edge.authority import HostPair
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.lifecycle import switch
from vllm_spark.node import host_layout

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ADDRESS = "192.168.1.20"
SITE = authority.new_authority(NOW)


def closed(**more: Any) -> Edge:
    return edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False, **more})


def placed(text: str, mode: str) -> list[str]:
    return [hashlib.sha256(text.encode()).hexdigest(), mode]


def shown(pair: HostPair) -> dict[str, str]:
    """Return the facts of an edge about its certificates."""
    return {"certificate": pair.certificate, "names_certificate": pair.names_certificate}


def as_planned(edge: Edge) -> dict[str, Any]:
    """Return the facts of a host whose edge is as planned."""
    names = list(config.names(edge, ADDRESS))
    return {
        "program": True,
        "account": True,
        "files": {
            **{file.path: placed(file.content, file.mode) for file in steps.files_of(edge, ADDRESS)},
            **({host_layout.EDGE_AUTHORITY: placed(SITE.certificate, "0640")} if edge.settings.tls == "own-ca" else {}),
        },
        **shown(authority.new_certificate(SITE, names, NOW)),
        "keys": ["ada"],
        "may_switch": [],
        "batch": [],
        "unit": {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"},
        "route": {"ActiveState": "active", "NeedDaemonReload": "no"},
        "switch": {"ActiveState": "inactive"},
    }


def planned(edge: Edge, facts: dict[str, Any], now: datetime = NOW) -> steps.EdgeSteps:
    return steps.steps(edge, facts, ADDRESS, SITE.certificate, now)  # type: ignore[arg-type]


def test_an_edge_as_planned_needs_nothing() -> None:
    edge = closed()
    found = planned(edge, as_planned(edge))
    assert found.settled
    assert steps.lines(found, edge, acts=True) == []


def test_a_deploy_names_the_files_that_were_edited() -> None:
    edge = closed()
    facts = as_planned(edge)
    facts["files"][host_layout.EDGE_CONFIG] = ["0", "0640"]
    found = planned(edge, facts)
    assert steps.lines(found, edge, acts=True) == [
        "the edge will be updated: https on 0.0.0.0:8000; not as planned: haproxy.cfg"
    ]
    absent = planned(edge, {**facts, "files": {}})
    assert absent.edited == []
    assert steps.lines(absent, edge, acts=True) == ["the edge will be installed: https on 0.0.0.0:8000"]


# Change of the facts -> (differs, renewal starts with, first key).
CHANGES: dict[str, tuple[dict[str, Any], bool, str, bool]] = {
    "nothing is there": (
        {"program": False, "account": False, "files": {}, "certificate": "", "keys": [], "unit": {}, "route": {}},
        True,
        "there is none",
        True,
    ),
    "another configuration": ({"files": {}}, True, "", False),
    "another program that reads tokens": (
        {"files": {**as_planned(closed())["files"], host_layout.EDGE_TOKENS: placed("", "0640")}},
        True,
        "",
        False,
    ),
    "no account": ({"account": False}, True, "", False),
    "it does not run": ({"unit": {"ActiveState": "failed", "UnitFileState": "enabled"}}, True, "", False),
    "its second stage does not run": ({"route": {"ActiveState": "failed"}}, True, "", False),
    "systemd has an old unit of the second stage": (
        {"route": {"ActiveState": "active", "NeedDaemonReload": "yes"}},
        True,
        "",
        False,
    ),
    "not enabled": ({"unit": {"ActiveState": "active", "UnitFileState": "disabled"}}, True, "", False),
    "systemd has an old unit": (
        {"unit": {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "yes"}},
        True,
        "",
        False,
    ),
    "nobody has a key": ({"keys": []}, False, "", True),
    "no certificate of names alone": ({"names_certificate": ""}, False, "there is none of names alone", False),
    "one of other names alone": (
        {"names_certificate": authority.new_certificate(SITE, ["spark1"], NOW).certificate},
        False,
        "the certificate lacks spark1.local, localhost",
        False,
    ),
    "a foreign one of names alone": (
        {"names_certificate": authority.new_certificate(authority.new_authority(NOW), ["x"], NOW).names_certificate},
        False,
        "the certificate is not of this site's authority",
        False,
    ),
    "the list of its certificates is another": (
        {"files": {**as_planned(closed())["files"], host_layout.EDGE_CERTIFICATE_LIST: placed("", "0640")}},
        True,
        "",
        False,
    ),
    "a foreign certificate": (
        {"certificate": authority.new_certificate(authority.new_authority(NOW), ["x"], NOW).certificate},
        False,
        "the certificate is not of",
        False,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_differs_changes(name: str) -> None:
    change, differs, renewal, first_key = CHANGES[name]
    edge = closed()
    found = planned(edge, {**as_planned(edge), **change})
    assert (found.differs, found.first_key, found.settled) == (differs, first_key, False)
    assert found.renewal.startswith(renewal)
    assert bool(found.renewal) == bool(renewal)


def test_a_certificate_is_renewed_before_its_end() -> None:
    edge = closed()
    later = planned(edge, as_planned(edge), NOW + timedelta(days=authority.CERTIFICATE_DAYS - 10))
    assert steps.lines(later, edge, acts=False) == [f"the edge would be given a new certificate: {later.renewal}"]


def test_without_tls_there_is_no_certificate() -> None:
    edge = closed(tls="off")
    assert planned(edge, {**as_planned(edge), "certificate": ""}).settled


def test_an_edge_of_a_site_has_the_authority_and_a_certificate_to_ask_with() -> None:
    edge = edge_cases.edge_of([edge_cases.DEMO, edge_cases.REPLICA], {"open": False, "site": edge_cases.SITE})
    facts = as_planned(edge)
    assert planned(edge, facts).renewal == "the other edges of the site would refuse the certificate"
    names = list(config.names(edge, ADDRESS))
    facts["certificate"] = authority.new_certificate(SITE, names, NOW, asks=True).certificate
    assert planned(edge, facts).settled
    del facts["files"][host_layout.EDGE_AUTHORITY]
    assert planned(edge, facts).differs
    # A Spark that leaves the site keeps its certificate.
    alone = closed()
    assert planned(alone, {**as_planned(alone), "certificate": facts["certificate"]}).settled


def test_the_program_that_starts_models_is_placed_runs_and_goes() -> None:
    edge, without = closed(switch_by_request=True), closed()
    facts = as_planned(edge)
    files = {file.path: placed(file.content, file.mode) for file in switch_request.files(edge)}
    assert planned(
        edge, {**facts, "files": {path: of for path, of in facts["files"].items() if path not in files}}
    ).differs
    assert planned(edge, facts).differs
    facts["switch"] = {"ActiveState": "active"}
    found = planned(edge, facts)
    assert found.settled
    assert set(found.switch) == set(steps.SWITCH_ARGUMENTS.values())
    found = planned(without, {**as_planned(without), "files": {**as_planned(without)["files"], **files}})
    assert (found.differs, found.switch) == (True, {})


def test_own_files_are_placed_when_they_change() -> None:
    own = {"tls": "files", "certificate": "chain.pem", "private_key": "key.pem"}
    edge = closed(**own)
    facts = as_planned(edge)
    same = steps.steps(edge, facts, ADDRESS, facts["certificate"], NOW)  # type: ignore[arg-type]
    assert same.settled
    assert "certificate_list" not in same.texts
    facts["files"][host_layout.EDGE_CERTIFICATE_LIST] = placed("", "0640")
    assert planned(edge, facts).edited == ["certificates.list"]
    assert planned(edge, facts).renewal == "vllm_edge.certificate has changed"


@pytest.mark.parametrize(
    ("is_open", "active", "at_boot", "state"),
    [
        (True, "inactive", "", ""),
        (True, "failed", "disabled", ""),
        (True, "active", "enabled", "absent"),
        (True, "activating", "disabled", "absent"),
        # It would take the engine's port at the next boot.
        (True, "inactive", "enabled", "absent"),
        (False, "active", "enabled", "present"),
        (False, "inactive", "", "present"),
    ],
)
def test_nothing_is_done_about_an_edge_that_is_open_and_not_there(
    is_open: bool, active: str, at_boot: str, state: str
) -> None:
    edge = edge_cases.edge_of([edge_cases.DEMO], {"open": is_open})
    unit = {"ActiveState": active, "UnitFileState": at_boot}
    assert steps.state(edge, {"units": {"vllm-edge.service": unit}}) == state  # type: ignore[typeddict-item]


def test_the_worker_of_an_open_pair_loses_the_edge_that_it_has() -> None:
    worker = edge_cases.resolved([{**edge_cases.PAIR, "hosts": ["spark2", "spark1"]}], {"open": True})
    assert worker.rank == 1
    assert host_layout.EDGE_UNIT in asked(worker)["units"]
    unit = {"ActiveState": "active", "UnitFileState": "enabled"}
    assert steps.state(worker.edge, {"units": {host_layout.EDGE_UNIT: unit}}) == "absent"  # type: ignore[typeddict-item]


def test_a_worker_without_a_head_of_its_own_has_no_edge() -> None:
    far = {**edge_cases.PAIR, "hosts": ["spark2", "spark1"]}
    assert steps.state(edge_cases.edge_of([far], {"open": False}), {}) == ""


def test_a_switch_does_not_open_or_close_a_site() -> None:
    serves = [{**edge_cases.DEMO, "name": "other", "active": False}, edge_cases.DEMO]
    stopped = plan.Plan(edge=plan.EdgePlan("present"), stop_units=["vllm@other.service"]).to_json()
    (refusal,) = switch.refusals(serves, {"spark1": stopped}, ["spark1"])
    assert refusal.id == "switch-edge"
    assert "ansible-playbook deploy.yml -l spark1" in refusal.fix
    runs = plan.Plan(edge=plan.EdgePlan("present", runs=True)).to_json()
    assert not list(switch.refusals([edge_cases.DEMO], {"spark1": runs}, ["spark1"]))


def test_a_switch_installs_the_edge_of_a_spark_on_which_nothing_runs() -> None:
    fresh = plan.Plan(edge=plan.EdgePlan("present")).to_json()
    assert not list(switch.refusals([edge_cases.DEMO], {"spark1": fresh}, ["spark1"]))
