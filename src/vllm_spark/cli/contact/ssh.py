"""SSH connections of the first contact: the host key that a server presents, login, and one script."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paramiko import Agent, AuthenticationException, BadAuthenticationType, PKey, SSHException, Transport
from paramiko.ssh_exception import IncompatiblePeer

from vllm_spark.cli.contact.keys import ALGORITHMS, Key
from vllm_spark.core.refusal import Fix, RefusedError, register

NO_SIGNER = register("contact-no-signer", runbook="contact-key")
NOT_INSTALLED = register("contact-install", runbook="contact-key")
UNREACHABLE = register("contact-unreachable", runbook="contact-unreachable")
HOST_KEY_CHANGED = register("contact-host-key-changed", runbook="contact-host-key")
NO_PASSWORD = register("contact-no-password", runbook="contact-password")
WRONG_PASSWORD = register("contact-password", runbook="contact-password")
NO_PASSWORD_LOGIN = register("contact-no-password-login", runbook="contact-password")

PASSWORD_VARIABLE = "VLLM_SPARK_PASSWORD"  # noqa: S105  the variable's name
SSH_PORT = 22
TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Target:
    """A host to contact, the user and the files of this machine. `fingerprint` is empty if none was passed."""

    host: str
    port: int
    user: str
    key_file: Path
    known_hosts: Path
    fingerprint: str

    @property
    def name(self) -> str:
        """The host's name in known_hosts."""
        return self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}"


