"""What an operator sees of real runs of ansible-playbook with the callback of ansible.cfg."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import verb_documents
from vllm_spark.core import paths, removed
from vllm_spark.lifecycle import status
from waiting import until

RUN = Path(sys.executable).with_name("ansible-playbook")
# The plugin `local` under the name that the toolkit does not read: here it stands for ssh to other machines.
LOCAL = {
    "ansible_connection": "ansible.legacy.local",
    "ansible_python_interpreter": sys.executable,
    "ansible_become": False,
}
TASKS = """
- name: Report a line
  ansible.builtin.debug: {msg: [one, two]}
- name: Change a file
  ansible.builtin.copy: {content: "new\\n", dest: "{{ work }}/{{ inventory_hostname }}.txt", mode: "0644"}
- name: Fail without consequences
  ansible.builtin.command: "false"
  ignore_errors: true
"""
RESCUED = """
- block:
    - name: Copy it
      ansible.builtin.shell: "echo the cause >&2; exit 3"
  rescue:
    - name: Fail with the reason
      ansible.builtin.fail: {msg: "stopped: {{ ansible_failed_result.stderr if told else 'no reason' }}. Fix: x"}
"""
FAILS = """
- name: Run a program
  ansible.builtin.shell: "echo the cause >&2; exit 3"
"""
UNDEFINED = """
- name: Use the inventory
  ansible.builtin.debug: {msg: "{{ typo }}"}
"""
WAITS = """
- name: Change a file
  ansible.builtin.copy: {content: "new\\n", dest: "{{ work }}/{{ inventory_hostname }}.txt", mode: "0644"}
- name: Wait for the server
  ansible.builtin.shell: "touch {{ work }}/waits; sleep 90"
"""
# The step of a switch from which on a server may stop.
SWITCHES = """
- name: Decide the steps of this Spark
  vllm_spark.toolkit.vllm_switch:
    {phase: steps, to: mine, order: "{{ vllm_switch_order }}", decision: "{{ decision }}", drain_s: 1, memory_s: 1}
"""
ORDER = {"involved": True, "starts": True, "stop": ["tiny"], "running": ["tiny"], "others": [], "old": "tiny"}


class Site:
    """A folder with a playbook and an inventory of two hosts, each of which is this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = ["spark1", "spark2"]

    def write(self, tasks: str, name: str = "deploy", **variables: object) -> None:
        play = {"name": "Try", "hosts": "sparks", "gather_facts": False, "tasks": yaml.load(tasks, yaml.CSafeLoader)}
        (self.folder / f"{name}.yml").write_text(yaml.safe_dump([play]))
        hosts = {host: {**LOCAL} for host in self.hosts}
        inventory = {"sparks": {"hosts": hosts, "vars": {"work": str(self.folder), **variables}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))

    def start(self, playbook: Path, *words: str, inventory: bool = True) -> subprocess.Popen[str]:
        named = ["-i", self.folder / "hosts.yml"] if inventory else []
        return subprocess.Popen(
            [RUN, *named, playbook, *words],
            cwd=paths.ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, name: str = "deploy", inventory: bool = True) -> tuple[int, str, str]:
        return self.run_file(self.folder / f"{name}.yml", *words, inventory=inventory)

    def run_file(self, playbook: Path, *words: str, inventory: bool = True) -> tuple[int, str, str]:
        process = self.start(playbook, *words, inventory=inventory)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_only_own_lines_are_printed(site: Site) -> None:
    site.write(TASKS)
    status, out, err = site.run()
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == ["spark1  one", "spark1  two", "spark2  one", "spark2  two"]


def test_v_shows_tasks_and_recap(site: Site) -> None:
    site.write(TASKS)
    status, out, _ = site.run("-v")
    assert status == 0
    assert "TASK [Change a file]" in out
    assert "PLAY RECAP" in out


def test_a_difference_names_its_host(site: Site) -> None:
    site.write(TASKS)
    status, out, _ = site.run("--check", "--diff")
    assert status == 0
    for host in ("spark1", "spark2"):
        assert f"{host}  changes:\n--- before" in out
    assert "+new" in out


def test_an_unexpected_failure_is_complete_and_its_recap_is_shown(site: Site) -> None:
    site.write(FAILS)
    status, out, err = site.run()
    assert status == 2
    # Either host may end first. The other one has one line.
    hosts = [line.split("  ")[0] for line in err.splitlines()]
    assert min(hosts.count("spark1"), hosts.count("spark2")) == 1
    for part in ("non-zero return code", "exit status 3", "the cause", "'Run a program'", "deploy.yml:"):
        assert err.count(part) == 1
    assert "PLAY RECAP" in out


