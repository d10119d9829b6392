"""First contact by password: know a Spark's host keys, put this machine's public key there, prove that it opens.

A host key is believed because a person compared its fingerprint, or gave it; the host's other keys because they were
read over the connection that the first one has proven. The private key stays where it is: it only signs.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import getpass
import hashlib
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core.refusal import Refusal, RefusedError, register

CONTACT_PRIVATE_KEY = register("contact-private-key", runbook="contact-key")
CONTACT_NO_SIGNER = register("contact-no-signer", runbook="contact-key")
CONTACT_FINGERPRINTS = register("contact-fingerprints", runbook="contact-host-key")
CONTACT_NO_KEY = register("contact-no-key", runbook="contact-key")
CONTACT_UNREACHABLE = register("contact-unreachable", runbook="contact-unreachable")
CONTACT_HOST_KEY_CHANGED = register("contact-host-key-changed", runbook="contact-host-key")
CONTACT_FINGERPRINT = register("contact-fingerprint", runbook="contact-host-key")
CONTACT_UNCONFIRMED = register("contact-unconfirmed", runbook="contact-host-key")
CONTACT_NO_PASSWORD = register("contact-no-password", runbook="contact-password")
CONTACT_PASSWORD = register("contact-password", runbook="contact-password")
CONTACT_NO_PASSWORD_LOGIN = register("contact-no-password-login", runbook="contact-password")
CONTACT_INSTALL = register("contact-install", runbook="contact-key")
CONTACT_NOT_LET_IN = register("contact-not-let-in", runbook="contact-key")

PASSWORD_VARIABLE = "VLLM_SPARK_PASSWORD"  # noqa: S105  the variable's name
SSH_PORT = 22
TIMEOUT_S = 15

# Key types of known_hosts, in the order in which they are asked for, and the algorithms that prove each.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}

# A comment is no entry; a last line without its end would swallow ours.
INSTALL = """set -eu
umask 077
cd
mkdir -p .ssh
chmod 700 .ssh
file=.ssh/authorized_keys
touch "$file"
chmod 600 "$file"
if grep -v '^[[:space:]]*#' "$file" | grep -qF -- {words}; then
  echo there
else
  [ -z "$(tail -c 1 "$file")" ] || echo >> "$file"
  printf '%s\\n' {line} >> "$file"
  echo added
fi
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, a host's or a person's."""

    type: str
    blob: str
    comment: str = ""

    @classmethod
    def parse(cls, line: str) -> Key | None:
        """Of one line of a .pub file, or None."""
        words = line.split(maxsplit=2)
        try:
            if len(words) > 1 and _named(base64.b64decode(words[1], validate=True)) == words[0]:
                return cls(words[0], words[1], words[2].strip() if len(words[2:]) else "")
        except (binascii.Error, ValueError):
            pass
        return None

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l shows it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to contact, and how."""

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


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("contact", help="first contact by password: host keys, public key, proof")
    parser.add_argument("hosts", nargs="+", metavar="HOST")
    parser.add_argument("--user", required=True)
    parser.add_argument("--port", type=int, default=SSH_PORT)
    parser.add_argument("--key", type=Path, default=Path("~/.ssh/id_ed25519.pub"), help="the public key to install")
    parser.add_argument("--known-hosts", type=Path, default=Path("~/.ssh/known_hosts"))
    parser.add_argument(
        "--fingerprint",
        action="append",
        default=[],
        metavar="SHA256:…",
        help="of a host key, in place of the question; once per HOST, in their order",
    )


def run(asked: argparse.Namespace) -> int:
    """Contact every host; a refusal of one does not keep the others waiting. The password is asked for once a host."""
    if asked.fingerprint and len(asked.fingerprint) != len(asked.hosts):
        raise RefusedError([_fingerprint_count(len(asked.hosts), len(asked.fingerprint))])
    key = read_public_key(asked.key.expanduser())
    refusals: list[Refusal] = []
    for host, fingerprint in zip(asked.hosts, asked.fingerprint or [""] * len(asked.hosts), strict=True):
        files = (asked.key.expanduser(), asked.known_hosts.expanduser())
        try:
            for line in contact(Target(host, asked.port, asked.user, *files, fingerprint), key):
                print(f"{host}  ✓ {line}", flush=True)
        except RefusedError as refused:
            refusals += refused.refusals
    if refusals:
        raise RefusedError(refusals)
    return 0


