"""Progress of a pull from the events of Docker's stream. Pure.

Both stores name a layer by the first 12 digits of its digest. overlay2 reports how far it unpacks a layer in packed
bytes. The containerd store reports seconds with their unit, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ID_DIGITS = 12
ARRIVED = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}


def layer_id(digest: str) -> str:
    """Return the name of a layer in an event."""
    return digest.removeprefix("sha256:")[:ID_DIGITS]


@dataclass(slots=True)
class LayerProgress:
    """Layers of an image: packed bytes by layer id, bytes that have arrived, and bytes that are unpacked."""

    sizes: dict[str, int]
    arrived: dict[str, int] = field(default_factory=dict)
    unpacked: dict[str, int] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event. Events that do not name a layer of the image change nothing."""
        layer, status = str(event.get("id", "")), event.get("status")
        if layer not in self.sizes:
            return
        size, detail = self.sizes[layer], event.get("progressDetail") or {}
        if status == "Already exists":
            del self.sizes[layer]
            self.arrived.pop(layer, None)
        elif status == "Downloading":
            self.arrived[layer] = min(int(detail.get("current") or 0), size)
        elif status in ARRIVED:
            self.arrived[layer] = size
        if status == "Extracting" and "units" not in detail:
            self.unpacked[layer] = min(int(detail.get("current") or 0), size)
        elif status == "Pull complete":
            self.unpacked[layer] = size

    @property
    def phase(self) -> str:
        return "unpacking" if self.sizes and self._sum(self.arrived) >= sum(self.sizes.values()) else "pulling"

    @property
    def total(self) -> int:
        """The bytes of this phase; 0 while a store does not report how far it unpacks."""
        return 0 if self.phase == "unpacking" and not self.unpacked else sum(self.sizes.values())

    @property
    def done(self) -> int:
        return self._sum(self.arrived if self.phase == "pulling" else self.unpacked)

    def _sum(self, amounts: Mapping[str, int]) -> int:
        return sum(amounts.get(layer, 0) for layer in self.sizes)