@contextmanager
def connected(target: Target, types: Sequence[str]) -> Iterator[Transport]:
    """Connect without a login, and request a host key of one of `types`.

    Raises IncompatiblePeer if the host has none of them, and RefusedError if it cannot be reached.
    """
    try:
        transport = Transport(socket.create_connection((target.host, target.port), timeout=TIMEOUT_S))
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        raise unreachable(target, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
    try:
        transport.get_security_options().key_types = [name for type_ in types for name in ALGORITHMS[type_]]
        transport.start_client(timeout=TIMEOUT_S)
        yield transport
    except IncompatiblePeer:
        raise
    except (SSHException, OSError, EOFError) as error:
        raise unreachable(target, str(error) or type(error).__name__) from error
    finally:
        transport.close()


@contextmanager
def connected_to(target: Target, host_key: Key) -> Iterator[Transport]:
    """Connect without a login to the host that has this host key. Raises RefusedError for another key."""
    try:
        with connected(target, [host_key.type]) as transport:
            presented = _host_key(transport)
            if presented != host_key:
                raise host_key_changed(target, presented, {host_key.type: host_key.blob})
            yield transport
    except IncompatiblePeer as error:
        raise unreachable(target, f"{host_key.type} no longer offered") from error


def presented_host_key(target: Target, types: Sequence[str]) -> Key:
    """Return the host key that the host presents if `types` are requested. Raises as `connected` does."""
    with connected(target, types) as transport:
        return _host_key(transport)


def _host_key(transport: Transport) -> Key:
    key = transport.get_remote_server_key()
    return Key(key.get_name(), key.get_base64())


def load_signer(target: Target, key: Key) -> PKey:
    """Return the agent's key, or the private key beside the public one. Raises RefusedError if neither can sign."""
    for signer in Agent().get_keys():
        if signer.get_base64() == key.blob:
            return signer
    file = target.key_file.with_suffix("")
    try:
        private_key = PKey.from_path(file)
    except (OSError, TypeError, ValueError, SSHException) as error:
        locked = isinstance(error, (TypeError, ValueError)) or "assword" in str(error)
        detail = "is locked by a passphrase" if locked else getattr(error, "strerror", None) or str(error)
    else:
        if private_key.get_base64() == key.blob:
            return private_key
        detail = "belongs to another public key"
    raise NO_SIGNER.error(
        what=f"this machine cannot sign for {target.key_file}: the key is not in the agent, and {file} {detail}",
        expected="the private key in this machine's ssh-agent, or without a passphrase beside the public key",
        fix=Fix(f"ssh-add {file}"),
    )


def accepts_key(transport: Transport, target: Target, signer: PKey) -> bool:
    """Return True if the host accepts the key as the only proof."""
    try:
        # A host that requires more than a key returns the methods that remain.
        return not transport.auth_publickey(target.user, signer)
    except AuthenticationException:
        return False


def log_in(transport: Transport, target: Target) -> None:
    """Log in by password. Raises RefusedError if the host rejects it or requires something else."""
    try:
        remaining = transport.auth_password(target.user, _password(target))
    except BadAuthenticationType as error:
        raise _no_password_login(target, error.allowed_types) from error
    except AuthenticationException as error:
        raise WRONG_PASSWORD.error(
            what=f"{target.host} does not accept this password for {target.user}",
            expected="the password of this user at the screen of the Spark",
            fix=f"try again; the user of a Spark is the one created at its first start, which --user {target.user} may "
            "not be.",
        ) from error
    if remaining:
        raise _no_password_login(target, remaining)


def _password(target: Target) -> str:
    password = os.environ.get(PASSWORD_VARIABLE)
    if password:
        return password
    if not sys.stdin.isatty():
        raise NO_PASSWORD.error(
            what=f"no password for {target.user} on {target.host}, and no terminal to ask for it",
            expected=f"a password in {PASSWORD_VARIABLE}",
            fix=f"run the command in a terminal, or set {PASSWORD_VARIABLE} in this shell's environment.",
        )
    return getpass.getpass(f"Password of {target.user} on {target.host}: ")


def run_script(transport: Transport, target: Target, script: str) -> str:
    """Run a script on the host and return its stdout. Raises RefusedError for an exit status other than 0.

    The script is the standard input of `sh`, so that the login shell of the user does not matter.
    """
    channel = transport.open_session(timeout=TIMEOUT_S)
    channel.settimeout(TIMEOUT_S)
    channel.exec_command("exec sh -s")
    channel.sendall(script.encode())
    channel.shutdown_write()
    stdout: str = channel.makefile("rb").read().decode()
    stderr: str = channel.makefile_stderr("rb").read().decode()
    status = channel.recv_exit_status()
    if status:
        raise NOT_INSTALLED.error(
            what=f"{target.host} did not install the key: exit status {status}, {stderr.strip() or 'no output'}",
            expected=f"a home folder that {target.user} may write",
            fix=f"on the Spark, check that ~{target.user}/.ssh belongs to {target.user} and that its disk is not full.",
        )
    return stdout


def unreachable(target: Target, detail: str) -> RefusedError:
    """Return the refusal of a host that has no SSH server."""
    return UNREACHABLE.error(
        what=f"{target.host} port {target.port}: {detail}",
        expected="an SSH server",
        fix=Fix(f"ping {target.host}", "On the Spark: `sudo systemctl enable --now ssh`."),
    )


def host_key_changed(target: Target, presented: Key, known: Mapping[str, str]) -> RefusedError:
    """Return the refusal of a host key that is not the known one. `known` is type -> blob."""
    keys = ", ".join(str(Key(type_, blob)) for type_, blob in known.items())
    return HOST_KEY_CHANGED.error(
        what=f"{target.name} presents {presented}, and {target.known_hosts} has {keys}",
        expected="the known host key; a third party may intercept the connection",
        fix=f"if the Spark was reinstalled, `ssh-keygen -R {shlex.quote(target.name)} -f {target.known_hosts}`, and "
        "compare the new key at its screen.",
    )


def _no_password_login(target: Target, methods: Sequence[str]) -> RefusedError:
    return NO_PASSWORD_LOGIN.error(
        what=f"{target.host} accepts {', '.join(methods) or 'no method'} for {target.user} and not a password alone",
        expected="password login, for this first contact",
        fix="at the screen of the Spark, add the public key to ~/.ssh/authorized_keys.",
    )
