"""The lock of a Spark between real processes, in a separate folder, and the message for the second operator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_lock

import child
from vllm_spark.core import paths
from vllm_spark.lifecycle import operator_lock
from vllm_spark.lifecycle.operator_lock import LockHolder
from waiting import until


def run_of(who: str, machine: str, pid: int, started: str = "1", verb: str = "deploy") -> dict[str, Any]:
    """Return what spark_lock.this_run returns for a run of that user@controller, with its verb."""
    user, _, controller = who.partition("@")
    of_process = {"controller": controller, "machine": machine, "pid": pid, "started": started}
    return {"run": f"{controller}:{machine}:{pid}:{started}", "user": user, "verb": verb, **of_process}


MINE = run_of("anna@desk", "boot-1:pid:[1]", 100, "5000")
OTHER = run_of("ben@laptop", "boot-2:pid:[1]", 7, "90", "stop")

PLAY = """
- name: Work
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Work under the lock
      ansible.builtin.include_role:
        name: spark_lock
      vars:
        spark_lock_verb: deploy
        spark_lock_role: work
"""
# The role that runs under the lock. Like the roles of the verbs it includes and imports others.
ROLE = """
- name: End the play for an idle host
  ansible.builtin.include_role:
    name: spark_lock
    tasks_from: leave
  when: inventory_hostname == idle | default('')
- name: Change the host
  ansible.builtin.include_tasks: change.yml
"""
CHANGE = """
- name: Change the host
  ansible.builtin.shell: >-
    test ! -e {{ work }}/fail{{ '-' ~ inventory_hostname if fails_on_one | default(false) | bool else '' }} &&
    touch {{ work }}/{{ inventory_hostname }} && {{ then | default('true') }}
  any_errors_fatal: "{{ fails_on_one | default(false) | bool }}"
- name: Change the host again
  ansible.builtin.file:
    path: "{{ work }}/{{ inventory_hostname }}-again"
    state: touch
    mode: "0644"
