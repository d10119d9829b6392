"""First contact with a host by password: pin the host keys, install the public key and prove it.

A host key is trusted if a person compared its fingerprint or passed it. The other keys of the host are read over the
connection that the first key authenticates. The private key never leaves this machine.
"""

from __future__ import annotations

import argparse
import getpass
import shlex
import sys
from collections.abc import Iterator

from paramiko import Transport
from paramiko.ssh_exception import IncompatiblePeer

from vllm_spark.cli.contact import ssh, ssh_config
from vllm_spark.cli.contact.keys import ALGORITHMS, Key, add_known_keys, known_keys, read_public_key
from vllm_spark.cli.contact.ssh import Target
from vllm_spark.cli.contact.ssh_config import Destination
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.run_command import typed

FINGERPRINT_COUNT = register("contact-fingerprints", runbook="contact-host-key")
WRONG_FINGERPRINT = register("contact-fingerprint", runbook="contact-host-key")
UNCONFIRMED = register("contact-unconfirmed", runbook="contact-host-key")
KEY_REJECTED = register("contact-not-let-in", runbook="contact-key")

# A key in a comment does not count as installed. A last line without its end is completed first.
INSTALL = """set -eu
umask 077
cd
mkdir -p .ssh
chmod 700 .ssh
file=.ssh/authorized_keys
touch "$file"
chmod 600 "$file"
if grep -v '^[[:space:]]*#' "$file" | grep -qF -- {key}; then
  echo there
else
  [ -z "$(tail -c 1 "$file")" ] || echo >> "$file"
  printf '%s\\n' {line} >> "$file"
  echo added
fi
"""


# -k ignores a password that sudo accepted shortly before.
SUDO = "if sudo -k -n true 2>/dev/null; then echo free; else echo asks; fi\n"


def run(args: argparse.Namespace) -> int:
    """Contact every host. The password is requested once per host.

    A refusal of one host does not stop the others. Raises RefusedError with the refusals of all hosts.
    """
    if args.fingerprint and len(args.fingerprint) != len(args.hosts):
        raise FINGERPRINT_COUNT.error(
            what=f"{len(args.fingerprint)} --fingerprint for {len(args.hosts)} hosts",
            expected="one for each host, in their order, or none",
            fix="pass one --fingerprint per host, or none and compare at the prompt.",
        )
    key_file, known_hosts = args.key.expanduser(), args.known_hosts.expanduser()
    key = read_public_key(key_file)
    refusals: list[Refusal] = []
    for host, fingerprint in zip(args.hosts, args.fingerprint or [""] * len(args.hosts), strict=True):
        try:
            address, user, port = destination(host, args.user, args.port)
            if address != host.rpartition("@")[2]:
                print(f"{host}  is {user}@{address} port {port} in the configuration of ssh", flush=True)
            for line in contact(Target(address, port, user, key_file, known_hosts, fingerprint), key):
                print(f"{host}  ✓ {line}", flush=True)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return 0


def destination(name: str, user: str | None, port: int | None) -> Destination:
    """Return where a name, or USER@NAME, leads. An option of the command wins over the configuration of ssh."""
    own_user, _, host = name.rpartition("@")
    known = ssh_config.resolve(host) or Destination(host, getpass.getuser(), ssh.SSH_PORT)
    return Destination(known.host, own_user or user or known.user, port or known.port)


