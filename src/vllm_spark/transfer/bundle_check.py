"""Seal a bundle with a signed list of its files, and verify it before anything of it is used. Standard library only.

    python3 -m vllm_spark.transfer.bundle_check DIR [--signers FILE] [--unsigned]

The command is for `make setup BUNDLE=DIR`: it verifies the wheels before they are installed.
"""

from __future__ import annotations

import argparse
import getpass
import json
import socket
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.node.state_file import replace_file
from vllm_spark.transfer import bundle_files, bundle_key, bundle_signature
from vllm_spark.transfer.bundle_files import CONTENTS, LIST, SIGNATURE, FileList, Log
from vllm_spark.transfer.bundle_key import SigningKey
from vllm_spark.transfer.bundle_signature import Verifier

UNSIGNED = register("bundle-unsigned", runbook="bundle-signature")
OTHER_LIST = register("bundle-list-other", runbook="bundle-signature")

MAX_SIGNATURE_BYTES = 64 << 10
DEFAULT_SIGNERS = Path("inventories/site/allowed_signers")


@dataclass(frozen=True, slots=True)
class Trust:
    """The operator's choices: the file of accepted signers, the key that signs (empty: the operator's own), and whether
    a bundle without a signature is written and accepted."""

    signers: Path
    key: str = ""
    unsigned: bool = False

    def signing_key(self, log: Log) -> SigningKey | None:
        """Return the key for a new bundle, after a signature of nothing with it. Raises RefusedError.

        The trial comes before the downloads, which may take hours.
        """
        if self.unsigned:
            log("the bundle will not be signed (bundle_unsigned): its reader must accept that with the same option")
            return None
        key = bundle_key.find(self.key, self.signers, log)
        signature = bundle_signature.parse(key.sign(b""))
        for warning in bundle_key.warnings(signature, self.signers, f"{getpass.getuser()}@{socket.gethostname()}"):
            log(warning)
        return key


def seal(folder: Path, contents: Mapping[str, Any], key: SigningKey | None, log: Log) -> None:
    """Write the list of all files, its signature, and the contents last. Raises RefusedError."""
    bundle_id = uuid.uuid4().hex
    text = json.dumps({**contents, "id": bundle_id}, indent=1, sort_keys=True) + "\n"
    new = folder / f"{CONTENTS}.new"
    (folder / CONTENTS).unlink(missing_ok=True)
    replace_file(new, text)
    log("computing the sha256 of every file")
    listed = bundle_files.list_files(folder, bundle_id, log)
    files = {CONTENTS if path == new.name else path: sha256 for path, sha256 in listed.files.items()}
    content = FileList(bundle_id, files).text()
    signature = key.sign(content.encode()) if key else ""
    replace_file(folder / LIST, content)
    (folder / SIGNATURE).unlink(missing_ok=True)
    if signature:
        replace_file(folder / SIGNATURE, signature)
    new.replace(folder / CONTENTS)


def verify(folder: Path, trust: Trust, log: Log) -> FileList:
    """Return the verified list of a bundle: its signer is accepted and every file is as listed. Raises RefusedError."""
    if not (folder / LIST).exists() and not (folder / SIGNATURE).exists():
        raise bundle_files.list_error(folder, f"{folder / LIST} does not exist")
    log(f"{folder} is signed by {signer}" if (signer := _signer(folder, trust)) else f"{folder} is not signed")
    listed = bundle_files.parse(folder)
    if (bundle_id := _bundle_id(folder)) != listed.bundle_id:
        raise OTHER_LIST.error(
            what=f"{folder / LIST} is the list of bundle {listed.bundle_id}, {CONTENTS} is of bundle {bundle_id}",
            expected="the list of this bundle",
            fix=bundle_signature.COPY_AGAIN,
        )
    if refusals := listed.differences(folder, log):
        raise RefusedError(refusals)
    return listed


def _signer(folder: Path, trust: Trust) -> str:
    """Return the signer of the list; empty for an accepted bundle without a signature. Raises RefusedError."""
    file = folder / SIGNATURE
    if file.exists():
        with file.open("rb") as opened:
            armor = opened.read(MAX_SIGNATURE_BYTES).decode(errors="replace")
        content = (folder / LIST).read_bytes() if (folder / LIST).exists() else b""
        return Verifier(folder / LIST, content, trust.signers).verify(armor)
    if trust.unsigned:
        return ""
    raise UNSIGNED.error(
        what=f"the bundle {folder} has no signature: {file} does not exist",
        expected=f"a signature of one of {trust.signers}",
        fix=f"copy {SIGNATURE} too, or remove {CONTENTS} where the bundle was written and run the same command there, "
        "which signs it. To load it unsigned: -e bundle_unsigned=true.",
    )


def _bundle_id(folder: Path) -> str:
    try:
        return str(json.loads((folder / CONTENTS).read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise bundle_files.list_error(folder, f"{folder / CONTENTS}: {type(error).__name__}: {error}") from error


def main(words: list[str] | None = None) -> int:
    """Verify a bundle. Returns the exit status: 0, or 1 with the refusals on stderr."""
    parser = argparse.ArgumentParser(description="Verify the signature and every file of a bundle.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--signers", type=Path, default=DEFAULT_SIGNERS, help=f"default: {DEFAULT_SIGNERS}")
    parser.add_argument("--unsigned", action="store_true", help="accept a bundle without a signature")
    options = parser.parse_args(words)
    try:
        listed = verify(options.folder.resolve(), Trust(options.signers, unsigned=options.unsigned), print)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(listed.files)} files are as listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