"""
INVENTORY = """
[sparks]
spark1 ansible_connection=local
spark2 ansible_connection=local
[sparks:vars]
ansible_python_interpreter={python}
work={work}
spark_lock_folder={work}/locks/{{{{ inventory_hostname }}}}
"""


def test_the_second_run_is_refused_until_the_first_releases_the_lock(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert spark_lock.take(MINE, folder=folder) == (True, None)
    done, record = spark_lock.take(OTHER, folder=folder)
    assert (done, record["run"], record["verb"]) == (False, MINE["run"], "deploy")
    assert spark_lock.give(OTHER["run"], folder)[0] is False
    assert spark_lock.read_holder(folder)["run"] == MINE["run"]
    assert spark_lock.give(MINE["run"], folder) == (True, None)
    # A folder that did not exist is removed.
    assert list(tmp_path.iterdir()) == []
    assert spark_lock.take(OTHER, folder=folder) == (True, None)


def test_a_run_is_not_refused_by_its_own_lock(tmp_path: Path) -> None:
    spark_lock.take({**MINE, "verb": "switch"}, folder=str(tmp_path))
    done, record = spark_lock.take(MINE, folder=str(tmp_path))
    assert (done, record["verb"], spark_lock.read_holder(str(tmp_path))["verb"]) == (True, "switch", "switch")


@pytest.mark.parametrize(("over", "done"), [(MINE["run"], True), (OTHER["run"], False), (None, False)])
def test_only_the_named_lock_is_taken_over(over: str | None, done: bool, tmp_path: Path) -> None:
    spark_lock.take(MINE, folder=str(tmp_path))
    third = run_of("cleo@desk", "b", 9, verb="stop")
    assert spark_lock.take(third, over, str(tmp_path))[0] is done
    assert spark_lock.read_holder(str(tmp_path))["run"] == (third["run"] if done else MINE["run"])


def test_a_malformed_lock_refuses_others_and_can_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / spark_lock.NAME).write_text("{half a li")
    done, record = spark_lock.take(MINE, folder=str(tmp_path))
    assert done is False
    held = LockHolder.from_json(record)
    assert "an unknown user@an unknown machine" in str(operator_lock.refusal("spark1", held, None))
    assert spark_lock.take(MINE, held.run, str(tmp_path))[0]


def test_a_lock_of_another_toolkit_version_is_read(tmp_path: Path) -> None:
    """It has fewer keys and one more, and another writer."""
    text = json.dumps({"run": "x", "user": "ben", "controller": "laptop", "verb": "switch", "ticket": [7]})
    (tmp_path / spark_lock.NAME).write_text(text)
    done, record = spark_lock.take(MINE, folder=str(tmp_path))
    assert (done, record["connected"], spark_lock.lives(record, MINE)) == (False, None, None)
    assert "held by ben@laptop with switch for 00:" in str(
        operator_lock.refusal("s", LockHolder.from_json(record), None)
    )
    assert spark_lock.take(MINE, "x", str(tmp_path)) == (
        True,
        {**record, "age_s": pytest.approx(record["age_s"], abs=60)},
    )


def contend(folder: str, number: int, gate: Any, results: Any) -> None:
    gate.wait()
    mine = run_of("u@c", "m", number)
    done, _ = spark_lock.take(mine, folder=folder)
    results.put((number, done))
    if not done:
        # A run whose lock was refused does this.
        spark_lock.give(mine["run"], folder)


def test_one_of_many_concurrent_processes_gets_the_lock(tmp_path: Path) -> None:
    gate, results, folder = child.CONTEXT.Event(), child.CONTEXT.Queue(), str(tmp_path / "run")
    tried = [child.CONTEXT.Process(target=contend, args=(folder, number, gate, results)) for number in range(1, 9)]
    for process in tried:
        process.start()
    gate.set()
    outcomes = [results.get(timeout=60) for _ in tried]
    for process in tried:
        process.join(60)
    (winner,) = [number for number, done in outcomes if done]
    assert spark_lock.read_holder(folder)["pid"] == winner


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_identified_by_its_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    held, mine = spark_lock.this_run(sleeper.pid), spark_lock.this_run(os.getpid())
    assert spark_lock.lives(held, mine) is True
    sleeper.send_signal(signal.SIGKILL)
    # The parent has not waited for it, so the kernel still lists it.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert spark_lock.lives(held, mine) is False
    sleeper.wait()
    assert spark_lock.lives(held, mine) is False


HELD = LockHolder.from_json({**MINE, "age_s": 67.0})


@pytest.mark.parametrize(
    ("changes", "started", "expected"),
    [
        ({}, "5000", True),
        ({}, "", False),
        ({}, "6000", False),  # a later process has its process id
        ({"machine": "boot-2:pid:[1]"}, "5000", None),  # another machine, another boot, or another container
        ({"controller": "laptop"}, "5000", None),
        ({"machine": ""}, "5000", None),  # a system that does not report the start time
        ({"started": ""}, "", None),
        ({"machine": None, "pid": None}, "5000", None),  # a damaged lock
    ],
)
def test_lives(changes: dict[str, Any], started: str, expected: bool | None, tmp_path: Path) -> None:
    if started:
        stat(tmp_path, 100, "ansible-playbook", 1, int(started))
    assert spark_lock.lives({**MINE, **changes}, MINE, str(tmp_path)) is expected


@pytest.mark.parametrize(
    ("connected", "alive", "parts", "never"),
    [
        (None, True, ["process 100 of this machine", "wait until it has ended"], ["ps -p"]),
        (True, None, ["connection to the Spark is open", "cannot be seen", "`ps -p 100` on desk"], ["most likely"]),
        (False, None, ["connection to the Spark has ended", "most likely has, too", "ask anna"], ["is open"]),
        (None, None, ["cannot be seen", "ask anna"], ["most likely", "is open"]),
    ],
)
def test_the_message_for_the_second_operator(
    connected: bool | None, alive: bool | None, parts: list[str], never: list[str]
) -> None:
    held = LockHolder.from_json({**MINE, "age_s": 67.0, "connected": connected})
    message = str(operator_lock.refusal("spark1", held, alive))
    always = ["spark1 is held by anna@desk with deploy for 01:07", "-e break_lock=true", "operator-lock.md"]
    assert [part for part in [*always, *parts] if part not in message] == []
    assert [part for part in never if part in message] == []


def test_lines() -> None:
    assert operator_lock.take_over_message(HELD, alive=False).endswith("that run has ended without giving it back")
    assert operator_lock.take_over_message(HELD, alive=None).endswith("as break_lock says")
    assert "anna@desk" in operator_lock.lost_message(HELD)


def stat(proc: Path, pid: int, name: str, parent: int, start: int) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", str(parent), *["0"] * 17, str(start), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_the_connection_of_a_run_is_detected_and_its_end_too(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "run"
    stat(proc, 50, "sshd-session", 1, 11)
    stat(proc, 51, "a (b) c", 50, 12)
    stat(proc, os.getpid(), "python3", 51, 13)
    spark_lock.take(MINE, folder=str(folder), proc=str(proc))
    assert json.loads((folder / spark_lock.NAME).read_text())["connection"] == {"pid": 50, "started": "11"}
    assert spark_lock.read_holder(str(folder), str(proc))["connected"] is True
    stat(proc, 50, "sshd-session", 1, 99)
    assert spark_lock.read_holder(str(folder), str(proc))["connected"] is False
    assert spark_lock.connection(1, str(proc)) is None


def test_a_run_on_the_spark_itself_is_seen_by_its_process(tmp_path: Path) -> None:
    """The ssh session in which its owner sits says nothing."""
    folder, mine = str(tmp_path / "run"), spark_lock.this_run(os.getpid())
    spark_lock.take({**mine, "verb": "deploy"}, folder=folder)
    assert spark_lock.read_holder(folder)["connected"] is True
    with subprocess.Popen(["sleep", "60"]) as other:
        spark_lock.take(spark_lock.this_run(other.pid), mine["run"], folder)
        assert spark_lock.read_holder(folder)["connected"] is True
        other.kill()
    assert spark_lock.read_holder(folder)["connected"] is False


class Operator:
    """Run ansible-playbook as an operator does; the Sparks are two folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "play.yml").write_text(PLAY)
        tasks = folder / "roles" / "work" / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "main.yml").write_text(ROLE)
        (tasks / "change.yml").write_text(CHANGE)
        (folder / "locks").mkdir()
        (folder / "hosts").write_text(INVENTORY.format(python=sys.executable, work=folder))

    def start(self, *words: str) -> subprocess.Popen[str]:
        settings = {"ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        return subprocess.Popen(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", "hosts", "play.yml", *words],
            cwd=self.folder,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        output, _ = process.communicate(timeout=120)
        return process.returncode, " ".join(output.split())

    @property
    def changed(self) -> set[str]:
        return {name for name in ("spark1", "spark2") if (self.folder / name).exists()}

    @property
    def held(self) -> set[str]:
        return {path.parent.name for path in (self.folder / "locks").glob(f"*/{spark_lock.NAME}")}


