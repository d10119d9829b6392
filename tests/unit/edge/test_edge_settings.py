"""`vllm_edge`: without it a server is closed, one boolean is enough, and every fault is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import deployment, edge
from vllm_spark.inventory.edge import EdgeLimits, EdgeSettings
from vllm_spark.inventory.spec import Spec


def faults(document: object) -> list[str]:
    with pytest.raises(RefusedError) as refused:
        edge.parse(document)
    assert {refusal.id for refusal in refused.value.refusals} == {"bad-edge"}
    assert all("Fix: correct vllm_edge" in str(refusal) for refusal in refused.value.refusals)
    return [f"{refusal.what} — expected: {refusal.expected}" for refusal in refused.value.refusals]


def test_without_the_variable_the_server_is_closed_and_nobody_chose_it() -> None:
    assert edge.parse({}) == EdgeSettings(open=False, chosen=False)


@pytest.mark.parametrize("said", [{"open": False}, {"names": []}])
def test_a_word_of_the_inventory_is_a_choice(said: dict[str, Any]) -> None:
    assert edge.parse(said) == EdgeSettings(open=False, chosen=True)


def test_one_boolean_closes_it_with_good_defaults() -> None:
    closed = edge.parse({"open": False})
    assert not closed.open
    assert closed.tls == edge.OWN_CA
    assert closed.scheme == "https"
    assert closed.allow_from == edge.PRIVATE_NETWORKS
    assert closed.metrics_from == ()
    assert closed.limits == EdgeLimits()


def test_every_key_is_read() -> None:
    settings = edge.parse({
        "open": False,
        "names": ["Models.Home"],
        "allow_from": ["192.168.1.7", "10.0.0.0/255.0.0.0"],
        "origins": ["https://Chat.Home:3000"],
        "tls": "files",
        "certificate": "/tls/chain.pem",
        "private_key": "/tls/key.pem",
        "limits": {"streams": 64},
        "metrics_from": ["::1"],
        "metrics_port": 9100,
    })  # fmt: skip
    assert settings == EdgeSettings(
        open=False,
        names=("models.home",),
        allow_from=("192.168.1.7/32", "10.0.0.0/8"),
        origins=("https://chat.home:3000",),
        tls="files",
        certificate="/tls/chain.pem",
        private_key="/tls/key.pem",
        limits=EdgeLimits(streams=64),
        metrics_from=("::1/128",),
        metrics_port=9100,
    )


# Document -> the start of each fault.
REFUSED: list[tuple[object, list[str]]] = [
    ([], ["vllm_edge: [] — expected: a map"]),
    ("closed", ['vllm_edge: "closed" — expected: a map']),
    ({"open": "no"}, ['vllm_edge.open: "no" — expected: true or false']),
    ({"open": False, "port": 1}, ["vllm_edge: unknown key port"]),
    ({"open": False, "names": ["https://a"]}, ['vllm_edge.names[0]: "https://a" — expected: a host name']),
    ({"open": False, "names": ["a b"]}, ['vllm_edge.names[0]: "a b"']),
    ({"open": False, "names": ["a\n"]}, ['vllm_edge.names[0]: "a\\n"']),
    ({"open": False, "allow_from": []}, ["vllm_edge.allow_from: [] — expected: at least 1 entry"]),
    (
        {"open": False, "allow_from": ["10.0.0.1/8", "any", "fe80::1%eth0"]},
        [
            'vllm_edge.allow_from[0]: "10.0.0.1/8": it has bits of a host',
            'vllm_edge.allow_from[1]: "any": not a network',
            'vllm_edge.allow_from[2]: "fe80::1%eth0": it has a zone',
        ],
    ),
    ({"open": False, "tls": "acme"}, ['vllm_edge.tls: "acme" — expected: one of own-ca, files, off']),
    (
        {"open": False, "tls": "files", "certificate": "a.pem"},
        ["vllm_edge.tls: files, and no vllm_edge.private_key"],
    ),
    ({"open": False, "certificate": "a.pem"}, ["vllm_edge.certificate: a.pem, and tls is not files"]),
    ({"open": False, "limits": {"streams": 0}}, ["vllm_edge.limits.streams: 0 — expected: at least 1"]),
    ({"open": False, "switch_by_request": 1}, ["vllm_edge.switch_by_request: 1 — expected: true or false"]),
    (
        {"open": False, "limits": {"switches_waiting": 33}},
        ["vllm_edge.limits.switches_waiting: 33 — expected: at most"],
    ),
    ({"open": True, "switch_by_request": True}, ["vllm_edge.switch_by_request: true, and open is true"]),
    ({"open": True, "fair": True}, ["vllm_edge.fair: true, and open is true — expected: open: false, or no fair"]),
    ({"fair": True, "limits": {"batch_share": 91}}, ["vllm_edge.limits.batch_share: 91 — expected: at most 90"]),
    (
        {"fair": True, "limits": {"batch_waiting": 100}},
        ["vllm_edge.limits: body_mib 16 x (streams 32 + batch_waiting 100 + 16) may take 2368 MiB of memory"],
    ),
    ({"open": False, "limits": {"streams": True}}, ["vllm_edge.limits.streams: true — expected: a whole number"]),
    ({"open": False, "limits": {"body_mib": 4096}}, ["vllm_edge.limits.body_mib: 4096 — expected: at most 64"]),
    (
        {"open": False, "limits": {"body_mib": 64, "streams": 1024}},
        ["vllm_edge.limits: body_mib 64 x (streams 1024 + 16) may take 66560 MiB of memory — expected: at most 1920"],
    ),
    ({"limits": {"body_mib": 64}}, ["vllm_edge.limits: body_mib 64 x (streams 32 + 16) may take 3072 MiB of memory"]),
    (
        {"limits": {"connections": 4096, "header_kib": 64}},
        ["vllm_edge.limits: connections 4096 x header_kib 64 may take 896 MiB of memory — expected: at most 384 MiB"],
    ),
    ({1: 2}, ["vllm_edge: key 1 is a number"]),
    ({"open": False, "origins": "https://a"}, ['vllm_edge.origins: "https://a" — expected: a list']),
    ({"open": False, "origins": [1]}, ["vllm_edge.origins[0]: 1 — expected: an origin"]),
]

AN_ORIGIN = "the origin of a web page, such as"
# Origin -> why it is refused and what is expected instead.
ORIGINS = {
    "*": f"a pattern lets more pages in than it names — expected: {AN_ORIGIN}",
    "https://*.home": f"a pattern lets more pages in than it names — expected: {AN_ORIGIN}",
    "https://chat.home/": 'it has a path — expected: "https://chat.home"',
    "https://chat.home:3000/app?a=b": 'it has a path — expected: "https://chat.home:3000"',
    "https://chat.home?": 'a browser writes it in another way — expected: "https://chat.home"',
    "https://chat.home:443": 'a browser writes it in another way — expected: "https://chat.home"',
    "http://chat.home:80": 'a browser writes it in another way — expected: "http://chat.home"',
    "https://ada@chat.home": 'a browser writes it in another way — expected: "https://chat.home"',
    "https://chat.home\n": 'a browser writes it in another way — expected: "https://chat.home"',
    "http://[FD00:0::5]": 'a browser writes it in another way — expected: "http://[fd00::5]"',
    "null": f"not an origin — expected: {AN_ORIGIN}",
    "chat.home": f"not an origin — expected: {AN_ORIGIN}",
    "file:///home/ada/page.html": f"not an origin — expected: {AN_ORIGIN}",
    "https://": f"not an origin — expected: {AN_ORIGIN}",
    "https://chat home": f"not an origin — expected: {AN_ORIGIN}",
    "https://chat.home:99999": f"not an origin — expected: {AN_ORIGIN}",
    "https://chat.home:0": f"not an origin — expected: {AN_ORIGIN}",
    "http://[fe80::1%eth0]": f"not an origin — expected: {AN_ORIGIN}",
    "https://chat.home}": f"not an origin — expected: {AN_ORIGIN}",
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_origin_that_no_browser_sends_is_refused_with_the_right_one(origin: str) -> None:
    (fault,) = faults({"open": False, "origins": [origin]})
    assert fault.startswith(f"vllm_edge.origins[0]: {json.dumps(origin)}: {ORIGINS[origin]}")


@pytest.mark.parametrize(
    "origin", ["https://chat.home", "http://127.0.0.1:3000", "http://[fd00::5]:8080", "http://open_webui:3000"]
)
def test_an_origin_of_a_page_is_taken(origin: str) -> None:
    assert edge.parse({"open": False, "origins": [origin]}).origins == (origin,)


@pytest.mark.parametrize(("document", "starts"), REFUSED)
def test_a_fault_is_named_with_its_place(document: object, starts: list[str]) -> None:
    found = faults(document)
    assert len(found) == len(starts)
    assert all(fault.startswith(start) for fault, start in zip(found, starts, strict=True)), found


@pytest.mark.parametrize("limits", [{"body_mib": 64, "streams": 14}, {"connections": 3000}, {"header_kib": 64}])
def test_limits_that_fit_into_the_memory_are_taken(limits: dict[str, int]) -> None:
    assert edge.parse({"limits": limits}).limits == EdgeLimits(**limits)


@pytest.mark.parametrize(("unit", "mib"), [("vllm-edge", edge.FRONT_MIB), ("vllm-edge-route", edge.ROUTE_MIB)])
def test_the_units_have_the_memory_that_the_limits_are_judged_by(unit: str, mib: int) -> None:
    text = (paths.TEMPLATES / f"{unit}.service").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^MemoryMax=(.*)$", text) == [f"{mib}M"]


def test_a_spec_carries_the_settings_as_json(resolve: Callable[..., Spec]) -> None:
    spec = resolve()
    assert spec.edge.settings == edge.OPEN
    document: dict[str, Any] = json.loads(json.dumps(spec.to_json()))
    assert Spec.from_json(document) == spec


def test_no_deployment_has_the_name_of_the_edges_folder() -> None:
    with pytest.raises(RefusedError, match="deployment edge: name: edge — expected: another name"):
        deployment.parse([{"name": "edge", "recipe": "everything", "hosts": ["spark1"]}])
