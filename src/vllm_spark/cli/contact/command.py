"""`vllm-spark contact`: the command line. first_contact.py does the work."""

from __future__ import annotations

import argparse
from pathlib import Path

HOST = "a name, an address, or an alias of ~/.ssh/config"
KEY_FILE, KNOWN_HOSTS = Path("~/.ssh/id_ed25519.pub"), Path("~/.ssh/known_hosts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("hosts", nargs="+", metavar="[USER@]HOST", help=HOST)
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a first contact."""
    parser.add_argument("--user", help="the user of the Spark's first start; default: that of ~/.ssh/config")
    parser.add_argument("--port", type=int, help="default: that of ~/.ssh/config, or 22")
    parser.add_argument("--key", type=Path, default=KEY_FILE, help="the public key to install")
    parser.add_argument("--known-hosts", type=Path, default=KNOWN_HOSTS)
    parser.add_argument(
        "--fingerprint",
        action="append",
        default=[],
        metavar="SHA256:…",
        help="fingerprint of a host key, instead of the prompt; once per HOST, in their order",
    )


def run(args: argparse.Namespace) -> int:
    """Contact every host. Raises RefusedError with the refusals of all hosts."""
    from vllm_spark.cli.contact import first_contact  # noqa: PLC0415  paramiko takes 0.4 s, which only this needs

    return first_contact.run(args)
