"""First contact against real SSH servers: paramiko in this process, and OpenSSH if this machine has it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

import loopback
from fakes import openssh_server
from fakes.ssh_server import PASSWORD, USER, Server, fingerprint, new_key
from vllm_spark.cli import main
from vllm_spark.cli.contact import first_contact, ssh, ssh_config
from waiting import LIMIT_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "home").mkdir()
    server = Server(tmp_path / "home")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's machine: a key pair, the password in the environment, no agent."""
    folder = tmp_path / "desk"
    folder.mkdir()
    new_key("ed25519", folder / "id_ed25519")
    monkeypatch.setenv(ssh.PASSWORD_VARIABLE, PASSWORD)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for module in (ssh, ssh_config):
        monkeypatch.setattr(module, "TIMEOUT_S", LIMIT_S)
    return folder


@dataclass
class Result:
    """Exit status and output of one run of the command."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(desk: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `vllm-spark contact`, without a host on 127.0.0.1."""

    def _run(port: int, *options: str, user: str = USER, host: str = "127.0.0.1") -> Result:
        files = ["--key", str(desk / "id_ed25519.pub"), "--known-hosts", str(desk / "known_hosts")]
        status = main.main(["contact", host, "--user", user, "--port", str(port), *files, *options])
        return Result(status, *capsys.readouterr())

    return _run


def test_contact_pins_the_host_key_and_installs_and_proves_the_public_key(server: Server, run: Run, desk: Path) -> None:
    result = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert result.status == 0, result.err
    assert "127.0.0.1 accepts the key for nvidia, without a password" in result.out
    known = (desk / "known_hosts").read_text().splitlines()
    assert f"[127.0.0.1]:{server.port} ssh-ed25519 {server.host_keys[0].get_base64()}" in known
    assert server.authorized_keys.read_text() == (desk / "id_ed25519.pub").read_text()
    assert server.authorized_keys.stat().st_mode & 0o777 == 0o600
    assert server.authorized_keys.parent.stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in server.authorized_keys.read_text()


