"""Commands of a message that run as printed: the login of the inventory, and the runbooks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fakes.fake_ansible import FakeRun
from vllm_spark.core import paths, ssh_command
from vllm_spark_ansible.action import SparkAction

HOSTS: dict[str, dict[str, Any]] = {
    "spark1": {"ansible_host": "spark-1a2b.local", "ansible_user": "ada"},
    "spark2": {"ansible_host": "10.0.0.12", "ansible_user": "grace", "ansible_port": 2222},
    "gx10-3c4d.local": {},
    "odd": {"ansible_host": "10.0.0.13", "ansible_user": "a b"},
    "own": {"ansible_host": "spark-1a2b.local", "ansible_user": "ada", "ansible_connection": "local"},
}
CASES = [
    ("Fix: ssh -t spark1 sudo reboot.", "Fix: ssh -t ada@spark-1a2b.local sudo reboot."),
    ("`ssh -t spark2 'sudo a && sudo b'`", "`ssh -t -p 2222 grace@10.0.0.12 'sudo a && sudo b'`"),
    ("ssh -t gx10-3c4d.local id", "ssh -t gx10-3c4d.local id"),
    ("ssh -t odd id", "ssh -t 'a b@10.0.0.13' id"),
    ("ssh -t HOST id", "ssh -t HOST id"),
    ("ssh -t ada@spark1 id", "ssh -t ada@spark1 id"),
    ("spark1 has no ssh", "spark1 has no ssh"),
    ("Fix: ssh -t own sudo reboot.", "Fix: sudo reboot."),
    ("`ssh -t own 'sudo a && sudo b'`, then", "`sudo a && sudo b`, then"),
    ("`ssh -t own \"sudo sh -c 'sync; a'\"`", "`sudo sh -c 'sync; a'`"),
    ("ssh -t own id and ssh -t spark1 'a; b'", "id and ssh -t ada@spark-1a2b.local 'a; b'"),
]


@pytest.mark.parametrize(("text", "printed"), CASES)
def test_a_command_has_the_login_of_the_inventory(text: str, printed: str) -> None:
    assert ssh_command.with_logins(text, HOSTS) == printed


def test_an_action_prints_commands_that_run() -> None:
    class Saying(SparkAction):
        def act(self) -> dict[str, Any]:
            self.say("ssh -t spark1 id")
            self.show("ssh -t spark2 id")
            return {}

    run = FakeRun(hostvars=HOSTS)
    run.act(Saying)
    assert run.lines == ["spark1  ssh -t ada@spark-1a2b.local id", "ssh -t -p 2222 grace@10.0.0.12 id"]


RUNBOOKS = sorted(paths.RUNBOOKS.glob("*.md"))
WHERE = "USER is `ansible_user` and ADDRESS is `ansible_host` of the Spark in the inventory."


def test_the_commands_of_the_runbooks_name_user_and_address() -> None:
    assert len(RUNBOOKS) > 50
    for page in RUNBOOKS:
        text = page.read_text()
        assert re.findall(r"\bssh (?:-t )?(?:HOST|HEAD|WORKER|SENDER)\b", text) == [], page.name
        assert ("USER@ADDRESS" in text) == (WHERE in text), page.name


def test_sudo_over_ssh_has_a_terminal_and_no_pipe() -> None:
    for page in RUNBOOKS:
        for line in page.read_text().splitlines():
            for command in re.findall(r"\bssh [^`]*?USER@[^`]*", line):
                outside = re.sub(r"\"[^\"]*\"|'[^']*'", "", command)
                if "sudo" in command:
                    assert command.startswith("ssh -t "), f"{page.name}: {command}"
                    assert "|" not in outside, f"{page.name}: {command}"
