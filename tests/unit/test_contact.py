"""First contact, against a real ssh server: paramiko's own in this process, and OpenSSH's where this machine has it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

import loopback
from vllm_spark.cli import contact, main

HOST_RSA_KEY = paramiko.RSAKey.generate(2048)
USER, PASSWORD = "nvidia", "the password of a test"
SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ['PATH']}")


class Doorman(paramiko.ServerInterface):
    """Lets in by the password, or by a key of the home's authorized_keys; runs what it is told there."""

    def __init__(self, home: Path, methods: str) -> None:
        self.home, self.methods = home, methods

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_password(self, username: str, password: str) -> int:
        good = (username, password) == (USER, PASSWORD) and "password" in self.methods
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        file = self.home / ".ssh" / "authorized_keys"
        good = file.exists() and key.get_base64() in file.read_text()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self.execute, args=(channel, command), daemon=True).start()
        return True

    def execute(self, channel: paramiko.Channel, command: bytes) -> None:
        script = channel.makefile("rb").read()
        home = {**os.environ, "HOME": str(self.home)}
        done = subprocess.run(["sh", "-c", command], input=script, capture_output=True, check=False, env=home)
        channel.sendall(done.stdout)
        channel.sendall_stderr(done.stderr)
        channel.send_exit_status(done.returncode)
        channel.close()


class Server:
    """A Spark's sshd, on a free port of the loopback."""

    def __init__(self, home: Path) -> None:
        self.home, self.methods = home, "publickey,password"
        self.host_keys: list[paramiko.PKey] = [
            new_key("ed25519", home / "host_ed25519"),
            paramiko.RSAKey.generate(2048),
        ]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            for key in self.host_keys:
                transport.add_server_key(key)
            try:
                transport.start_server(server=Doorman(self.home, self.methods), event=threading.Event())
            except (paramiko.SSHException, EOFError):
                continue

    def close(self) -> None:
        loopback.close_listener(self.listener, self.thread)

    @property
    def authorized_keys(self) -> Path:
        return self.home / ".ssh" / "authorized_keys"


def new_key(kind: str, file: Path) -> paramiko.PKey:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "me@desk", "-f", file], check=True)
    return paramiko.PKey.from_path(file)


