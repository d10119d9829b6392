"""`vllm-spark logs` without a Spark: the words of ssh, and what an end means."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from vllm_spark.cli import logs
from vllm_spark.core.host_access import Login

LOGIN = Login.of({"inventory_hostname": "spark1", "ansible_host": "10.0.0.1", "ansible_user": "ada"})
# Values of a host as Ansible fills them, those that are empty left out -> the words after `ssh` and logs.SSH.
SET = {"ssh_executable": "ssh", "host_key_checking": True}
WORDS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["spark1"]),
    ({"ansible_host": "10.0.0.1", "ansible_user": "ada", "ansible_port": 22}, ["ada@10.0.0.1"]),
    ({"ansible_port": 2222, "private_key_file": "/a key"}, ["-i", "/a key", "-p", "2222", "spark1"]),
    (
        {"ssh_args": "-o A=1", "ssh_common_args": "-o 'B=2 3'", "ssh_extra_args": "-4"},
        ["-o", "A=1", "-o", "B=2 3", "-4", "spark1"],
    ),
]


@pytest.mark.parametrize(("values", "words"), WORDS)
def test_ssh_gets_the_options_of_the_inventory(values: dict[str, Any], words: list[str]) -> None:
    assert logs._ssh("spark1", {**SET, **values}) == ["ssh", *logs.SSH, *words]


def test_an_owner_who_checks_no_host_key_gets_none_checked() -> None:
    words = logs._ssh("spark1", {"ssh_executable": "ssh"})
    assert words == ["ssh", *logs.SSH, "-o", "StrictHostKeyChecking=no", "spark1"]


# What the process prints on stderr, and its exit status -> the status of the command, and a part of what it says.
ENDS = [
    ("", 0, 0, "spark1: its journal has no line of vllm@mine.service"),
    ("Warning: x\nssh: connect to host spark1 port 22: No route to host", 255, 4, "port 22: connect to host spark1"),
    ("ada@spark1: Permission denied (publickey).", 255, 4, "Fix: vllm-spark contact 10.0.0.1 --user ada."),
    ("Host key verification failed.", 255, 4, "Fix: vllm-spark contact 10.0.0.1 --user ada."),
    ("", 255, 4, "spark1: ssh ended with status 255"),
    ("sudo: a password is required", 1, 1, "the same command with -K"),
    ("ada is not in the sudoers file.", 1, 1, "spark1: ada may not use sudo"),
    ("Failed to parse timestamp: x\n", 1, 1, "spark1: Failed to parse timestamp: x — expected"),
    ("", 127, 1, "spark1: journalctl ended with status 127"),
]


@pytest.mark.parametrize(("said", "ended", "status", "told"), ENDS)
def test_an_end_has_a_status_and_a_reason(
    said: str, ended: int, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"cat >&2; exit {ended}"
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(said)
    source = logs.Source(LOGIN, "vllm@mine.service", process, str)
    source.pass_on()
    source.end()
    assert source.status == status
    assert told in capsys.readouterr().err


def test_a_line_is_masked_and_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(["printf", "2026 a\\033[2J\\n  b\\n"], stdout=subprocess.PIPE, text=True)
    logs.Source(LOGIN, "", process, lambda line: line.replace("b", "<masked>"), "spark1  ").pass_on()
    assert capsys.readouterr().out.splitlines() == ["spark1  2026 a\\x1b[2J", "spark1    <masked>"]
