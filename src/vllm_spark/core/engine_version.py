"""Versions of the engine."""

from __future__ import annotations

import re


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a version, e.g. (0, 20) for 0.20.2rc1.dev49+g9b4e83934."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, e.g. (0, 20, 2) for 0.20.2rc1.dev49+g9b4e83934."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
