"""What an engine's version means."""

from __future__ import annotations


def release(version: str) -> tuple[int, int]:
    """(0, 20) of 0.20.2rc1.dev49+g9b4e83934."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
