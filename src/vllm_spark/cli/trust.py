"""`vllm-spark trust`: the certificate of the site's authority, for clients."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_spark.core.refusal import register
from vllm_spark.edge import authority, store

NOTHING_TO_TRUST = register("edge-nothing-to-trust", runbook="edge-certificate")

DEFAULT_FOLDER = Path("inventories/site/edge")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("trust", help="write the certificate that clients of the edge trust")
    parser.add_argument("file", nargs="?", type=Path, help="where to; default: standard output")
    parser.add_argument(
        "--authority", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help=f"default: {DEFAULT_FOLDER}"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the certificate, and say on standard error how clients use it. Raises RefusedError without an authority."""
    found = store.read(args.authority)
    if found is None:
        raise NOTHING_TO_TRUST.error(
            what=f"{args.authority} has no authority",
            expected="the folder beside the inventory, which a deploy with vllm_edge: {open: false} makes",
            fix="name it with --authority DIR, or deploy first.",
        )
    ends = authority.ends_at(found.certificate)
    if args.file:
        args.file.write_text(found.certificate, encoding="utf-8")
    else:
        sys.stdout.write(found.certificate)
    place = args.file or "FILE"
    print(
        f"SHA-256 {authority.fingerprint(found.certificate)}, valid until {ends:%Y-%m-%d}\n"
        f"curl --cacert {place}; Python and Node: SSL_CERT_FILE={place}, NODE_EXTRA_CA_CERTS={place}",
        file=sys.stderr,
    )
    return 0