def contact(target: Target, key: Key) -> Iterator[str]:
    """Do it for one host; yields what has been done. Raises RefusedError."""
    signer = _signer(target, key)
    host_key = _believed_host_key(target)
    added = _pin(target, [host_key])
    done = "is now" if added else "was already"
    yield f"host key {host_key.type} {host_key.fingerprint} {done} in {target.known_hosts}"
    with _opened(target, host_key) as transport:
        if _key_opens(transport, target, signer):
            yield from _more_host_keys(transport, target)
            yield f"{target.user} is let in by {key.type} {key.fingerprint}, as before"
            return
        _log_in(transport, target)
        yield from _more_host_keys(transport, target)
        script = INSTALL.format(words=shlex.quote(f"{key.type} {key.blob}"), line=shlex.quote(_line(key)))
        done = "is now" if _said(transport, target, script).strip() == "added" else "was already"
        yield f"public key {key.type} {key.fingerprint} {done} in ~{target.user}/.ssh/authorized_keys"
    # A new connection: only that proves what the next ssh will meet.
    with _opened(target, host_key) as transport:
        if not _key_opens(transport, target, signer):
            raise RefusedError([_not_let_in(target, key)])
    yield f"{target.user} is let in by the key, without a password"


def read_public_key(file: Path) -> Key:
    """Raises RefusedError for anything but a public key, first of all a private one."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RefusedError([_no_key(f"{file}: {error.strerror}")]) from error
    if "PRIVATE KEY-----" in text:
        raise RefusedError(
            [
                CONTACT_PRIVATE_KEY(
                    what=f"{file} is a private key",
                    expected="the public one, the only one that ever leaves this machine",
                    fix=f"--key {file}.pub; nothing was sent.",
                )
            ]
        )
    key = Key.parse(text)
    if key is None or len(text.strip().splitlines()) != 1:
        raise RefusedError([_no_key(f"{file} is no public key of OpenSSH")])
    return key


# --- the host's key


def _believed_host_key(target: Target) -> Key:
    """The host key that this machine knows already, or that a fingerprint vouches for."""
    known = _known(target)
    if known:
        shown = _shown_host_key(target, list(known) + [type_ for type_ in ALGORITHMS if type_ not in known])
        if known.get(shown.type) != shown.blob:
            raise RefusedError([_changed(target, shown, known)])
        if not target.fingerprint or target.fingerprint == shown.fingerprint:
            return shown
    elif not target.fingerprint:
        shown = _shown_host_key(target, list(ALGORITHMS))
        _ask(target, shown)
        return shown
    seen = []
    for type_ in ALGORITHMS:
        try:
            shown = _shown_host_key(target, [type_])
        except _NotOfferedError:
            continue
        if shown.fingerprint == target.fingerprint:
            return shown
        seen.append(f"{shown.type} {shown.fingerprint}")
    raise RefusedError([_mismatch(target, seen)])


def _shown_host_key(target: Target, types: Sequence[str]) -> Key:
    with _greeted(target, types) as transport:
        return _host_key(transport)


def _host_key(transport: Any) -> Key:
    shown = transport.get_remote_server_key()
    return Key(shown.get_name(), shown.get_base64())


def _ask(target: Target, shown: Key) -> None:
    if not sys.stdin.isatty():
        raise RefusedError([_unconfirmed(target, shown)])
    kind = shown.type.removeprefix("ssh-").partition("-")[0]
    print(
        f"{target.name} is not known yet. It shows {shown.type} {shown.fingerprint}\n"
        f"Compare, at the screen of the Spark:  ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    )
    if input("The same? (yes/no) ").strip() != "yes":
        raise RefusedError([_unconfirmed(target, shown)])


def _known(target: Target) -> dict[str, str]:
    """Type to blob of what known_hosts has of the host."""
    from paramiko import HostKeys  # type: ignore[import-untyped]  # noqa: PLC0415  0.4 s that other commands need not pay

    if not target.known_hosts.exists():
        return {}
    found = HostKeys(str(target.known_hosts)).lookup(target.name) or {}
    return {type_: key.get_base64() for type_, key in found.items() if key is not None}


def _pin(target: Target, keys: Sequence[Key]) -> int:
    """Append what known_hosts does not have yet; how many that were."""
    known = _known(target)
    fresh = [key for key in keys if key.type not in known]
    if fresh:
        file = target.known_hosts
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as out:
            out.write("\n" if unfinished else "")
            out.writelines(f"{target.name} {key.type} {key.blob}\n" for key in fresh)
    return len(fresh)


def _more_host_keys(transport: Any, target: Target) -> Iterator[str]:
    """The host's keys of other types, as the host itself has them on its disk."""
    # More than the key that was checked is a convenience: a host that keeps its keys elsewhere has no more of them.
    said = _said(transport, target, "cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null || true\n")
    found = [key for key in map(Key.parse, said.splitlines()) if key and key.type in ALGORITHMS]
    added = _pin(target, found)
    if added:
        yield f"{added} more of its host keys, read over this connection, in {target.known_hosts}"


