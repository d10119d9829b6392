"""`vllm-spark sbom`: what a site runs, as a CycloneDX document."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.cli import playbook
from vllm_spark.core.refusal import register

NOT_WRITTEN = register("sbom-not-written", runbook="inventory-refused")

DEFAULT_FILE = Path("sbom.cdx.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, help=f"default: {DEFAULT_FILE}")
    playbook.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the playbook, which reads the inventory. Returns its status. Raises RefusedError if it wrote nothing."""
    file = args.file.absolute()
    before = _written(file)
    status = playbook.run(playbook.command("sbom", [*args.options, "-e", f"sbom_file={file}"]))
    if status == 0 and not {*playbook.CHECK} & {*args.options} and _written(file) == before:
        raise NOT_WRITTEN.error(
            what=f"{file} was not written: the inventory has no host of the group sparks within the limit",
            expected="an inventory with the site's Sparks",
            fix="name it with -i INVENTORY, or leave out -l.",
        )
    return status


def _written(file: Path) -> int:
    """Return the time of the last change in ns, 0 for no file."""
    return file.stat().st_mtime_ns if file.exists() else 0