def fingerprint(key: paramiko.PKey) -> str:
    return contact.Key(key.get_name(), key.get_base64()).fingerprint


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "home").mkdir()
    made = Server(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's machine: a key pair, the password in the environment, no agent."""
    folder = tmp_path / "desk"
    folder.mkdir()
    new_key("ed25519", folder / "id_ed25519")
    monkeypatch.setenv(contact.PASSWORD_VARIABLE, PASSWORD)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@dataclass
class Shown:
    """What a run of the command ended with and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Shown]


@pytest.fixture
def run(desk: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `vllm-spark contact` on 127.0.0.1."""

    def _run(port: int, *words: str, user: str = USER) -> Shown:
        files = ["--key", str(desk / "id_ed25519.pub"), "--known-hosts", str(desk / "known_hosts")]
        status = main.main(["contact", "127.0.0.1", "--user", user, "--port", str(port), *files, *words])
        return Shown(status, *capsys.readouterr())

    return _run


def test_it_pins_installs_and_proves(server: Server, run: Run, desk: Path) -> None:
    ended = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert ended.status == 0, ended.err
    assert "is let in by the key, without a password" in ended.out
    known = (desk / "known_hosts").read_text().splitlines()
    assert f"[127.0.0.1]:{server.port} ssh-ed25519 {server.host_keys[0].get_base64()}" in known
    assert server.authorized_keys.read_text() == (desk / "id_ed25519.pub").read_text()
    assert server.authorized_keys.stat().st_mode & 0o777 == 0o600
    assert server.authorized_keys.parent.stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in server.authorized_keys.read_text()


def test_a_second_time_asks_nothing_and_changes_nothing(
    server: Server, run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    before = server.authorized_keys.read_bytes(), (desk / "known_hosts").read_bytes()
    monkeypatch.delenv(contact.PASSWORD_VARIABLE)
    ended = run(server.port)
    assert ended.status == 0, ended.err
    assert "as before" in ended.out
    assert (server.authorized_keys.read_bytes(), (desk / "known_hosts").read_bytes()) == before


def test_what_others_wrote_stays(server: Server, run: Run, desk: Path) -> None:
    server.authorized_keys.parent.mkdir()
    server.authorized_keys.write_text("# of a colleague\nssh-ed25519 AAAA colleague")  # without its newline
    (desk / "known_hosts").write_text("other ssh-ed25519 AAAA")
    assert run(server.port, "--fingerprint", fingerprint(server.host_keys[0])).status == 0
    lines = server.authorized_keys.read_text().splitlines()
    assert lines[:2] == ["# of a colleague", "ssh-ed25519 AAAA colleague"]
    assert lines[2:] == [(desk / "id_ed25519.pub").read_text().strip()]
    assert (desk / "known_hosts").read_text().splitlines()[0] == "other ssh-ed25519 AAAA"


def test_a_key_in_a_comment_is_none(server: Server, run: Run, desk: Path) -> None:
    public = (desk / "id_ed25519.pub").read_text()
    script = contact.INSTALL.format(words="'{} {}'".format(*public.split()[:2]), line=f"'{public.strip()}'")
    (server.home / ".ssh").mkdir()
    server.authorized_keys.write_text(f"#{public}")
    for said in ("added\n", "there\n"):
        done = subprocess.run(
            ["sh", "-s"], input=script, capture_output=True, text=True, check=True, env={"HOME": str(server.home)}
        )
        assert done.stdout == said, done.stderr


def test_the_fingerprint_may_be_of_any_type(server: Server, run: Run, desk: Path) -> None:
    ended = run(server.port, "--fingerprint", fingerprint(server.host_keys[1]))
    assert ended.status == 0, ended.err
    assert "ssh-rsa" in (desk / "known_hosts").read_text()


def test_another_fingerprint_is_refused_before_the_password(server: Server, run: Run, desk: Path) -> None:
    ended = run(server.port, "--fingerprint", "SHA256:another")
    assert ended.status == 1
    assert fingerprint(server.host_keys[0]) in ended.err
    assert fingerprint(server.host_keys[1]) in ended.err
    assert "expected: SHA256:another" in ended.err
    assert "Fix:" in ended.err
    assert not (desk / "known_hosts").exists()
    assert not server.authorized_keys.exists()


def test_without_terminal_and_fingerprint_nobody_confirms(server: Server, run: Run) -> None:
    ended = run(server.port)
    assert ended.status == 1
    assert f"--fingerprint {fingerprint(server.host_keys[0])}" in ended.err


@pytest.mark.parametrize(("answer", "status"), [("yes", 0), ("no", 1), ("", 1)])
def test_a_person_is_asked(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, status: int) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    ended = run(server.port)
    assert ended.status == status
    assert fingerprint(server.host_keys[0]) in ended.out
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in ended.out


def test_a_changed_host_key_is_refused(server: Server, run: Run, desk: Path, tmp_path: Path) -> None:
    run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    old = server.host_keys[0]
    server.host_keys[0] = new_key("ed25519", tmp_path / "new")
    for words in ([], ["--fingerprint", fingerprint(server.host_keys[0])]):
        ended = run(server.port, *words)
        assert ended.status == 1
        assert fingerprint(server.host_keys[0]) in ended.err
        assert fingerprint(old) in ended.err
        assert f"Fix: if the Spark was installed anew, ssh-keygen -R '[127.0.0.1]:{server.port}'" in ended.err


def test_a_wrong_password(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contact.PASSWORD_VARIABLE, "wrong-word")
    ended = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert ended.status == 1
    assert "does not accept this password for nvidia" in ended.err
    assert "wrong-word" not in ended.out + ended.err
    assert not server.authorized_keys.exists()


def test_no_password_login(server: Server, run: Run) -> None:
    server.methods = "publickey"
    ended = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert ended.status == 1
    assert "by publickey and not by a password alone" in ended.err


def test_nobody_there(run: Run) -> None:
    with loopback.refusing_port() as port:
        ended = run(port, "--fingerprint", "SHA256:x")
    assert ended.status == 1
    assert f"127.0.0.1 port {port}: Connection refused" in ended.err


def test_no_ssh_server_there(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(
            target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 no\r\n\r\n" * 200), daemon=True
        ).start()
        ended = run(other.getsockname()[1])
    assert ended.status == 1
    assert "contact-unreachable.md" in ended.err


def test_a_private_key_is_refused(server: Server, run: Run, desk: Path) -> None:
    ended = run(server.port, "--key", str(desk / "id_ed25519"))
    assert ended.status == 1
    assert "is a private key" in ended.err
    assert f"Fix: --key {desk / 'id_ed25519'}.pub; nothing was sent." in ended.err


def test_a_key_that_is_none(server: Server, run: Run, desk: Path) -> None:
    (desk / "bad.pub").write_text("ssh-ed25519 AAAA no key\n")
    assert "is no public key" in run(server.port, "--key", str(desk / "bad.pub")).err
    assert "No such file" in run(server.port, "--key", str(desk / "none.pub")).err


def test_a_locked_key_is_said_before_the_password_is_asked(server: Server, run: Run, desk: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "locked", "-f", desk / "id_ed25519"], check=True)
    ended = run(server.port, "--fingerprint", fingerprint(server.host_keys[0]))
    assert ended.status == 1
    assert "is locked by a passphrase" in ended.err
    assert f"Fix: ssh-add {desk / 'id_ed25519'}." in ended.err


def test_one_fingerprint_a_host(server: Server, run: Run) -> None:
    ended = run(server.port, "--fingerprint", "SHA256:a", "--fingerprint", "SHA256:b")
    assert "2 --fingerprint for 1 hosts" in ended.err


@pytest.mark.skipif(SSHD is None, reason="no sshd on this machine: OpenSSH's own is met by molecule/fabric")
def test_openssh_lets_the_key_in(run: Run, desk: Path, tmp_path: Path) -> None:
    """Without the password, which OpenSSH takes for real users only: host keys, pinning and the proof."""
    assert SSHD is not None
    folder = tmp_path / "sshd"
    folder.mkdir()
    keys = [new_key(kind, folder / f"ssh_host_{kind}_key") for kind in ("ed25519", "ecdsa", "rsa")]
    port = loopback.free_port()
    shutil.copy(desk / "id_ed25519.pub", folder / "authorized_keys")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nUsePAM no\nStrictModes no\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin prohibit-password\n"
        + "".join(f"HostKey {folder}/ssh_host_{kind}_key\n" for kind in ("ed25519", "ecdsa", "rsa"))
    )
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(port, daemon)
        ended = run(port, "--fingerprint", fingerprint(keys[1]), user=os.environ.get("USER", "root"))
        assert ended.status == 0, ended.err
        assert "is let in by ssh-ed25519" in ended.out
        assert "ecdsa-sha2-nistp256" in (desk / "known_hosts").read_text()
    finally:
        daemon.terminate()
        daemon.wait(10)


def wait_for(port: int, daemon: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            said = daemon.stderr.read().strip() if daemon.stderr else ""
            # Its user or its folder is made when the package is set up or its service starts. All else is a fault.
            if "rivilege separation" in said:
                pytest.skip(f"sshd does not run here: {said}")
            pytest.fail(f"sshd ended: {said}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"sshd does not listen on {port}")
