"""What a unit writes to the state of its deployment when systemd starts it, ends it, or gives it up: the real program,
with a script in the place of systemctl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_spark.core import paths
from vllm_spark.node import deployment_state, host_layout, unit_events
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf

SYSTEMCTL = """#!/bin/sh
case "$1" in
list-jobs) cat "$0.job" 2>/dev/null ;;
is-system-running) cat "$0.system" 2>/dev/null || echo running ;;
show) cat "$0.show" ;;
esac
"""
# As systemd 252 prints a job.
JOB = "4711 vllm@demo.service {} running\n"


class FakeUnit:
    """The unit of a deployment, without systemd."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder, self.places, self.state = folder, places, StateOf("demo", places)
        (folder / "etc" / "demo").mkdir(parents=True)
        self.launch("exec docker run image")
        (folder / "systemctl").write_text(SYSTEMCTL)
        (folder / "systemctl").chmod(0o755)

    def launch(self, text: str) -> None:
        (self.folder / "etc" / "demo" / "launch").write_text(text)

    def says(self, what: str, text: str) -> None:
        """Let systemctl print a text: for `job`, `system` or `show`."""
        (self.folder / f"systemctl.{what}").write_text(text)

    def does(self, event: str) -> tuple[str, str]:
        """Run the program. Returns the state, and why."""
        assert unit_events.main([event, "demo"]) == 0
        now = deployment_state.present("demo", self.places)
        return now["state"], now["why"]


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUnit:
    places = Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc")))
    monkeypatch.setattr(unit_events, "PLACES", places)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"):
        monkeypatch.delenv(name, raising=False)
    return FakeUnit(tmp_path, places)


def test_a_start_loads_and_a_rank_of_a_pair_is_wanted_first(unit: FakeUnit) -> None:
    assert unit.does("starts") == ("loading", "")
    unit.launch("exec /usr/local/lib/vllm-spark/supervise --name demo")
    assert unit.does("starts") == ("wanted", "")


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("exit-code exited 137", "its container ended with status 137"),
        # Nobody has asked for the end of an engine that ends by itself, whatever its status is.
        ("success exited 0", "its container ended with status 0"),
        ("success exited 143", "its container ended with status 143"),
        ("signal killed KILL", "signal KILL ended it"),
        ("oom-kill killed KILL", "signal KILL ended it (oom-kill)"),
        ("timeout", "its unit failed: timeout"),
        ("", "its unit failed: systemd gives no reason"),
    ],
)
def test_an_end_that_nobody_asked_for_is_a_failure(
    ended: str, why: str, unit: FakeUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit.does("starts")
    for name, value in zip(("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"), ended.split(), strict=False):
        monkeypatch.setenv(name, value)
    # The job of a start that fails is still there.
    unit.says("job", JOB.format("start"))
    assert unit.does("ended") == ("failed", why)
    assert deployment_state.present("demo", unit.places)["last_end"] == why


def test_the_reason_of_the_program_that_ended_it_stays(unit: FakeUnit) -> None:
    unit.does("starts")
    unit.state.write("failed", "it hung: no token")
    assert unit.does("ended") == ("failed", "it hung: no token")


@pytest.mark.parametrize(
    ("job", "lock", "system", "why"),
    [
        ("stop", True, "running", "by ann@desk with rollback"),
        ("restart", False, "running", "systemctl restart"),
        ("stop", False, "running", "systemctl stop, or the start of another deployment"),
        ("stop", False, "stopping", "this Spark shuts down"),
    ],
)
def test_a_stop_is_on_purpose_and_says_whose(job: str, lock: bool, system: str, why: str, unit: FakeUnit) -> None:
    unit.does("starts")
    unit.says("job", JOB.format(job))
    unit.says("system", system)
    if lock:
        holder = {"user": "ann", "controller": "desk", "verb": "rollback"}
        Path(unit.places.run, "operator.lock").write_text(json.dumps(holder))
    assert unit.does("ended") == ("stopped", why)


def test_a_drained_deployment_is_stopped_for_what_it_was_drained(unit: FakeUnit) -> None:
    unit.state.write("draining", "for tiny, by a request of ada")
    unit.says("job", JOB.format("stop"))
    assert unit.does("ended") == ("stopped", "for tiny, by a request of ada")


def test_a_unit_that_stays_down_gave_up_and_keeps_the_reason(unit: FakeUnit) -> None:
    unit.does("starts")
    unit.state.write("failed", "its container ended with status 1")
    # systemd 254 and later report each failure, before the restart too.
    unit.says("show", "ActiveState=activating\nExecMainStatus=1\n")
    assert unit.does("gave-up")[0] == "failed"
    unit.says("show", "ActiveState=failed\nExecMainStatus=1\n")
    why = "5 starts within 60 min, the last ended because its container ended with status 1"
    assert unit.does("gave-up") == ("gave up", why)
    # A start that serves makes it a thing of the past.
    assert unit.does("starts") == ("loading", "")


def test_a_unit_that_never_starts_again_has_reached_no_limit(unit: FakeUnit) -> None:
    unit.does("starts")
    unit.state.write("failed", "its container ended with status 78")
    unit.says("show", "ActiveState=failed\nExecMainStatus=78\n")
    why = "it does not start again, the last ended because its container ended with status 78"
    assert unit.does("gave-up") == ("gave up", why)


def test_a_unit_that_was_stopped_has_not_given_up(unit: FakeUnit) -> None:
    unit.state.write("stopped", "by ann")
    unit.says("show", "ActiveState=failed\nExecMainStatus=1\n")
    assert unit.does("gave-up") == ("stopped", "by ann")


def test_a_pair_that_gave_up_keeps_the_reason_of_its_supervisor(unit: FakeUnit) -> None:
    unit.state.write("gave up", "5 starts within 60 min, the last ended because spark2 is lost")
    unit.says("show", "ActiveState=failed\nExecMainStatus=1\n")
    before = deployment_state.present("demo", unit.places)
    unit.does("ended")
    unit.does("gave-up")
    assert deployment_state.present("demo", unit.places) == before


def test_the_file_of_the_edge_has_every_placed_deployment(unit: FakeUnit) -> None:
    (unit.folder / "etc" / "other").mkdir()
    (unit.folder / "etc" / "other" / "launch").touch()
    (unit.folder / "wants").mkdir()
    (unit.folder / "wants" / "vllm@other.service").symlink_to("/etc/systemd/system/vllm@.service")
    assert unit_events.main(["edge"]) == 0
    assert Path(unit.places.map).read_text() == "demo stopped\nother wanted\n"
    unit.does("starts")
    unit.state.write("gave up")
    assert Path(unit.places.map).read_text() == "demo gave_up\nother wanted\n"


def test_the_units_call_what_is_placed() -> None:
    unit = (paths.TEMPLATES / "vllm@.service").read_text()
    for event, key in (("starts", "ExecStartPre"), ("ended", "ExecStopPost")):
        assert f"{key}=-{host_layout.STATE_PROGRAM} {event} %i\n" in unit
    assert f"OnFailure={host_layout.GAVE_UP_UNIT.replace('@', '@%i')}\n" in unit
    assert f"{host_layout.STATE_PROGRAM} gave-up %i\n" in (paths.TEMPLATES / host_layout.GAVE_UP_UNIT).read_text()
