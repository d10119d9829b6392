"""What is printed can be typed: every command that a deploy, an `up -K`, a failed pair, a Ctrl-C and a collect print.

Each one has the options of its run and the names of its site, its program reads it, and one that only looks is run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import printed
import typed_commands
from fakes import failing_pair, local_spark, terminal
from fakes.fake_ansible import FakeRun
from fakes.gate_requests import gate_request
from vllm_spark.core import paths, run_command
from vllm_spark.core.run_command import ThisRun
from vllm_spark.deploy import consent
from vllm_spark.lifecycle import interruption, rollback
from vllm_spark.verify import report
from vllm_spark_ansible import started

BIN = Path(sys.executable).parent
RECIPE = "gemma-4-26b-a4b-nvfp4-mtp"
ONE = ["-i", "hosts.yml", "-l", "spark1", "-K"]
BOTH = ["-i", "hosts.yml", "-l", "spark1,spark2", "-K"]
PASSWORD = {"BECOME password:": "x"}
# A verb, as either program starts it.
VERB = ("ansible-playbook ", "vllm-spark ")
WAITS = "it waits"
# The step of a deploy from which on Ctrl-C leaves a server that loads, and a task that waits.
LOADING = f"""
- name: Decide what it replaces
  vllm_spark.toolkit.vllm_switch:
    phase: steps
    to: mine
    order: "{{{{ vllm_switch_order }}}}"
    decision: {{transition: true, restart: false, report: false}}
    drain_s: 1
    memory_s: 1
- name: Change a file
  ansible.builtin.copy: {{content: "new\\n", dest: "{{{{ inventory_dir }}}}/changed", mode: "0644"}}
- name: Say so
  ansible.builtin.debug: {{msg: {WAITS}}}
