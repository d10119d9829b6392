"""What a unit writes to the state of its deployment when systemd starts it, ends it, or gives it up: the real program,
with a script in the place of systemctl."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from vllm_spark.core import paths
from vllm_spark.node import deployment_state, host_layout, starts, unit_events
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.starts import Count, Record
from vllm_spark.node.state_writer import StateOf
from vllm_spark.node.unit_limits import NO_RESTART

SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$0.calls"
case "$1" in
list-jobs) cat "$0.job" 2>/dev/null ;;
is-system-running) cat "$0.system" 2>/dev/null || echo running ;;
is-active) cat "$0.docker" 2>/dev/null || echo active ;;
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

    def called(self, *words: str) -> bool:
        """Return True if the program has called systemctl so."""
        return " ".join((*words, "vllm@demo.service")) in (self.folder / "systemctl.calls").read_text().splitlines()

    @property
    def record(self) -> Record:
        return starts.read("demo", self.places)

    def boots(self) -> None:
        """Lose what is in memory, as a loss of power does."""
        shutil.rmtree(self.places.run, ignore_errors=True)
        (self.folder / "wants").mkdir(exist_ok=True)
        link = self.folder / "wants" / "vllm@demo.service"
        link.unlink(missing_ok=True)
        link.symlink_to("/etc/systemd/system/vllm@.service")

    def says(self, what: str, text: str) -> None:
        """Let systemctl print a text: for `job`, `system` or `show`."""
        (self.folder / f"systemctl.{what}").write_text(text)

    def does(self, event: str, status: int = 0) -> tuple[str, str]:
        """Run the program. Returns the state, and why."""
        assert unit_events.main([event, "demo"]) == status
        now = deployment_state.present("demo", self.places)
        return now["state"], now["why"]


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUnit:
    places = Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))
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
        ("exit-code exited 1", "its container ended with status 1"),
        (
            "exit-code exited 137",
            "its container ended with status 137: it was killed or removed, for lack of memory or by hand",
        ),
        ("exit-code exited 125", "its container ended with status 125: Docker did not start it, or lost it"),
        # Nobody has asked for the end of an engine that ends by itself, whatever its status is.
        ("success exited 0", "its container ended with status 0: a process of its engine died, so its API ended"),
        ("success exited 143", "its container ended with status 143: it was stopped, and not by its unit"),
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
    ("jobs", "lock", "system", "becomes"),
    [
        ("stop", True, "running", ("stopped", "by ann@desk with rollback")),
        ("restart", True, "running", ("wanted", "by ann@desk with rollback")),
        ("restart", False, "running", ("wanted", "systemctl restart")),
        ("stop", False, "running", ("stopped", "systemctl stop, or the start of another deployment")),
        ("stop", False, "stopping", ("stopped", "its Spark shuts down")),
        ("restart, Docker's restart", False, "running", ("wanted", "Docker restarts")),
        ("stop, Docker's stop", False, "running", ("stopped", "Docker was stopped")),
        # As systemd 257 does after a kill of dockerd.
        ("restart, Docker's start", False, "running", ("wanted", "Docker ended on this Spark")),
    ],
)
def test_a_stop_is_on_purpose_and_says_whose(
    jobs: str, lock: bool, system: str, becomes: tuple[str, str], unit: FakeUnit
) -> None:
    unit.does("starts")
    job, _, docker = jobs.partition(", Docker's ")
    unit.says("job", JOB.format(job) + (f"4712 docker.service {docker} waiting\n" if docker else ""))
    unit.says("system", system)
    if lock:
        holder = {"user": "ann", "controller": "desk", "verb": "rollback"}
        Path(unit.places.run, "operator.lock").write_text(json.dumps(holder))
    assert unit.does("ended") == becomes
    assert unit.called("reset-failed")
    person = not docker and system == "running"
    assert unit.record.count == (Count(era=1) if person else Count(outside=1))


def test_a_shutdown_is_no_command_for_what_starts_with_the_boot(unit: FakeUnit) -> None:
    unit.boots()
    unit.does("starts")
    unit.says("job", JOB.format("stop"))
    unit.says("system", "stopping")
    assert unit.does("ended") == ("wanted", "its Spark shuts down")


def test_docker_that_ends_is_no_failure(unit: FakeUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    unit.does("starts")
    unit.says("docker", "activating\n")
    assert unit.does("ended") == ("wanted", "Docker ended on this Spark")
    assert unit.record.count == Count(outside=1)
    # The next start waits for its pause.
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert unit.does("starts") == ("loading", "")
    assert waited == [pytest.approx(5, abs=1)]


def test_the_fifth_failure_keeps_the_unit_down_until_a_person_starts_it(
    unit: FakeUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        unit.does("starts")
        assert unit.does("ended")[0] == "failed"
    unit.does("starts")
    why = "5 failed starts in a row, the last ended because its unit failed: systemd gives no reason"
    assert unit.does("ended") == ("gave up", why)
    assert unit.called("stop", "--no-block")
    assert not unit.called("reset-failed")
    # OnFailure changes nothing of it, nor does a boot.
    unit.says("show", "ActiveState=failed\nExecMainStatus=1\n")
    assert unit.does("gave-up") == ("gave up", why)
    unit.boots()
    assert unit.does("starts", NO_RESTART) == ("gave up", why)
    # systemd runs ExecStopPost after a condition that does not hold, too.
    monkeypatch.setenv("SERVICE_RESULT", "exec-condition")
    assert unit.does("ended") == ("gave up", why)
    assert unit.does("starts") == ("loading", "")
    assert unit.record.count == Count(era=1)


def test_a_spark_that_lost_its_power_twice_under_a_load_stays_usable(unit: FakeUnit) -> None:
    for _ in range(2):
        unit.boots()
        assert unit.does("starts") == ("loading", "")
    unit.boots()
    # A boot says so before the unit begins.
    assert deployment_state.present("demo", unit.places)["state"] == "wanted"
    assert unit.does("starts", NO_RESTART)[0] == "gave up"
    assert unit.record.count.gave_up.startswith("not started at boot, because this Spark went down without a shutdown")
    unit.boots()
    assert deployment_state.present("demo", unit.places)["state"] == "gave up"
    # One that had served for five minutes does not count.
    unit.does("starts", NO_RESTART)
    unit.does("starts")
    starts.change("demo", unit.places, starts.good)
    for _ in range(3):
        unit.boots()
        assert unit.does("starts") == ("loading", "")
        starts.change("demo", unit.places, starts.good)


def test_the_supervisor_of_a_pair_runs_even_then_and_docker_forgets_nothing(unit: FakeUnit) -> None:
    unit.launch("exec /usr/local/lib/vllm-spark/supervise --name demo")
    (unit.folder / "etc" / "demo" / "deployed.json").write_text('{"rank": 1}')
    for _ in range(2):
        unit.boots()
        unit.does("starts")
        starts.change("demo", unit.places, lambda old: starts.begun(old, starts.new_id(), starts.moment(unit.places)))
    unit.boots()
    assert unit.does("starts")[1].startswith("not started at boot, because the Spark of rank 1 went down ")
    unit.says("job", JOB.format("restart") + "4712 docker.service restart waiting\n")
    assert unit.does("ended")[0] == "gave up"
    assert unit.does("starts")[0] == "gave up"
    unit.says("job", JOB.format("restart"))
    assert unit.does("ended") == ("wanted", "systemctl restart")
    assert unit.does("starts") == ("wanted", "")


def test_a_start_of_the_former_release_is_not_counted(unit: FakeUnit) -> None:
    unit.state.write("serving")
    assert unit.does("ended")[0] == "failed"
    assert unit.record.count == Count()
    assert not unit.called("reset-failed")


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
    why = "10 starts of its unit within 60 min, the last ended because its container ended with status 1"
    assert unit.does("gave-up") == ("gave up", why)
    assert unit.record.count.gave_up == why
    # A person's start makes it a thing of the past.
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
    assert f"ExecCondition=/bin/sh -c '{host_layout.STATE_PROGRAM} starts %i; " in unit
    assert f"ExecStopPost=-{host_layout.STATE_PROGRAM} ended %i\n" in unit
    assert f"OnFailure={host_layout.GAVE_UP_UNIT.replace('@', '@%i')}\n" in unit
    assert f"{host_layout.STATE_PROGRAM} gave-up %i\n" in (paths.TEMPLATES / host_layout.GAVE_UP_UNIT).read_text()
