"""The key of a pair's link in a real run of the role: one key on both hosts, and in no output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.core import paths

RUN = Path(sys.executable).with_name("ansible-playbook")
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
HOSTS = ("spark1", "spark2")


def plan(folder: Path, head: str) -> dict[str, Any]:
    """Return what the role reads of a plan. It installs nothing but the env file and, with a head, a key."""
    return {
        "folders": [str(folder)],
        "files": [],
        "env_path": f"{folder}/env",
        "edge_group": "",
        "link_path": f"{folder}/link.key",
        "link_head": head,
        "installed": False,
        "keep_as": "",
        "unedit": False,
        "reload": False,
        "settled": True,
        "stop_units": [],
        "state": "started",
        "timer": "",
    }


@pytest.fixture
def install(tmp_path: Path) -> Any:
    """A function that runs the role on both hosts with the most output, and returns the output."""

    def _install(head: str, *words: str) -> str:
        role = {"name": "vllm_server", "tasks_from": "files", "rolespec_validate": False}
        tasks = [{"name": "Install", "ansible.builtin.include_role": role}]
        play = {"name": "Try", "hosts": "sparks", "gather_facts": False, "tasks": tasks}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        # The spec of a host without a deployment: its env file has every secret, and there are none.
        resolved = {"spark_precheck_resolved": {"spec": None}}
        hosts = {host: {**LOCAL, **resolved, "vllm_server_plan": plan(tmp_path / host, head)} for host in HOSTS}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}))
        done = subprocess.run(
            [RUN, "-i", tmp_path / "hosts.yml", tmp_path / "play.yml", "-vvv", "--diff", *words],
            cwd=paths.ROOT,
            # Ansible's own callback prints more than the toolkit's.
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"),
                "ANSIBLE_FORCE_COLOR": "0",
                # ansible-core before 2.21 always prints the arguments of a module.
                "ANSIBLE_INJECT_INVOCATION": "1",
                "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return _install


def keys(folder: Path) -> list[str]:
    files = [folder / host / "link.key" for host in HOSTS]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    return [file.read_text() for file in files]


def test_both_hosts_get_one_key_that_no_output_shows(install: Any, tmp_path: Path) -> None:
    output = install("spark1")
    first, second = keys(tmp_path)
    assert re.fullmatch("[0-9a-f]{64}\n", first)
    assert first == second
    assert "link_key" in output
    assert first.strip() not in output
    # Hosts with one key keep it.
    install("")
    assert keys(tmp_path) == [first, first]
    install("spark1")
    renewed = keys(tmp_path)
    assert renewed[0] == renewed[1] != first


def test_check_mode_installs_no_key(install: Any, tmp_path: Path) -> None:
    output = install("spark1", "--check")
    assert "link.key: is new (its content is secret)" in output
    assert not re.search("[0-9a-f]{64}", output)
    assert not any((tmp_path / host).exists() for host in HOSTS)