@pytest.mark.parametrize("told", [True, False])
def test_a_rescued_failure_is_shown_once(site: Site, told: bool) -> None:
    site.write(RESCUED, told=told)
    status, _, err = site.run("-l", "spark1")
    assert status == 2
    assert err.count("stopped: ") == 1
    assert err.count("the cause") == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [("absent", "there is no inventory at "), ("hosts.yml", "hosts.yml:3:1: not YAML, ")],
)
def test_an_inventory_that_cannot_be_read_is_told_once(site: Site, path: str, said: str) -> None:
    site.write(TASKS)
    (site.folder / "hosts.yml").write_text("sparks: [\n  a:\n")
    status, out, err = site.run("-i", str(site.folder / path), inventory=False)
    assert (status, out) == (1, "")
    (line,) = err.splitlines()
    assert said in line
    assert " Fix: " in line
    assert line.endswith("See docs/runbooks/inventory-refused.md")


def test_a_typo_in_the_inventory_has_file_and_line(site: Site) -> None:
    site.write(UNDEFINED, typo="{{ (1 }}")
    line = next(
        number for number, text in enumerate((site.folder / "hosts.yml").read_text().splitlines(), 1) if "(1" in text
    )
    status, _, err = site.run()
    assert status == 2
    assert f"{site.folder}/hosts.yml:{line}:" in err.splitlines()[0]
    assert len(err.splitlines()) == 3


def test_a_refusal_is_shown_once(site: Site) -> None:
    deployments = [{"name": f"on-{host}", "recipe": "nosuch", "hosts": [host]} for host in ("spark1", "spark2")]
    site.write(TASKS, vllm_deployments=deployments)
    status, out, err = site.run_file(paths.ROOT / "plan.yml")
    assert status == 2
    assert err.count("unknown recipe nosuch") == 1
    assert len(err.splitlines()) == 2
    assert "ERROR" not in out + err
    assert "Origin" not in out + err


def test_a_plan_of_many_hosts_tells_each_refusal_once(site: Site) -> None:
    site.hosts = ["spark1", "spark2", "spark3"]
    deployments = [{"name": f"on-{host}", "recipe": "gemma-4-26b-a4b-fp8-mtp", "hosts": [host]} for host in site.hosts]
    site.write(TASKS, vllm_deployments=deployments)
    status, out, err = site.run_file(paths.ROOT / "plan.yml")
    assert status == 2
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == site.hosts
    assert "3 hosts: 3 would refuse; no-go: on-spark1, on-spark2, on-spark3." in out
    # The three hosts are this machine at three moments, so what is free on them may differ.
    refusals = [line for line in err.splitlines() if " GiB available of " not in line]
    assert refusals
    for refusal in refusals:
        assert refusal.startswith("spark1  ")
        assert "Fix: " in refusal
        assert refusal.endswith(".md (the same on spark2, spark3)")
    assert "PLAY RECAP" not in out


