"""The texts of ssh, sudo and Ansible that mean that a host cannot be used, and what an operator reads instead."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError

from fakes.fake_ansible import FakeRun
from project_files import load_module
from vllm_spark.core import host_access, paths
from vllm_spark.core.host_access import Login
from vllm_spark.lifecycle import status, status_table
from vllm_spark.lifecycle.status import HostResult
from vllm_spark_ansible.action import SparkAction, UnreachableError

LOGIN = Login.of({"inventory_hostname": "spark1", "ansible_host": "192.168.1.20", "ansible_user": "ada"})
SSH = "Failed to connect to the host via ssh: "
# id -> (a text that was really printed, a part of the message)
TEXTS = {
    "sudo-password": ("Missing sudo password", "sudo asks ada for a password"),
    "sudo-password of a connection without a terminal": (
        "Premature end of stream waiting for become success.\n>>> Standard Error\nsudo: a password is required",
        "the same command with -K",
    ),
    "sudo-password-wrong": ("Incorrect sudo password", "sudo does not accept this password for ada"),
    "sudo-denied": ("ada is not in the sudoers file.", "ada may not use sudo"),
    "host-login": (
        f"{SSH}ada@192.168.1.20: Permission denied (publickey,password).",
        "contact 192.168.1.20 --user ada.",
    ),
    "host-key": (f"{SSH}Host key verification failed.", "the host key of 192.168.1.20 is unknown"),
    "host-unreachable": (
        f"{SSH}ssh: connect to host 192.168.1.20 port 22: Connection refused",
        "no SSH connection to 192.168.1.20 port 22: connect to host 192.168.1.20 port 22: Connection refused",
    ),
    "host-unreachable with data": (
        'Data could not be sent to remote host "192.168.1.20". Make sure this host can be reached over ssh: '
        "ssh: connect to host 192.168.1.20 port 22: No route to host",
        "no SSH connection to 192.168.1.20 port 22: connect to host 192.168.1.20 port 22: No route to host",
    ),
    "host-unreachable of a name": (
        f"{SSH}ssh: Could not resolve hostname spark1.local: Name or service not known",
        "Could not resolve hostname spark1.local: Name or service not known",
    ),
    "host-disk-full": (
        "[Errno 28] No space left on device: '/etc/vllm-spark/demo/launch'",
        "spark1: No space left on device: '/etc/vllm-spark/demo/launch'",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_fault_of_the_access_is_explained(name: str) -> None:
    text, part = TEXTS[name]
    refusal = host_access.explain(text, LOGIN)
    assert refusal is not None
    assert refusal.id == name.split(maxsplit=1)[0]
    assert part in str(refusal)
    assert str(refusal).startswith("spark1: ")
    assert (paths.RUNBOOKS / f"{refusal.runbook}.md").exists()


@pytest.mark.parametrize("text", ["", "module failed", "no model here", "[Errno 2] No such file or directory: 'x'"])
def test_another_text_is_left_as_it_is(text: str) -> None:
    assert host_access.explain(text, LOGIN) is None


def test_the_command_of_a_contact_names_another_port() -> None:
    login = Login.of({"inventory_hostname": "spark1", "ansible_port": 2222})
    assert login.contact == "vllm-spark contact spark1 --port 2222"


OWN = {"inventory_hostname": "spark1", "ansible_connection": "local", "ansible_user": "nvidia"}


def test_on_the_machine_itself_the_user_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ansible_user` of the group is that of the other Sparks."""
    monkeypatch.setenv("LOGNAME", "ada")
    assert "sudo asks ada for a password" in str(host_access.explain("Missing sudo password", Login.of(OWN)))
    full = host_access.explain("[Errno 28] No space left on device: '/etc/x'", Login.of(OWN))
    assert full is not None
    assert full.command == "df -h; sudo docker system df"


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith("host-") and "disk" not in name])
def test_on_the_machine_itself_nothing_is_a_fault_of_ssh(name: str) -> None:
    assert host_access.explain(TEXTS[name][0], Login.of(OWN)) is None


class Example(SparkAction):
    """An action that raises its argument, or runs a module."""

    def act(self) -> dict[str, Any]:
        if "error" in self.args:
            raise self.args["error"]
        return self.execute("probe", {})


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (AnsibleError("Missing sudo password"), AnsibleActionFail),
        (AnsibleConnectionFailure(f"{SSH}Permission denied (publickey)."), AnsibleConnectionFailure),
    ],
)
def test_an_action_raises_the_explanation(error: AnsibleError, raised: type[AnsibleError]) -> None:
    with pytest.raises(AnsibleError) as failed:
        FakeRun().act(Example, error=error)
    assert isinstance(failed.value, raised)
    error = failed.value
    (refusal,) = (error.fields if isinstance(error, UnreachableError) else error.result)["refusals"]
    assert str(refusal["fix"]["command"] or refusal["fix"]["remark"]) in str(failed.value)
    assert "See docs/runbooks/" in str(failed.value)
    assert failed.value.__suppress_context__


def test_another_error_keeps_its_text() -> None:
    with pytest.raises(AnsibleError, match="no such module"):
        FakeRun().act(Example, error=AnsibleError("no such module"))


def test_the_message_of_a_module_is_explained() -> None:
    run = FakeRun(modules={"probe": {"failed": True, "msg": "[Errno 28] No space left on device: '/etc/x'"}})
    assert "Fix: ssh -t spark1" in run.act(Example)["msg"]


def test_the_exception_of_a_module_is_explained() -> None:
    summary = SimpleNamespace(event=SimpleNamespace(msg="[Errno 28] No space left on device: '/etc/x'"))
    result = FakeRun(modules={"probe": {"failed": True, "exception": summary}}).act(Example)
    assert "spark1: No space left on device: '/etc/x'" in result["msg"]
    assert "exception" not in result


def test_an_error_of_a_write_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = load_module("vllm_files")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=rf"\[Errno 28\] No space left on device: '{tmp_path}/launch'"):
        files.write_file(str(tmp_path / "launch"), "content", "0755")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "word"),
    [("sudo-password", "no access"), ("host-login", "no access"), ("host-unreachable", "no answer")],
)
def test_status_distinguishes_a_host_without_access(name: str, word: str) -> None:
    problem = str(host_access.explain(TEXTS[name][0], LOGIN))
    document = status.document({"spark1": HostResult(None, problem=problem)}, "now", "test")
    row, note = status_table.table(document).splitlines()[3], status_table.table(document).splitlines()[-1]
    assert row.split("│")[3].strip() == word
    assert note == problem