def contact(target: Target, key: Key) -> Iterator[str]:
    """Contact one host. Yields a line for each step that is done. Raises RefusedError."""
    # First, so that the password is not requested in vain.
    signer = ssh.load_signer(target, key)
    host_key = _trusted_host_key(target)
    added = add_known_keys(target.known_hosts, target.name, [host_key])
    yield f"host key {host_key} {'is now' if added else 'was already'} in {target.known_hosts}"
    with ssh.connected_to(target, host_key) as transport:
        if ssh.accepts_key(transport, target, signer):
            yield from _other_host_keys(transport, target)
            yield f"{target.host} accepts {key} for {target.user}, as before"
            yield _sudo(transport, target)
            return
        ssh.log_in(transport, target)
        yield from _other_host_keys(transport, target)
        script = INSTALL.format(key=shlex.quote(f"{key.type} {key.blob}"), line=shlex.quote(key.line))
        installed = ssh.run_script(transport, target, script).strip() == "added"
        yield f"public key {key} {'is now' if installed else 'was already'} in ~{target.user}/.ssh/authorized_keys"
    # Only a new connection proves what the next ssh will meet.
    with ssh.connected_to(target, host_key) as transport:
        if not ssh.accepts_key(transport, target, signer):
            raise KEY_REJECTED.error(
                what=f"{target.host} has {key.fingerprint} in authorized_keys of {target.user} and rejects it",
                expected="a login by the key",
                fix="on the Spark: `chmod go-w ~`, then `sudo journalctl -u ssh -n 20`, which shows the reason.",
            )
        yield f"{target.host} accepts the key for {target.user}, without a password"
        yield _sudo(transport, target)


def _trusted_host_key(target: Target) -> Key:
    """Return a host key that known_hosts has, that has the passed fingerprint, or that a person confirms."""
    known = known_keys(target.known_hosts, target.name)
    if known:
        types = [*known, *(type_ for type_ in ALGORITHMS if type_ not in known)]
        presented = ssh.presented_host_key(target, types)
        if known.get(presented.type) != presented.blob:
            raise ssh.host_key_changed(target, presented, known)
        if not target.fingerprint or target.fingerprint == presented.fingerprint:
            return presented
    elif not target.fingerprint:
        presented = ssh.presented_host_key(target, list(ALGORITHMS))
        _confirm(target, presented)
        return presented
    return _host_key_by_fingerprint(target)


def _host_key_by_fingerprint(target: Target) -> Key:
    others = []
    for type_ in ALGORITHMS:
        try:
            presented = ssh.presented_host_key(target, [type_])
        except IncompatiblePeer:
            continue
        if presented.fingerprint == target.fingerprint:
            return presented
        others.append(str(presented))
    raise WRONG_FINGERPRINT.error(
        what=f"{target.name} presents {', '.join(others) or 'no host key of a known type'}",
        expected=target.fingerprint,
        fix="at the screen of the Spark: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`. If it prints neither of "
        "them, do not continue over this network.",
    )


def _confirm(target: Target, presented: Key) -> None:
    """Ask a person to compare the fingerprint. Raises RefusedError without a terminal or without a yes."""
    refused = UNCONFIRMED.error(
        what=f"the host key of {target.name} is not confirmed: {presented}",
        expected="the answer yes after a comparison, or --fingerprint",
        fix=f"compare it at the screen of the Spark, then --fingerprint {presented.fingerprint}.",
    )
    if not sys.stdin.isatty():
        raise refused
    kind = presented.type.removeprefix("ssh-").partition("-")[0]
    print(
        f"{target.name} is not in known_hosts. It presents {presented}\n"
        f"Compare at the screen of the Spark:  ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    )
    if input("Are they equal? (yes/no) ").strip() != "yes":
        raise refused


def _sudo(transport: Transport, target: Target) -> str:
    """Return whether sudo of this user asks for a password, which the user of a Spark's first start has."""
    if ssh.run_script(transport, target, SUDO).strip() == "free":
        return f"sudo of {target.user} needs no password"
    return typed(f"sudo of {target.user} asks for a password: add -K to every verb (docs/runbooks/sudo-password.md)")


def _other_host_keys(transport: Transport, target: Target) -> Iterator[str]:
    """Pin the host's keys of other types, as they are in its /etc/ssh."""
    # These keys are a convenience. A host that stores its keys elsewhere adds none.
    stdout = ssh.run_script(transport, target, "cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null || true\n")
    keys = [key for key in map(Key.parse, stdout.splitlines()) if key and key.type in ALGORITHMS]
    added = add_known_keys(target.known_hosts, target.name, keys)
    if added:
        yield f"{added} more of its host keys, read over this connection, in {target.known_hosts}"
