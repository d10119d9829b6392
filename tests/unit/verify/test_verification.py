"""One verification: the probes it sends, the lines it prints, and when it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from vllm_spark.deploy import launch
from vllm_spark.doctor.places import Place
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import runner, startup, verification
from vllm_spark.verify.verdict import any_failed
from vllm_spark.verify.verification import POLL_INTERVAL_S, Verification

LOADING = {"ready": {"error": "ConnectionRefusedError", "seconds": 0.0}}
TOKEN = {"ready": {"status": 200, "json": {"choices": [{"text": "1"}]}, "seconds": 0.1}}


def probe(**changes: Any) -> dict[str, Any]:
    base = {"unit": {"ActiveState": "active", "NRestarts": "0"}, "running_s": 1.0, "lines": [], "cursor": "c"}
    return {**base, "container": {}, "responses": LOADING, **changes}


class Host:
    """Returns one probe after the other, and records the rounds, the lines and the sleeps."""

    def __init__(self, resolve: Callable[..., Spec], *probes: dict[str, Any], deadline_s: float = 60) -> None:
        spec = resolve()
        self.probes = list(probes)
        self.rounds: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.sleeps: list[float] = []
        request = runner.gate_request(spec, launch.fingerprint(spec))
        self.watch = startup.StartupWatch(deadline_s)
        self.verification = Verification(
            request, Place("spark1"), self.probe, self.lines.append, self.watch, self.sleeps.append
        )

    def probe(self, round_: runner.Round, cursor: str) -> dict[str, Any]:
        self.rounds.append((round_.name, cursor))
        return self.probes.pop(0)


def test_a_start_is_waited_for_from_the_last_line_read(resolve: Callable[..., Spec]) -> None:
    host = Host(resolve, probe(cursor="a", lines=["one"]), probe(cursor="b", lines=["two"]), probe(responses=TOKEN))
    verdicts, run = host.verification.run(wait=True)
    assert [cursor for _, cursor in host.rounds] == ["", "a", "b"]
    assert host.watch.lines == ["one", "two"]
    assert host.sleeps == [POLL_INTERVAL_S] * 2
    assert (verdicts[0].gate, verdicts[0].ok) == ("ready", True)
    assert run["restarts"] == 0


def test_each_failed_start_is_a_line(resolve: Callable[..., Spec]) -> None:
    said = "vllm-spark: the start of rank 1 failed: its container ended with status 1; it starts again"
    failed = {"state": "failed", "failed": 1}
    loads = {"state": "loading", "failed": 1}
    host = Host(resolve, probe(), probe(lines=[said], state=failed), probe(state=loads), probe(responses=TOKEN))
    _, run = host.verification.run(wait=True)
    assert host.lines[:3] == [
        "starting  00:01 of 01:00",
        said.partition(": ")[2],
        "the start has failed, and begins again (second try)",
    ]
    assert run["restarts"] == 1


def test_no_round_follows_a_failed_gate(resolve: Callable[..., Spec]) -> None:
    host = Host(resolve, probe(responses=TOKEN))
    verdicts, _ = host.verification.run(wait=True)
    assert any_failed(verdicts)
    assert host.rounds == [("ready", "")]
    assert host.lines[-len(verdicts) :] == [verdict.headline() for verdict in verdicts]


def test_the_present_state_is_judged_with_the_whole_log(resolve: Callable[..., Spec]) -> None:
    host = Host(resolve, probe(lines=["one", "two"]))
    verdicts, _ = host.verification.run(wait=False)
    assert host.watch.lines == ["one", "two"]
    assert host.sleeps == []
    assert verdicts[0].ok is False


def test_a_brief_run_prints_one_line_for_all_gates_that_pass(resolve: Callable[..., Spec]) -> None:
    host = Host(resolve, probe(responses=TOKEN))
    host.verification.brief = True
    verdicts, _ = host.verification.run(wait=False)
    passed = [verdict for verdict in verdicts if verdict.ok]
    missed = [verdict.headline() for verdict in verdicts if verdict.ok is not True]
    assert passed
    assert missed
    assert host.lines[:-1] == missed
    assert host.lines[-1].startswith(f"✓ {len(passed)} gate")


@pytest.mark.parametrize(
    ("brief", "seconds", "expected"),
    [(True, 1.0, []), (True, 31.0, ["… slow: 1 requests"]), (False, 1.0, ["… slow: 1 requests"])],
)
def test_a_brief_run_announces_a_round_only_after_a_silence(
    resolve: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch, brief: bool, seconds: float, expected: list[str]
) -> None:
    host = Host(resolve, probe(responses=TOKEN), probe())
    host.verification.brief = brief
    clock = itertools.count(0.0, seconds)
    asked = {"id": "slow", "path": "/v1/models"}
    monkeypatch.setattr(verification.time, "monotonic", lambda: next(clock))
    rounds = [runner.Round("ready", [], []), runner.Round("slow", [asked], [])]  # type: ignore[list-item]
    monkeypatch.setattr(runner, "rounds", lambda *_, **__: rounds)
    host.verification.run(wait=False)
    assert host.lines == expected


def test_only_a_thorough_run_asks_the_gates_that_a_recipe_names(resolve: Callable[..., Spec]) -> None:
    request = Host(resolve).verification.request
    closed = replace(request, edge={"tls": "own-ca"}, socket="/run/api.sock", gates={"failover": {}, "tools": {}})
    whole, part = runner.rounds(closed), runner.rounds(closed, thorough=False)
    assert [round_.name for round_ in whole] == ["ready", "edge", "tools"]
    assert [round_.name for round_ in part] == ["ready", "edge"]
    assert len(part[0].judges) == len(whole[0].judges) - 1


def test_a_phase_is_printed_once(resolve: Callable[..., Spec]) -> None:
    host = Host(resolve, probe(), probe(), probe(responses=TOKEN))
    host.verification.run(wait=True)
    assert [line.partition(" ")[0] for line in host.lines[:2]] == ["starting", "✓"]


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (probe(unit={"ActiveState": "failed"}), "docs/runbooks/engine-failed-to-start.md"),
        (probe(running_s=61.0), "docs/runbooks/not-ready-in-time.md"),
    ],
)
def test_a_start_that_fails_or_takes_too_long_ends(resolve: Callable[..., Spec], last: Any, text: str) -> None:
    host = Host(resolve, probe(), last)
    with pytest.raises(startup.NotServingError, match=text):
        host.verification.run(wait=True)


@pytest.mark.parametrize(
    ("status", "shown", "fix"),
    [
        (401, "status 401: Unauthorized", "vllm_secrets.VLLM_API_KEY"),
        (404, "status 404: The model x does not exist", "journalctl"),
        (400, "status 400: bad request", "journalctl"),
    ],
)
def test_a_definite_answer_ends_the_wait_and_is_quoted(
    resolve: Callable[..., Spec], status: int, shown: str, fix: str
) -> None:
    error = {"error": {"message": shown.partition(": ")[2]}}
    host = Host(resolve, probe(), probe(responses={"ready": {"status": status, "json": error, "seconds": 0.1}}))
    verdicts, _ = host.verification.run(wait=True)
    assert host.sleeps == [POLL_INTERVAL_S]
    assert (verdicts[0].gate, verdicts[0].ok) == ("ready", False)
    assert shown.partition(":")[0] in str(verdicts[0])
    assert shown.partition(": ")[2] in str(verdicts[0])
    assert fix in str(verdicts[0])


def test_an_overloaded_server_is_waited_for(resolve: Callable[..., Spec]) -> None:
    busy = {"ready": {"status": 503, "json": None, "text": "busy", "seconds": 0.1}}
    host = Host(resolve, probe(responses=busy), probe(responses=TOKEN))
    verdicts, _ = host.verification.run(wait=True)
    assert verdicts[0].ok