# --- the connection


class _NotOfferedError(Exception):
    """The host has no host key of the types asked for."""


@contextmanager
def _greeted(target: Target, types: Sequence[str]) -> Iterator[Any]:
    """A connection on which nobody is logged in yet, with a host key of one of the types."""
    from paramiko import SSHException, Transport  # noqa: PLC0415
    from paramiko.ssh_exception import IncompatiblePeer  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        transport = Transport(socket.create_connection((target.host, target.port), timeout=TIMEOUT_S))
    except OSError as error:
        raise RefusedError([_unreachable(target, error.strerror or str(error) or type(error).__name__)]) from error
    try:
        transport.get_security_options().key_types = [name for type_ in types for name in ALGORITHMS[type_]]
        transport.start_client(timeout=TIMEOUT_S)
        yield transport
    except IncompatiblePeer as error:
        raise _NotOfferedError(str(error)) from error
    except (SSHException, OSError, EOFError) as error:
        raise RefusedError([_unreachable(target, str(error) or type(error).__name__)]) from error
    finally:
        transport.close()


@contextmanager
def _opened(target: Target, host_key: Key) -> Iterator[Any]:
    """A connection to the host that has the believed key."""
    try:
        with _greeted(target, [host_key.type]) as transport:
            shown = _host_key(transport)
            if shown != host_key:
                raise RefusedError([_changed(target, shown, {host_key.type: host_key.blob})])
            yield transport
    except _NotOfferedError as error:
        raise RefusedError([_unreachable(target, f"{host_key.type} no longer offered")]) from error


def _signer(target: Target, key: Key) -> Any:
    """What signs for the public key: the agent, or the private key beside it. It is asked for before any password."""
    from paramiko import Agent, PKey, SSHException  # noqa: PLC0415

    for found in Agent().get_keys():
        if found.get_base64() == key.blob:
            return found
    file = target.key_file.with_suffix("")
    try:
        found = PKey.from_path(file)
    except (OSError, TypeError, ValueError, SSHException) as error:
        locked = isinstance(error, (TypeError, ValueError)) or "assword" in str(error)
        seen = "is locked by a passphrase" if locked else getattr(error, "strerror", None) or str(error)
    else:
        if found.get_base64() == key.blob:
            return found
        seen = "belongs to another public key"
    raise RefusedError(
        [
            CONTACT_NO_SIGNER(
                what=f"nothing here can prove {target.key_file}: it is not in the agent, and {file} {seen}",
                expected="the private key in this machine's ssh-agent, or without a passphrase beside the public one",
                fix=f"ssh-add {file}.",
            )
        ]
    )


def _key_opens(transport: Any, target: Target, signer: Any) -> bool:
    from paramiko import AuthenticationException  # noqa: PLC0415

    try:
        # What is left to be proven, if a host wants more than a key.
        return not transport.auth_publickey(target.user, signer)
    except AuthenticationException:
        return False


def _log_in(transport: Any, target: Target) -> None:
    from paramiko import AuthenticationException, BadAuthenticationType  # noqa: PLC0415

    try:
        more = transport.auth_password(target.user, _password(target))
    except BadAuthenticationType as error:
        raise RefusedError([_no_password_login(target, error.allowed_types)]) from error
    except AuthenticationException as error:
        raise RefusedError([_wrong_password(target)]) from error
    if more:
        raise RefusedError([_no_password_login(target, more)])


