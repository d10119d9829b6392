"""The SSH server of a Spark on a free port of the loopback: paramiko in this process, with a home in a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import paramiko

import loopback
from vllm_spark.cli.contact import keys

USER, PASSWORD = "nvidia", "the password of a test"


class LoginPolicy(paramiko.ServerInterface):
    """Accept the password, or a key of the home's authorized_keys, and run the commands of the client."""

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
        home = {**os.environ, "HOME": str(self.home)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(["sh", "-c", command], env=home, **pipes) as process:
            # Ansible leaves the input open behind a command that reads none.
            threading.Thread(target=self.feed, args=(channel, process.stdin), daemon=True).start()
            out, err = process.stdout.read(), process.stderr.read()
        # The client may have gone.
        with suppress(OSError):
            channel.sendall(out)
            channel.sendall_stderr(err)
            channel.send_exit_status(process.returncode)
            channel.close()

    def feed(self, channel: paramiko.Channel, stdin: IO[bytes]) -> None:
        with suppress(OSError), stdin:
            while data := channel.recv(1 << 16):
                stdin.write(data)


class Server:
    """The SSH server of a Spark, on a free port of the loopback."""

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
                transport.start_server(server=LoginPolicy(self.home, self.methods), event=threading.Event())
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
    return keys.Key(key.get_name(), key.get_base64()).fingerprint
