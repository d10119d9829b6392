"""The machine that deploys is the Spark itself (`ansible_connection: local`), alone or beside one that ssh reaches."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import loopback
from fakes import local_spark
from vllm_spark.core import paths
from vllm_spark.core.ports import BUNDLE_PORT, LOOPBACK

RUN = Path(sys.executable).with_name("ansible-playbook")
RECIPE = "gemma-4-26b-a4b-nvfp4-mtp"
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
ANOTHER_PASSWORD = "not the password"
# What the role vllm_pull does with a bundle, and between its two tasks a look at the port.
CARRY = f"""
- hosts: sparks
  gather_facts: false
  tasks:
    - vllm_spark.toolkit.vllm_pull_carry: {{folder: "{{{{ bundle }}}}", token: secret}}
      register: opened
    - ansible.builtin.wait_for: {{host: {LOOPBACK}, port: {BUNDLE_PORT}, timeout: 5}}
    - vllm_spark.toolkit.vllm_pull_carry: {{opened: "{{{{ opened }}}}"}}
    - ansible.builtin.wait_for: {{host: {LOOPBACK}, port: {BUNDLE_PORT}, timeout: 5, state: stopped}}
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with local_spark.running(tmp_path / "spark") as variables:
        yield dict(variables)


def play(inventory: Path, playbook: str | Path, *words: str, **more: str) -> tuple[int, str]:
    """Run a playbook. Returns its exit status and what it printed, as one line."""
    config = str(paths.ROOT / "ansible.cfg")
    done = subprocess.run(
        [RUN, "-i", inventory, paths.ROOT / playbook, *words],
        env={**os.environ, "ANSIBLE_CONFIG": config, "ANSIBLE_FORCE_COLOR": "0", **more},
        cwd=inventory.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def together(inventory: Path, hosts: Mapping[str, Any], **more: Any) -> Path:
    """Rewrite an inventory of one Spark for these."""
    document = yaml.load(inventory.read_text(), yaml.CSafeLoader)
    document["sparks"]["hosts"] = dict(hosts)
    document["sparks"]["vars"] |= more
    inventory.write_text(yaml.safe_dump(document))
    return inventory


def test_its_messages_are_commands_of_this_machine(tmp_path: Path, host: dict[str, Any]) -> None:
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE, ansible_user="nvidia")
    (tmp_path / "spark" / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA GB10, 570.1, 12.0, 0, 99, 0x0, 1\n")
    status, said = play(inventory, "precheck.yml")
    assert status == 2
    assert "Fix: sudo apt-get install nvidia-driver-580-open. Then reboot it." in said
    assert "ssh" not in said


@pytest.mark.parametrize("address", [None, "localhost"])
def test_it_needs_an_address_for_its_clients(tmp_path: Path, host: dict[str, Any], address: str | None) -> None:
    host["ansible_host"] = address
    status, said = play(local_spark.write_inventory(tmp_path, host, RECIPE), "precheck.yml")
    assert status == 2
    assert f"spark1 is this machine, and its ansible_host is {address or 'not set'} — expected: the name" in said
    assert f"write ansible_host: {socket.gethostname().partition('.')[0]}.local" in said


def test_two_sparks_are_not_this_machine(tmp_path: Path, host: dict[str, Any]) -> None:
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE)
    other = {**host, "ansible_host": "spark-3c4d.local"}
    status, said = play(together(inventory, {"spark1": host, "spark2": other}), "precheck.yml", "-l", "spark1")
    assert status == 2
    assert "spark1 and spark2 have ansible_connection: local, so each would be this machine" in said


def test_a_bundle_is_served_without_a_tunnel(tmp_path: Path, host: dict[str, Any]) -> None:
    bundle, carry = tmp_path / "bundle", tmp_path / "carry.yml"
    (bundle / "images").mkdir(parents=True)
    (bundle / "bundle.json").write_text(json.dumps({"models": [], "images": []}))
    carry.write_text(CARRY)
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE)
    status, said = play(inventory, carry, "-e", f"bundle={bundle}", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default")
    assert (status, "ok=4" in said) == (0, True), said


def test_no_module_becomes_a_file(tmp_path: Path, host: dict[str, Any]) -> None:
    """Its arguments may be secrets, and a killed run would leave them."""
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE)
    status, said = play(inventory, "status.yml", "-vvv", ANSIBLE_REMOTE_TMP=str(tmp_path / "remote"))
    assert status == 0, said
    assert "<spark-1a2b.local> EXEC" in said
    assert "AnsiballZ" not in said
    assert not (tmp_path / "remote").exists()


def sudo_asks() -> bool:
    """Return whether sudo would ask this user for a password."""
    return bool(shutil.which("sudo")) and subprocess.run(["sudo", "-n", "true"], check=False).returncode != 0


@pytest.mark.skipif(not sudo_asks(), reason="there is no sudo that asks this user; molecule/own has one")
@pytest.mark.parametrize("password", ["", ANOTHER_PASSWORD])
def test_the_refusal_of_sudo_names_the_user_of_the_run(tmp_path: Path, host: dict[str, Any], password: str) -> None:
    host |= {"ansible_become": True, **({"ansible_become_password": password} if password else {})}
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE, ansible_user="nvidia")
    status, said = play(inventory, "precheck.yml", LC_ALL="C.UTF-8")
    user = getpass.getuser()
    expected = f"does not accept this password for {user}" if password else f"sudo asks {user} for a password"
    assert (status, expected in said) == (2, True), said


@pytest.fixture
def by_ssh(tmp_path: Path, host: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables of a second Spark: this machine once more, which a real sshd of this user reaches."""
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    folder, port = tmp_path / "sshd", loopback.held_port()
    folder.mkdir()
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "own.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(f"[{LOOPBACK}]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress {LOOPBACK}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "UsePAM no\nStrictModes no\nPidFile none\nPermitRootLogin prohibit-password\n"
    )
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and daemon.poll() is None and not listens(port):
            time.sleep(0.05)
        if daemon.poll() is not None:
            pytest.skip("sshd does not run here")
        options = f"-i {folder}/own -o UserKnownHostsFile={folder}/known_hosts -o ControlPath=none"
        yield {
            **host,
            "ansible_connection": "ssh",
            "ansible_host": LOOPBACK,
            "ansible_port": port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_common_args": options,
        }
    finally:
        daemon.terminate()
        daemon.wait(10)


def listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def test_it_deploys_a_spark_that_ssh_reaches_too(tmp_path: Path, host: dict[str, Any], by_ssh: dict[str, Any]) -> None:
    """Each message has the command that runs from here."""
    inventory = local_spark.write_inventory(tmp_path, host, RECIPE)
    placed = [{"name": f"on-{name}", "recipe": RECIPE, "hosts": [name]} for name in ("spark1", "spark2")]
    inventory = together(inventory, {"spark1": host, "spark2": by_ssh}, vllm_deployments=placed)
    (tmp_path / "spark" / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA GB10, 570.1, 12.0, 0, 99, 0x0, 1\n")
    status, said = play(inventory, "precheck.yml")
    install = "sudo apt-get install nvidia-driver-580-open"
    assert status == 2, said
    assert f"Fix: {install}." in said
    assert f"Fix: ssh -t -p {by_ssh['ansible_port']} {getpass.getuser()}@{LOOPBACK} {install}." in said