def _password(target: Target) -> str:
    given = os.environ.get(PASSWORD_VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        raise RefusedError([_no_password(target)])
    return getpass.getpass(f"Password of {target.user} on {target.host}: ")


def _said(transport: Any, target: Target, script: str) -> str:
    """What the host's shell prints. The script goes in by its input, so whatever the login shell is, it is sh's."""
    channel = transport.open_session(timeout=TIMEOUT_S)
    channel.settimeout(TIMEOUT_S)
    channel.exec_command("exec sh -s")
    channel.sendall(script.encode())
    channel.shutdown_write()
    said, wrong = channel.makefile("r").read(), channel.makefile_stderr("r").read()
    status = channel.recv_exit_status()
    if status:
        raise RefusedError([_failed_there(target, status, wrong.decode() if isinstance(wrong, bytes) else wrong)])
    return said.decode() if isinstance(said, bytes) else str(said)


def _named(blob: bytes) -> str:
    """The type that a public key's own bytes begin with."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii")


def _line(key: Key) -> str:
    return f"{key.type} {key.blob} {key.comment}".strip()


# --- what is said


def _fingerprint_count(hosts: int, fingerprints: int) -> Refusal:
    return CONTACT_FINGERPRINTS(
        what=f"{fingerprints} --fingerprint for {hosts} hosts",
        expected="one for each host, in their order, or none",
        fix="give each host its own; or leave them out and compare when asked.",
    )


def _no_key(what: str) -> Refusal:
    return CONTACT_NO_KEY(
        what=what,
        expected="the public key of this machine",
        fix="--key FILE.pub; or make one: ssh-keygen -t ed25519.",
    )


def _unreachable(target: Target, said: str) -> Refusal:
    return CONTACT_UNREACHABLE(
        what=f"{target.host} port {target.port}: {said}",
        expected="an ssh server",
        fix=f"ping {target.host}; on the Spark: sudo systemctl enable --now ssh.",
    )


def _changed(target: Target, shown: Key, known: Mapping[str, str]) -> Refusal:
    has = ", ".join(f"{type_} {Key(type_, blob).fingerprint}" for type_, blob in known.items())
    return CONTACT_HOST_KEY_CHANGED(
        what=f"{target.name} shows {shown.type} {shown.fingerprint}, and {target.known_hosts} has {has}",
        expected="the host key that is known; somebody may stand between",
        fix=f"if the Spark was installed anew, ssh-keygen -R {shlex.quote(target.name)} -f {target.known_hosts}, and "
        "compare the new one at its screen.",
    )


def _mismatch(target: Target, seen: Sequence[str]) -> Refusal:
    return CONTACT_FINGERPRINT(
        what=f"{target.name} shows {', '.join(seen) or 'no host key of a known type'}",
        expected=target.fingerprint,
        fix="at the screen of the Spark: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub. If that is neither, do not "
        "go on over this network.",
    )


def _unconfirmed(target: Target, shown: Key) -> Refusal:
    return CONTACT_UNCONFIRMED(
        what=f"nobody has confirmed the host key of {target.name}, {shown.type} {shown.fingerprint}",
        expected="yes after comparing it, or its fingerprint given",
        fix=f"compare it at the screen of the Spark, then --fingerprint {shown.fingerprint}.",
    )


def _no_password(target: Target) -> Refusal:
    return CONTACT_NO_PASSWORD(
        what=f"no password for {target.user} on {target.host}, and no terminal to ask for it",
        expected=f"one in {PASSWORD_VARIABLE}",
        fix=f"run it in a terminal, or set {PASSWORD_VARIABLE} in this shell's environment.",
    )


def _wrong_password(target: Target) -> Refusal:
    return CONTACT_PASSWORD(
        what=f"{target.host} does not accept this password for {target.user}",
        expected="the password that the user has at the screen of the Spark",
        fix=f"try again; a Spark's user is the one made at its first start, which --user {target.user} may not be.",
    )


def _no_password_login(target: Target, allowed: Sequence[str]) -> Refusal:
    return CONTACT_NO_PASSWORD_LOGIN(
        what=f"{target.host} lets {target.user} in by {', '.join(allowed) or 'nothing'} and not by a password alone",
        expected="password login, for this once",
        fix="at the screen of the Spark, add the public key to ~/.ssh/authorized_keys.",
    )


def _failed_there(target: Target, status: int, said: str) -> Refusal:
    return CONTACT_INSTALL(
        what=f"{target.host} could not take the key: exit status {status}, {said.strip() or 'no output'}",
        expected=f"a home folder that {target.user} may write",
        fix=f"on the Spark, see that ~{target.user}/.ssh belongs to {target.user} and its disk is not full.",
    )


def _not_let_in(target: Target, key: Key) -> Refusal:
    return CONTACT_NOT_LET_IN(
        what=f"{target.host} has {key.fingerprint} in authorized_keys of {target.user} and does not let it in",
        expected="a login by the key",
        fix="on the Spark: chmod go-w ~ and sudo journalctl -u ssh -n 20, which tells why.",
    )
