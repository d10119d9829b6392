"""A file that the toolkit writes on a host, and the comparison with the one that is there. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """A file of the toolkit on a host. `syntax` names the shell that must accept it before it is installed."""

    path: str
    content: str
    mode: str = "0644"
    syntax: str = ""

    def differs(self, present: Mapping[str, Sequence[str]]) -> bool:
        """Return True if the host has another content or mode, or no such file. `present`: path -> [sha256, mode]."""
        planned = [hashlib.sha256(self.content.encode()).hexdigest(), self.mode]
        return list(present.get(self.path, ())) != planned
