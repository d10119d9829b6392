"""What systemd says about units of this host. Standard library alone."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import run


def unit_properties(unit: str, names: Iterable[str]) -> dict[str, str]:
    """Return properties of one unit by name; empty if systemd does not answer."""
    return next(iter(properties_of([unit], names)), {})


def properties_of(units: Iterable[str], names: Iterable[str]) -> list[dict[str, str]]:
    """Return the same properties of several units, in the order of the units."""
    output = run("systemctl", "show", "--property", ",".join(names), *units).stdout.strip()
    blocks = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in output.split("\n\n")]
    return [block for block in blocks if block]
