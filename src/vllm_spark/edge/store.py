"""The folder of the site's authority on the controller, beside the inventory: ca.crt and ca.key (0600)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.edge import authority
from vllm_spark.edge.authority import KeyPair
from vllm_spark.node.state_file import replace_file

NO_AUTHORITY = register("edge-no-authority", runbook="edge-certificate")
HALF_AUTHORITY = register("edge-half-authority", runbook="edge-certificate")
BAD_FILES = register("edge-files", runbook="edge-certificate")

CERTIFICATE, PRIVATE_KEY = "ca.crt", "ca.key"


def read(folder: Path) -> KeyPair | None:
    """Return the authority of a folder, or None. Raises RefusedError if one of its two files is missing."""
    files = {name: folder / name for name in (CERTIFICATE, PRIVATE_KEY)}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if len(missing) == 1:
        raise HALF_AUTHORITY.error(
            what=f"{missing[0]} is missing, and the other file of the authority is there",
            expected="both files, as the first deploy has written them",
            fix="restore it from your backup, or move the folder away and deploy: clients then need "
            "vllm-spark trust again.",
        )
    if missing:
        return None
    return KeyPair(*(files[name].read_text(encoding="utf-8") for name in (CERTIFICATE, PRIVATE_KEY)))


def read_or_create(folder: Path, now: datetime, host_certificate: str) -> KeyPair:
    """Return the authority of a folder, a new one if there is none. Several hosts of a run ask at the same time.

    Raises RefusedError if a host has a certificate already: clients trust the authority of another controller.
    """
    with _locked(folder):
        if found := read(folder):
            return found
        if host_certificate:
            raise RefusedError([_elsewhere(folder)])
        made = authority.new_authority(now)
        replace_file(folder / ".gitignore", f"{PRIVATE_KEY}\n")
        replace_file(folder / PRIVATE_KEY, made.private_key, 0o600)
        replace_file(folder / CERTIFICATE, made.certificate)
        return made


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