def test_the_next_run_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    """With real runs: one has the lock, the second changes nothing, the first is killed, the third takes over."""
    operator = Operator(tmp_path)
    # The task outlives its run. It goes on until the second run has ended, and for two minutes at most.
    first = operator.start("-e", "then='for n in $(seq 1200); do test -e {{ work }}/end || sleep 0.1; done'")
    until(lambda: operator.changed == {"spark1", "spark2"} or first.poll() is not None, 120)
    assert first.poll() is None, first.communicate()[0]
    for name in operator.changed:
        (tmp_path / name).unlink()
    status, output = operator.run()
    assert status
    assert "spark1 is held by" in output
    assert f"process {first.pid} of this machine" in output
    assert operator.changed == set()
    assert operator.held == {"spark1", "spark2"}
    first.kill()
    first.wait()
    (tmp_path / "end").touch()
    assert operator.held == {"spark1", "spark2"}
    status, output = operator.run()
    assert (status, operator.changed, operator.held) == (0, {"spark1", "spark2"}, set()), output
    assert output.count("that run has ended without giving it back") == 2


def test_the_lock_is_released_if_the_run_fails_or_leaves_a_host(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    (tmp_path / "fail").touch()
    status, output = operator.run("-e", "idle=spark2")
    assert (status != 0, operator.held, operator.changed) == (True, set(), set()), output


def test_a_failure_on_one_host_ends_the_run_on_both_and_releases_both_locks(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    (tmp_path / "fail-spark2").touch()
    status, output = operator.run("-e", "fails_on_one=true")
    assert (status != 0, operator.held, operator.changed) == (True, set(), {"spark1"}), output
    assert not (tmp_path / "spark1-again").exists()


def test_a_lock_on_one_spark_ends_the_run_on_both(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    folder = tmp_path / "locks" / "spark2"
    spark_lock.take({**OTHER, "verb": "switch"}, folder=str(folder))
    status, output = operator.run()
    assert (status != 0, operator.held, operator.changed) == (True, {"spark2"}, set()), output
    assert "spark2 is held by ben@laptop with switch" in output
    status, output = operator.run("-e", "break_lock=true")
    assert (status, operator.held, operator.changed) == (0, set(), {"spark1", "spark2"}), output
