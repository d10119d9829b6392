"""The systemd timer that ends a trial on this host. It is not part of the connection, so it acts even if the host can
no longer be reached. Standard library alone."""

from __future__ import annotations

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import must, run


def arm(unit: str, guard_s: int, *argv: str) -> None:
    """Start the timer, in place of an older one of this name. It runs `argv` after `guard_s` seconds. Raises
    CommandError if it does not start."""
    disarm(unit)
    run("systemctl", "reset-failed", f"{unit}.service")
    when = ("--on-active", str(guard_s), "--timer-property=AccuracySec=1s")
    must("systemd-run", "--quiet", "--collect", "--unit", unit, *when, *argv)


def disarm(unit: str) -> None:
    """Stop the timer if it runs."""
    run("systemctl", "stop", f"{unit}.timer")