@pytest.mark.parametrize("words", [(), ("-v",)])
@pytest.mark.parametrize(
    ("verb", "ending"),
    # Exit status 4: a Spark could not be reached. status has a row for it, and another one could be read.
    [("status", 0), ("plan", 4)],
)
def test_a_document_is_all_of_stdout(site: Site, verb: str, ending: int, words: tuple[str, ...]) -> None:
    deployments = [
        {"name": "here", "recipe": "gemma-4-26b-a4b-fp8-mtp", "hosts": ["spark1"]},
        {"name": "refused", "recipe": "nosuch", "hosts": ["spark2"]},
        {"name": "away", "recipe": "gemma-4-26b-a4b-fp8-mtp", "hosts": ["spark3"]},
    ]
    site.hosts = ["spark1", "spark2", "spark3"]
    site.write(TASKS, vllm_deployments=deployments)
    hosts = yaml.load((site.folder / "hosts.yml").read_text(), yaml.CSafeLoader)
    hosts["sparks"]["hosts"]["spark3"] = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}
    (site.folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    ended, out, _ = site.run_file(paths.ROOT / f"{verb}.yml", "-e", "json=true", *words)
    document = verb_documents.judged(json.loads(out))
    assert (ended, document["schema"]) == (ending, f"vllm-spark/{verb}/1")
    rows = {row["host"]: row for row in document["hosts"]}
    assert rows.keys() == set(site.hosts)
    assert rows["spark3"]["answers"] is False
    assert "no SSH connection to 127.0.0.1 port 1" in rows["spark3"]["problem"]
    found = {(refusal["host"], refusal["id"]) for refusal in document["refusals"]}
    expected = {
        ("spark2", "unknown-recipe"),
        *([("spark3", "host-unreachable")] if verb == "plan" else []),
        *([("spark1", "wrong-architecture")] if verb == "plan" and platform.machine() != "aarch64" else []),
    }
    assert expected <= found
    assert document["failures"] == []


@pytest.mark.parametrize("words", [(), ("-v",), ("-e", "json=true")])
def test_a_status_that_read_no_spark_says_so_once(site: Site, words: tuple[str, ...]) -> None:
    site.write(TASKS, vllm_deployments=[])
    away = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}
    hosts = yaml.load((site.folder / "hosts.yml").read_text(), yaml.CSafeLoader)
    hosts["sparks"]["hosts"] = dict.fromkeys(site.hosts, away)
    (site.folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    ended, out, err = site.run_file(paths.ROOT / "status.yml", *words)
    assert ended == 4
    if "json=true" in words:
        assert [row["answers"] for row in verb_documents.judged(json.loads(out))["hosts"]] == [False, False]
    assert (out + err).count(status.NONE_ANSWERS) == 1
    if words != ("-v",):
        assert err.splitlines()[-1] == status.NONE_ANSWERS
        assert "PLAY RECAP" not in out


def test_the_fix_of_a_refusal_is_a_command(site: Site) -> None:
    status, out, err = site.run_file(
        paths.ROOT / "plan.yml", "-i", str(site.folder / "absent"), "-e", '{"json": true}', inventory=False
    )
    (refusal,) = verb_documents.judged(json.loads(out))["refusals"]
    assert (status, refusal["id"], refusal["runbook"]) == (1, "no-inventory", "inventory-refused")
    assert f"Fix: {refusal['fix']['command']}. {refusal['fix']['remark']} See" in err


def test_a_failure_that_is_no_refusal_is_in_the_document(site: Site) -> None:
    site.write(FAILS, name="plan")
    status, out, err = site.run("-e", "json=true", "-l", "spark1", name="plan")
    document = verb_documents.judged(json.loads(out))
    assert (status, document["refusals"], document["deployments"]) == (2, [], [])
    (failure,) = document["failures"]
    assert failure["host"] == "spark1"
    assert "the cause" in failure["message"]
    assert "the cause" in err
    assert document["hosts"][0]["answers"] is None


@pytest.mark.parametrize("verb", removed.DOCUMENTS)
def test_a_document_that_a_verb_has_no_more_is_refused(verb: str, site: Site) -> None:
    site.write(TASKS, name=verb)
    status, out, err = site.run("-e", "json=true", name=verb)
    assert (status, out) == (1, "")
    assert f"Fix: ansible-playbook -i {site.folder / 'hosts.yml'} {verb}.yml" in " ".join(err.split())


def test_a_verb_without_a_document_prints_its_lines(site: Site) -> None:
    site.write(TASKS)
    _, out, _ = site.run("-e", "json=true", "-l", "spark1")
    assert out.splitlines() == ["spark1  one", "spark1  two"]


@pytest.mark.parametrize(
    ("name", "tasks", "part"),
    [
        (
            "deploy",
            WAITS,
            "no server was started or stopped. Fix: the same command again continues; `ansible-playbook -i {hosts} -l "
            "spark1 status.yml` shows the state.",
        ),
        ("plan", WAITS, "has changed no host"),
        ("switch", SWITCHES + WAITS, "tiny stops for mine; mine goes on loading"),
        (
            "switch",
            SWITCHES + WAITS,
            "continues, `ansible-playbook -i {hosts} switch.yml -e to=tiny` brings tiny back; `ansible-playbook -i",
        ),
    ],
)
def test_ctrl_c_ends_with_the_state_of_the_hosts(site: Site, name: str, tasks: str, part: str) -> None:
    decision = {"transition": True, "restart": False, "report": False}
    site.write(tasks, name=name, vllm_switch_order=ORDER, decision=decision)
    process = site.start(site.folder / f"{name}.yml", "-l", "spark1")
    until((site.folder / "waits").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"Interrupted: {name} ended after ")
    assert "in 'Wait for the server'" in line
    assert part.format(hosts=site.folder / "hosts.yml") in line
    assert "Fix: " in line