def test_a_second_contact_needs_no_password_and_changes_nothing(
    server: Server, run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    before = server.authorized_keys.read_bytes(), (desk / "known_hosts").read_bytes()
    monkeypatch.delenv(ssh.PASSWORD_VARIABLE)
    result = run(server.port)
    assert result.status == 0, result.err
    assert "as before" in result.out
    assert (server.authorized_keys.read_bytes(), (desk / "known_hosts").read_bytes()) == before


@pytest.mark.parametrize("case", [(0, "needs no password"), (1, "asks for a password: add -K")])
def test_contact_reports_whether_sudo_asks(
    server: Server, run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[int, str]
) -> None:
    (status, line), programs = case, desk / "bin"
    programs.mkdir()
    (programs / "sudo").write_text(f'#!/bin/sh\ntest "$*" = "-k -n true" && exit {status}\nexit 2\n')
    (programs / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    first = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert f"sudo of nvidia {line}" in first.out
    assert f"sudo of nvidia {line}" in run(server.port).out


def test_existing_lines_are_kept(server: Server, run: Run, desk: Path) -> None:
    server.authorized_keys.parent.mkdir()
    server.authorized_keys.write_text("# of a colleague\nssh-ed25519 AAAA colleague")  # without its newline
    (desk / "known_hosts").write_text("other ssh-ed25519 AAAA")
    assert run(server.port, "--fingerprint", fingerprint(server.host_keys[0])).status == 0
    lines = server.authorized_keys.read_text().splitlines()
    assert lines[:2] == ["# of a colleague", "ssh-ed25519 AAAA colleague"]
    assert lines[2:] == [(desk / "id_ed25519.pub").read_text().strip()]
    assert (desk / "known_hosts").read_text().splitlines()[0] == "other ssh-ed25519 AAAA"


def test_a_key_in_a_comment_is_not_installed(server: Server, run: Run, desk: Path) -> None:
    public = (desk / "id_ed25519.pub").read_text()
    script = first_contact.INSTALL.format(key="'{} {}'".format(*public.split()[:2]), line=f"'{public.strip()}'")
    (server.home / ".ssh").mkdir()
    server.authorized_keys.write_text(f"#{public}")
    for stdout in ("added\n", "there\n"):
        done = subprocess.run(
            ["sh", "-s"], input=script, capture_output=True, text=True, check=True, env={"HOME": str(server.home)}
        )
        assert done.stdout == stdout, done.stderr


def test_the_fingerprint_may_be_of_any_key_type(server: Server, run: Run, desk: Path) -> None:
    result = run(server.port, "--fingerprint", fingerprint(server.host_keys[1]))
    assert result.status == 0, result.err
    assert "ssh-rsa" in (desk / "known_hosts").read_text()


def test_a_wrong_fingerprint_is_refused_before_the_password(server: Server, run: Run, desk: Path) -> None:
    result = run(server.port, "--fingerprint", "SHA256:another")
    assert result.status == 1
    assert fingerprint(server.host_keys[0]) in result.err
    assert fingerprint(server.host_keys[1]) in result.err
    assert "expected: SHA256:another" in result.err
    assert "Fix:" in result.err
    assert not (desk / "known_hosts").exists()
    assert not server.authorized_keys.exists()


def test_without_terminal_and_fingerprint_the_host_key_is_refused(server: Server, run: Run) -> None:
    result = run(server.port)
    assert result.status == 1
    assert f"--fingerprint {fingerprint(server.host_keys[0])}" in result.err


@pytest.mark.parametrize(("answer", "status"), [("yes", 0), ("no", 1), ("", 1)])
def test_a_person_confirms_the_host_key(
    server: Server, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    result = run(server.port)
    assert result.status == status
    assert fingerprint(server.host_keys[0]) in result.out
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in result.out


def test_a_changed_host_key_is_refused(server: Server, run: Run, desk: Path, tmp_path: Path) -> None:
    run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    old = server.host_keys[0]
    server.host_keys[0] = new_key("ed25519", tmp_path / "new")
    for options in ([], ["--fingerprint", fingerprint(server.host_keys[0])]):
        result = run(server.port, *options)
        assert result.status == 1
        assert fingerprint(server.host_keys[0]) in result.err
        assert fingerprint(old) in result.err
        assert f"Fix: if the Spark was reinstalled, `ssh-keygen -R '[127.0.0.1]:{server.port}'" in result.err


def test_a_wrong_password_is_refused(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ssh.PASSWORD_VARIABLE, "wrong-word")
    result = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert result.status == 1
    assert "does not accept this password for nvidia" in result.err
    assert "wrong-word" not in result.out + result.err
    assert not server.authorized_keys.exists()


def test_a_server_without_password_login_is_refused(server: Server, run: Run) -> None:
    server.methods = "publickey"
    result = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert result.status == 1
    assert "accepts publickey for nvidia and not a password alone" in result.err


def test_a_closed_port_is_refused(run: Run) -> None:
    with loopback.refusing_port() as port:
        result = run(port, "--fingerprint", "SHA256:x")
    assert result.status == 1
    assert f"127.0.0.1 port {port}: Connection refused" in result.err


@pytest.mark.parametrize("host", ["a" * 300, f"{'a' * 64}.local", "a..b", f"ä{'a' * 300}"])
def test_a_name_that_no_host_has_is_refused(run: Run, host: str) -> None:
    result = run(22, host=host)
    assert result.status == 1
    assert "runbook contact-unreachable" in result.err


def test_another_service_on_the_port_is_refused(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(
            target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 no\r\n\r\n" * 200), daemon=True
        ).start()
        result = run(other.getsockname()[1])
    assert result.status == 1
    assert "runbook contact-unreachable" in result.err


def test_a_private_key_is_refused(server: Server, run: Run, desk: Path) -> None:
    result = run(server.port, "--key", str(desk / "id_ed25519"))
    assert result.status == 1
    assert "is a private key" in result.err
    assert f"Fix: --key {desk / 'id_ed25519'}.pub; nothing was sent." in result.err


def test_a_file_that_is_not_a_public_key_is_refused(server: Server, run: Run, desk: Path) -> None:
    (desk / "bad.pub").write_text("ssh-ed25519 AAAA no key\n")
    assert "is not a public key" in run(server.port, "--key", str(desk / "bad.pub")).err
    assert "No such file" in run(server.port, "--key", str(desk / "none.pub")).err


def test_a_locked_key_is_refused_before_the_password(server: Server, run: Run, desk: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "locked", "-f", desk / "id_ed25519"], check=True)
    result = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert result.status == 1
    assert "is locked by a passphrase" in result.err
    assert f"Fix: ssh-add {desk / 'id_ed25519'}." in result.err


def test_each_host_needs_its_fingerprint(server: Server, run: Run) -> None:
    result = run(server.port, "--fingerprint", "SHA256:a", "--fingerprint", "SHA256:b")
    assert "2 --fingerprint for 1 hosts" in result.err


def test_openssh_accepts_the_key(run: Run, desk: Path, tmp_path: Path) -> None:
    """Covers host keys, pinning and the proof. OpenSSH accepts passwords of real users only."""
    folder = tmp_path / "sshd"
    with openssh_server.running(folder, desk / "id_ed25519.pub") as port:
        host_key = fingerprint(paramiko.PKey.from_path(folder / "host_ecdsa"))
        result = run(port, "--fingerprint", host_key, user=os.environ.get("USER", "root"))
        assert result.status == 0, result.err
        assert "127.0.0.1 accepts ssh-ed25519" in result.out
        assert "ecdsa-sha2-nistp256" in (desk / "known_hosts").read_text()