- name: Wait for the server
  ansible.builtin.command: sleep 90
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an inventory: this machine as a Spark, another one that nobody can reach, and their pair."""
    made = tmp_path_factory.mktemp("site")
    with local_spark.running(made / "spark") as host:
        file = local_spark.write_inventory(made, host, RECIPE)
        document = yaml.load(file.read_text(), yaml.CSafeLoader)
        away = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_user": "ada"}
        document["sparks"]["hosts"]["spark2"] = away
        pair = {"name": failing_pair.NAME, "recipe": failing_pair.RECIPE, "hosts": ["spark1", "spark2"]}
        document["sparks"]["vars"]["vllm_deployments"].append({**pair, "active": False})
        order = {"involved": True, "starts": True, "stop": ["tiny"], "running": ["tiny"], "others": [], "old": "tiny"}
        document["sparks"]["vars"]["vllm_switch_order"] = order
        file.write_text(yaml.safe_dump(document))
        play = {"hosts": "sparks", "gather_facts": False}
        (made / "switch.yml").write_text(yaml.safe_dump([{**play, "tasks": yaml.load(LOADING, yaml.CSafeLoader)}]))
        yield made


def environment() -> dict[str, str]:
    own = {"PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg")}
    return {**os.environ, **own, "ANSIBLE_FORCE_COLOR": "0", "TERM": "dumb"}


def typed(folder: Path, command: str, answers: Mapping[str, str] = PASSWORD) -> tuple[int, str]:
    """Type a command in the folder. Returns its exit status and what the terminal shows."""
    return terminal.typed(["/bin/sh", "-c", f"cd {folder} && exec {command}"], environment(), answers)


def playbook(verb: str, *words: str) -> str:
    return shlex.join(["ansible-playbook", *words, str(paths.ROOT / f"{verb}.yml")])


def said_by_actions(*words: str) -> Any:
    """Let the messages of this process be of a run with these words."""
    return run_command.within(started.this_run(["ansible-playbook", *words, str(paths.ROOT / "deploy.yml")]))


def deploy(folder: Path) -> tuple[str, list[str]]:
    """A deploy in check mode, and the lines behind the gates of a real one."""
    _, shown = typed(folder, playbook("deploy", *ONE, "--check"))
    with said_by_actions(*ONE):
        closing = report.closing(gate_request(), [], "spark-1a2b.local")
    return f"{shown}\n{closing}", ["status"]


def up(folder: Path) -> tuple[str, list[str]]:
    """`vllm-spark up -K`, whose question is answered with no."""
    _, shown = typed(folder, shlex.join(["vllm-spark", "up", *ONE]), {**PASSWORD, consent.QUESTION: "no"})
    options = started.this_run(["ansible-playbook", *ONE, "up.yml"]).options
    with run_command.within(ThisRun(by_command=True, options=options)):
        closing = report.closing(gate_request(), [], "spark-1a2b.local")
    return f"{shown}\n{closing}", ["up", "status"]


def failed_pair(folder: Path) -> tuple[str, list[str]]:
    """A deploy of a pair whose ranks end, and which stays down."""
    lines = []
    for rank, host in enumerate(failing_pair.HOSTS):
        for journal in ([], failing_pair.JOURNALS[host]):
            probe = {"unit": {"ActiveState": "failed"}, "running_s": 1.0, "cursor": "c", "responses": {}}
            probe |= {"lines": list(journal), "state": {"state": "gave up"}, "container": None}
            run = FakeRun(host, failing_pair.variables(), {"vllm_probe": {"probe": probe}})
            gates = gate_request(unit=f"vllm@{failing_pair.NAME}.service", rank=rank).to_json()
            args = {"gates": gates, "env_path": "/e", "reason": "", "wait": True, "report_dir": str(folder / "reports")}
            with said_by_actions(*BOTH):
                lines.append(str(run.act("vllm_verify", phase="gates", **args)["missed"]))
    with said_by_actions(*BOTH):
        lines.append(rollback.failure_report("", {}, {"restored": {}}, {}, ["tiny"]))
    return "\n".join(lines), ["deploy", "switch"]


def ctrl_c(folder: Path) -> tuple[str, list[str]]:
    """Ctrl-C while a server loads that has taken the place of another one."""
    status, shown = typed(folder, shlex.join(["ansible-playbook", *ONE, "switch.yml"]), {**PASSWORD, WAITS: "\x03"})
    assert status == interruption.EXIT_STATUS, shown
    return shown, ["switch", "status"]


def collect(folder: Path) -> tuple[str, list[str]]:
    """The diagnosis of both Sparks of a pair that has given up."""
    lines: list[str] = []
    done: dict[str, dict[str, Any]] = {}
    variables = failing_pair.variables()
    with said_by_actions(*BOTH):
        for host in failing_pair.HOSTS:
            run = FakeRun(host, variables, {"vllm_collect_logs": failing_pair.collected(host)})
            args = {"deployments": variables[host]["vllm_deployments"], "report_dir": str(folder / "reports")}
            done[host] = run.act("vllm_collect", phase="host", **args)
            lines += run.lines
    bundles = {host: result["bundle"] for host, result in done.items()}
    for bundle in bundles.values():
        ended, shown = typed(folder, f"vllm-spark doctor {bundle}", {})
        assert ended == 1
        lines += shown.splitlines()
    return "\n".join(lines), ["deploy", "precheck", "verify"]


RUNS = [deploy, up, failed_pair, ctrl_c, collect]


@pytest.mark.parametrize("run", RUNS)
def test_every_printed_command_can_be_typed(run: Any, folder: Path) -> None:
    text, verbs = run(folder)
    commands = printed.commands(text)
    of_verbs = [command for command in commands if command.startswith(VERB) and "vllm-spark runbook" not in command]
    for verb in verbs:
        assert any(f"{verb}.yml" in command or f"vllm-spark {verb} " in command for command in of_verbs), (verb, text)
    assert list(printed.unfilled(text)) == []
    judged = {command: typed_commands.wrong(command.replace(f"{paths.ROOT}/", "")) for command in commands}
    assert {command: fault for command, fault in judged.items() if fault} == {}
    # The doctor that reads a bundle has no inventory, and starts no playbook.
    starts = [command for command in of_verbs if " doctor " not in command]
    started_alike = [command for command in starts if "-i hosts.yml" in command and " -K" in command]
    assert starts == started_alike or run is collect
    for command in started_alike:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command} --list-hosts"],
            cwd=folder, env=environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode, "spark1" in done.stdout) == (0, True), (command, done.stderr)


def test_a_printed_command_that_looks_runs(folder: Path) -> None:
    for run in (deploy, up):
        text, _ = run(folder)
        (command,) = printed.looking(text)
        ended, shown = typed(folder, command)
        assert (ended, "spark1" in shown) == (0, True), shown


def test_the_runbook_of_a_command_is_found(folder: Path) -> None:
    text, _ = collect(folder)
    pages = [command for command in printed.commands(text) if command.startswith("vllm-spark runbook ")]
    assert pages
    for command in pages:
        assert typed(folder, command, {})[0] == 0


def test_the_judge_finds_placeholders() -> None:
    text = "Fix: `journalctl -u vllm@NAME`; `ansible-playbook deploy.yml -l HEAD,WORKER`. Log: ssh USER@ADDRESS x"
    assert len(list(printed.unfilled(text))) == 3
    assert printed.looking("Next: curl http://a\n      ansible-playbook -i x status.yml") == [
        "ansible-playbook -i x status.yml"
    ]
