"""`vllm-spark trust`: the certificate of the site's authority, for clients."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.cli import inventory_values, playbook
from vllm_spark.core import documents, paths
from vllm_spark.core.refusal import register
from vllm_spark.edge import authority, store, succession

NOTHING_TO_TRUST = register("edge-nothing-to-trust", runbook="edge-certificate")

# The role has the template of the folder.
DEFAULTS, FOLDER = paths.ROOT / "roles" / "vllm_edge" / "defaults" / "main.yml", "vllm_edge_folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", nargs="?", type=Path, help="where to; default: standard output")
    playbook.add_arguments(parser, only=("-i",))
    parser.add_argument(
        "--authority", type=Path, metavar="DIR", help="default: vllm_edge_authority of the inventory, or edge beside it"
    )


def run(args: argparse.Namespace) -> int:
    """Write the certificate, and say on standard error how clients use it. Raises RefusedError without an authority."""
    folder = args.authority or folder_of(args.options)
    found = store.trusted(folder)
    if not found:
        raise NOTHING_TO_TRUST.error(
            what=f"{folder} has no authority",
            expected="the folder beside the inventory, which a deploy with vllm_edge: {open: false} makes",
            fix="name it with --authority DIR, or deploy first.",
        )
    if args.file:
        args.file.write_text(found, encoding="utf-8")
    else:
        sys.stdout.write(found)
    place = args.file or "FILE"
    lines = [
        f"SHA-256 {authority.fingerprint(one)}, valid until {one.not_valid_after_utc:%Y-%m-%d}"
        for one in authority.certificates(found)
    ]
    if at := succession.awaited(found):
        lines.append(f"The second one signs from {at:%Y-%m-%d} on: by then every client needs this file.")
    lines.append(f"curl --cacert {place}; Python and Node: SSL_CERT_FILE={place}, NODE_EXTRA_CA_CERTS={place}")
    print("\n".join(lines), file=sys.stderr)
    return 0


def folder_of(options: Sequence[str]) -> Path:
    """Return the folder of the authority that the inventory names. `options` are Ansible's. Raises RefusedError for an
    inventory without a Spark, and SystemExit with Ansible's words for one that it cannot read."""
    template = {FOLDER: documents.read_yaml(DEFAULTS)[FOLDER]}
    values = inventory_values.of_sparks("trust", template, options)
    for each in values.values():
        return Path(each[FOLDER])
    raise NOTHING_TO_TRUST.error(
        what="the inventory does not say where the authority is",
        expected="an inventory with a Spark in the group sparks",
        fix="name the inventory with -i, or the folder with --authority DIR.",
    )
