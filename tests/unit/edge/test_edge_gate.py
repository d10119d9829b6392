"""The gate `edge`: what each observation means, who asks, and the address that a good run prints."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_ansible import FakeRun, load_action
from fakes.gate_requests import gate_request
from vllm_spark.core import paths
from vllm_spark.verify import registry, report, runner
from vllm_spark.verify.gates import edge as gate
from vllm_spark_ansible import edge_probe

REQUEST = gate_request(edge={"tls": "own-ca"}, socket="/run/vllm-spark/demo/api/api.sock", bind="0.0.0.0")  # noqa: S104
CERTIFICATES = {"by_name": "c" * 64, "by_address": "e" * 64}
OUTSIDE = {
    "no_key": 401,
    "unlisted": {f"{method} {path}": 404 for method, path in gate.UNLISTED},
    "host": 421,
    "url": "https://10.0.0.1:8000",
}
SOUND: dict[str, Any] = {
    "inside": {
        **copy.deepcopy(OUTSIDE),
        "shown": dict(CERTIFICATES),
        "placed": dict(CERTIFICATES),
        "tls": True,
        "holder": {"process": "haproxy", "pid": 7, "unit": "vllm-edge.service"},
    },
    "outside": OUTSIDE,
}


def verdicts(seen: dict[str, Any]) -> dict[str, bool | None]:
    probe: Any = {"responses": {"edge": seen}}
    found = list(gate.judge(REQUEST, probe, []))
    for verdict in found:
        assert verdict.ok is not False or (paths.RUNBOOKS / f"{verdict.runbook}.md").is_file()
    return {verdict.id: verdict.ok for verdict in found}


def changed(place: str, value: Any) -> dict[str, Any]:
    """Return the sound observations with one change. `place` is dotted."""
    seen = copy.deepcopy(SOUND)
    *folders, name = place.split(".")
    inner = seen
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    return seen


@pytest.mark.parametrize(
    ("site", "ok"),
    [({"status": 0}, True), ({"status": 200}, False), ({"error": "ConnectionRefusedError: 111"}, False), (None, False)],
)
def test_only_edges_of_the_site_are_answered(site: dict[str, Any] | None, ok: bool) -> None:
    request = replace(REQUEST, edge={"tls": "own-ca", "site_port": "9465"})
    seen = copy.deepcopy(SOUND)
    seen["inside"] |= {} if site is None else {"site": site}
    probe: Any = {"responses": {"edge": seen}}
    (verdict,) = (one for one in gate.judge(request, probe, []) if one.id == "site")
    assert verdict.ok is ok
    assert "9465" in str(verdict)


def test_a_sound_edge_passes() -> None:
    assert set(verdicts(SOUND).values()) == {True}
    assert len(verdicts(SOUND)) == 8


# Place of the observation, its value -> the condition, and its verdict.
FAULTS = [
    ("inside.no_key", 200, "key", False),
    ("inside.no_key", 0, "key", False),
    ("inside.unlisted.POST /invocations", 200, "paths", False),
    ("inside.unlisted", {}, "paths", False),
    ("inside.host", 200, "host", False),
    ("inside.shown.by_name", "d" * 64, "certificate", False),
    ("inside.shown.by_address", "c" * 64, "certificate", False),
    ("inside.shown.by_address", "", "certificate", False),
    ("inside.placed", {}, "certificate", False),
    ("inside.shown", {}, "certificate", False),
    ("inside.tls", False, "certificate", None),
    ("inside.holder", {"process": "python3", "container": "vllm-demo"}, "listener", False),
    ("inside.holder", {}, "listener", False),
    ("inside.error", "ConnectionRefusedError", "answers", False),
    ("inside", {}, "answers", False),
    ("outside", {"unasked": "this machine is the Spark itself"}, "outside", None),
    ("outside", {"error": "SSLCertVerificationError", "url": "https://x"}, "outside", False),
    ("outside", {}, "outside", False),
    ("outside.no_key", 200, "key from outside", False),
    ("outside.unlisted.GET /metrics", 200, "paths from outside", False),
    ("outside.host", 200, "host from outside", False),
]


@pytest.mark.parametrize(("place", "value", "id_", "ok"), FAULTS)
def test_a_fault_has_its_verdict(place: str, value: Any, id_: str, ok: bool | None) -> None:
    found = verdicts(changed(place, value))
    assert found.pop(id_) is ok
    assert set(found.values()) <= {True}


def test_it_is_judged_for_a_closed_engine_alone() -> None:
    assert gate.GATE in registry.GATES
    closed = [round_.name for round_ in runner.rounds(REQUEST)]
    assert "edge" in closed
    assert "reach" not in closed
    assert "edge" not in [round_.name for round_ in runner.rounds(gate_request())]
    assert "edge" not in gate_request().to_json()


def test_the_spark_and_the_controller_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin = load_action("vllm_verify")
    asked: list[Any] = []

    def outside(target: Any, unlisted: Any) -> dict[str, Any]:
        asked.append((target, unlisted))
        return {"no_key": 401}

    monkeypatch.setattr(edge_probe, "outside", outside)
    monkeypatch.setattr(plugin, "obstacle", lambda _self: "")
    (tmp_path / "ca.crt").touch()
    run = FakeRun(
        hostvars={"spark1": {"ansible_host": "10.0.0.1"}},
        modules={"vllm_probe": {"probe": {"responses": {"edge": {"no_key": 401, "tls": True}}}}},
    )
    monkeypatch.setattr(plugin, "act", lambda self: {"seen": self.edge_responses(REQUEST.target)})  # type: ignore[attr-defined]
    args = {"phase": "gates", "gates": REQUEST.to_json(), "env_path": "", "reason": "", "report_dir": "", "wait": False}
    seen = run.act(plugin, **args, authority=str(tmp_path))["seen"]
    assert seen["outside"] == {"no_key": 401, "url": "https://10.0.0.1:8000"}
    ((target, _),) = asked
    assert (target.address, target.port, target.tls, target.name) == ("10.0.0.1", 8000, True, "10.0.0.1")
    assert Path(target.authority).resolve() == (tmp_path / "ca.crt").resolve()
    ((_, sent),) = run.calls
    assert (sent["edge"]["address"], sent["edge"]["port"]) == ("127.0.0.1", 8000)


@pytest.mark.parametrize(("thorough", "rank", "asked"), [(False, 0, True), (True, 0, False), (False, 1, False)])
def test_a_server_that_keeps_running_is_asked_together_with_its_edge(thorough: bool, rank: int, asked: bool) -> None:
    run = FakeRun(modules={"vllm_probe": {"failed": True, "msg": "asked"}})
    gates = {"gates": {**REQUEST.to_json(), "rank": rank}, "env_path": "/e", "reason": "", "report_dir": "."}
    with pytest.raises(Exception, match="asked"):
        run.act("vllm_verify", phase="gates", thorough=thorough, wait=False, **gates)
    assert ("edge" in run.calls[0][1]) is asked


@pytest.mark.parametrize("phase", ["gates", "edge"])
def test_every_task_that_asks_an_edge_names_the_folder_of_its_authority(phase: str) -> None:
    uses = [
        (file, found[1])
        for file in (paths.ROOT / "roles").glob("*/tasks/*.yml")
        for found in re.finditer(
            rf"^ *vllm_spark\.toolkit\.vllm_verify:\n +phase: {phase}\n((?: {{4,}}\w.*\n)+)", file.read_text(), re.M
        )
    ]
    assert uses
    assert [str(file) for file, arguments in uses if not re.search(r"^ +authority: ", arguments, re.M)] == []


@pytest.mark.parametrize(
    ("tls", "authority", "start"),
    [
        (
            "own-ca",
            "site/edge/ca.crt",
            "Next: curl --cacert site/edge/ca.crt https://10.0.0.1:8000/v1/chat/completions",
        ),
        ("files", "", "Next: curl https://10.0.0.1:8000/v1/chat/completions"),
        ("off", "", "Next: curl http://10.0.0.1:8000/v1/chat/completions"),
    ],
)
def test_a_good_run_ends_with_a_command_that_works(tls: str, authority: str, start: str) -> None:
    request = gate_request(edge={"tls": tls}, socket="/s", bind="0.0.0.0")  # noqa: S104
    lines = report.closing(request, [], "10.0.0.1", authority).splitlines()
    (command,) = [line for line in lines if line.startswith("Next:")]
    assert command.startswith(start)
    assert '-H "Authorization: Bearer $VLLM_KEY"' in command
