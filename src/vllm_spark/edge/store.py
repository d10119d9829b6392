"""The folder of the site's authority on the controller, beside the inventory: ca.crt, ca.key (0600), and next.key while
an authority waits that follows the present one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.edge import authority, succession
from vllm_spark.edge.authority import KeyPair
from vllm_spark.edge.succession import Authority
from vllm_spark.node.state_file import replace_file

NO_AUTHORITY = register("edge-no-authority", runbook="edge-certificate")
HALF_AUTHORITY = register("edge-half-authority", runbook="edge-certificate")
BAD_FILES = register("edge-files", runbook="edge-certificate")
BAD_PASSPHRASE = register("edge-passphrase", runbook="edge-certificate")
STRANGE_NAME = register("edge-strange-name", runbook="edge-certificate")

CERTIFICATE, PRIVATE_KEY, NEXT_KEY = "ca.crt", "ca.key", "next.key"


def trusted(folder: Path) -> str:
    """Return the certificates that clients trust, empty without an authority. Raises RefusedError if one of the two
    files of a folder is missing."""
    files = {name: folder / name for name in (CERTIFICATE, PRIVATE_KEY)}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if len(missing) == 1:
        raise HALF_AUTHORITY.error(
            what=f"{missing[0]} is missing, and the other file of the authority is there",
            expected="both files, as the first deploy has written them",
            fix="restore it from your backup, or move the folder away and deploy: clients then need "
            "`vllm-spark trust` again.",
        )
    return "" if missing else files[CERTIFICATE].read_text(encoding="utf-8")


def read(folder: Path, passphrase: str = "") -> Authority | None:
    """Return the authority of a folder, or None. Raises RefusedError if a file of it is missing or cannot be read."""
    if not (certificates := trusted(folder)):
        return None
    keys = (_read_key(folder / name, passphrase) for name in (PRIVATE_KEY, NEXT_KEY) if (folder / name).is_file())
    return Authority(certificates, *keys)


def read_or_create(
    folder: Path, now: datetime, host_certificate: str, names: Sequence[str] = (), passphrase: str = ""
) -> Authority:
    """Return the authority of a folder as a deploy needs it (succession.kept), a new one if there is none. `names` are
    those of the inventory. Several hosts of a run ask at the same time.

    Raises RefusedError if a host has a certificate already: clients trust the authority of another controller.
    """
    with _locked(folder):
        found = read(folder, passphrase)
        if not found and host_certificate:
            raise RefusedError([_elsewhere(folder)])
        made = found or authority.new_authority(now, names)
        needed = succession.kept(found or Authority(made.certificate, made.private_key), names, now)
        plain = found and passphrase and "ENCRYPTED" not in (folder / PRIVATE_KEY).read_text(encoding="utf-8")
        if needed != found or plain:
            _write(folder, needed, passphrase)
        return needed


def _write(folder: Path, site: Authority, passphrase: str) -> None:
    """Write an authority. After any of the steps, the next deploy finds the key of each certificate that signs."""
    ignored = folder / ".gitignore"
    lines = ignored.read_text(encoding="utf-8").splitlines() if ignored.is_file() else []
    if more := [name for name in (PRIVATE_KEY, NEXT_KEY) if name not in lines]:
        replace_file(ignored, "".join(f"{line}\n" for line in [*lines, *more]))
    if site.next_key:
        replace_file(folder / NEXT_KEY, _protected(site.next_key, passphrase), 0o600)
    if not (folder / CERTIFICATE).is_file():
        replace_file(folder / PRIVATE_KEY, _protected(site.private_key, passphrase), 0o600)
    replace_file(folder / CERTIFICATE, site.certificate)
    replace_file(folder / PRIVATE_KEY, _protected(site.private_key, passphrase), 0o600)
    if not site.next_key:
        (folder / NEXT_KEY).unlink(missing_ok=True)


def _protected(key: str, passphrase: str) -> str:
    return authority.pem_of_key(authority.key_of(key), passphrase) if passphrase else key


def _read_key(file: Path, passphrase: str) -> str:
    """Return a key without its passphrase. Raises RefusedError if that is missing or another one."""
    text = file.read_text(encoding="utf-8")
    if "ENCRYPTED" not in text:
        return text
    try:
        return authority.pem_of_key(authority.key_of(text, passphrase))
    except (ValueError, TypeError) as error:
        why = "is not that of the key" if passphrase else "is not set"
        raise BAD_PASSPHRASE.error(
            what=f"{file} has a passphrase, and vllm_edge_authority_passphrase {why}",
            expected="the passphrase of the site's authority, which signs certificates here",
            fix="set vllm_edge_authority_passphrase in a vault file of the inventory; "
            f"`openssl pkey -in {file} -noout` asks for it and says whether it is the right one.",
        ) from error


def refuse_strangers(placed: str, names: Sequence[str]) -> None:
    """Raise RefusedError for names of a host that its clients' authority may not sign. `placed` is what the host has of
    the authority; clients have the same."""
    strangers = {name: None for one in succession.signers(placed) for name in authority.outside(one, names)}
    if strangers:
        raise STRANGE_NAME.error(
            what=f"clients with the present ca.crt refuse a certificate with {', '.join(strangers)}",
            expected="names that the site's authority may sign: private addresses, *.local, *.home.arpa, *.internal, "
            "*.lan, *.home, and what the inventory had before",
            fix=Fix(
                "ansible-playbook deploy.yml -e edge_new_authority=true",
                "The authority may sign it then, and every client needs `vllm-spark trust` again.",
            ),
        )


def read_files(certificate: str, private_key: str, names: list[str], now: datetime) -> KeyPair:
    """Return the owner's own certificate with its chain, and its key. Raises RefusedError."""
    try:
        texts = [Path(file).expanduser().read_text(encoding="utf-8") for file in (certificate, private_key)]
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError([_bad_files(f"a file of vllm_edge cannot be read: {error}")]) from error
    pair = KeyPair(*(text if text.endswith("\n") else f"{text}\n" for text in texts))
    if fault := authority.pair_fault(pair, names, now):
        raise RefusedError([_bad_files(f"{certificate}, {private_key}: {fault}")])
    return pair


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _elsewhere(folder: Path) -> Refusal:
    return NO_AUTHORITY(
        what=f"this Spark has a certificate, and {folder} has no authority",
        expected="the authority that clients trust; another controller has it",
        fix=f"copy its folder to {folder}; or set vllm_edge_new_authority=true for one run (-e), after which clients "
        "need `vllm-spark trust` again.",
    )


def _bad_files(what: str) -> Refusal:
    return BAD_FILES(
        what=what,
        expected="PEM files on this machine, with a name of this Spark and without a passphrase",
        fix="correct vllm_edge.certificate and vllm_edge.private_key, or set tls: own-ca.",
    )
