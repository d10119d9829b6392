"""Public keys of hosts and of persons, and the known_hosts file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paramiko import HostKeys, SSHException
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from vllm_spark.core.refusal import RefusedError, register

PRIVATE_KEY = register("contact-private-key", runbook="contact-key")
NO_KEY = register("contact-no-key", runbook="contact-key")

# Key types of known_hosts in order of preference, and the signature algorithms of each.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of a host or of a person."""

    type: str
    blob: str
    comment: str = ""

    @classmethod
    def parse(cls, line: str) -> Key | None:
        """Parse one line of a .pub file. Returns None if it is not a public key."""
        fields = line.split(maxsplit=2)
        with suppress(ValueError):
            if len(fields) > 1 and _encoded_type(base64.b64decode(fields[1], validate=True)) == fields[0]:
                return cls(fields[0], fields[1], fields[2].strip() if len(fields[2:]) else "")
        return None

    @property
    def fingerprint(self) -> str:
        """The fingerprint in the form of `ssh-keygen -l`."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def line(self) -> str:
        """The line of authorized_keys."""
        return f"{self.type} {self.blob} {self.comment}".strip()

    def __str__(self) -> str:
        return f"{self.type} {self.fingerprint}"


def _encoded_type(blob: bytes) -> str:
    """Return the type that the key's own bytes start with."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii")


def read_public_key(file: Path) -> Key:
    """Read a .pub file. Raises RefusedError if it is not one public key, with an own text for a private key."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _no_key(f"{file}: {error.strerror}") from error
    if "PRIVATE KEY-----" in text:
        raise PRIVATE_KEY.error(
            what=f"{file} is a private key",
            expected="a public key, the only one that ever leaves this machine",
            fix=f"--key {file}.pub; nothing was sent.",
        )
    key = Key.parse(text)
    if key is None or len(text.strip().splitlines()) != 1:
        raise _no_key(f"{file} is not a public key of OpenSSH")
    return key


def _no_key(what: str) -> RefusedError:
    return NO_KEY.error(
        what=what,
        expected="the public key of this machine",
        fix="--key FILE.pub; or create one: `ssh-keygen -t ed25519`.",
    )


def known_keys(file: Path, name: str) -> dict[str, str]:
    """Return type -> blob of the host keys that a known_hosts file has for a name.

    A line that paramiko cannot read is left out. So is a line with a marker (@cert-authority, @revoked).
    """
    known: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        entries = HostKeys()
        with suppress(SSHException, InvalidHostKey):
            entry = None if line.startswith(("@", "#")) else HostKeyEntry.from_line(line.strip())
            if entry is not None and entry.key is not None:
                for host in entry.hostnames or []:
                    entries.add(host, entry.key.get_name(), entry.key)
        known.update(
            {type_: key.get_base64() for type_, key in (entries.lookup(name) or {}).items() if type_ not in known}
        )
    return known


def add_known_keys(file: Path, name: str, keys: Sequence[Key]) -> int:
    """Append the host keys whose type known_hosts does not have yet. Returns their number."""
    known = known_keys(file, name)
    missing = [key for key in keys if key.type not in known]
    if missing:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as out:
            out.write("\n" if unfinished else "")
            out.writelines(f"{name} {key.type} {key.blob}\n" for key in missing)
    return len(missing)
