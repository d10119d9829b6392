"""A lease: memory of a Spark that another program has until a time. The deployments that it names stay down meanwhile.

/var/lib/vllm-spark/lease.json has it, so that a boot keeps it. A Spark has one: its own, or that of another Spark whose
pairs have ranks here. Its end is that of the file: lend.py brings the deployments back when the memory is free again. A
file that is no lease counts as none. Standard library alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.node import state_file
from vllm_spark.node.deployment_state import LEASE_OVER, Places, clean, json_object, number, text

FILE = "lease.json"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease.

    - `spark`: whose memory is lent; `gib`: how much of it; `by`: who has lent it
    - `until`: its end in epoch seconds
    - `lent`: the deployments that stay down on this Spark, in the order in which they come back
    """

    spark: str
    gib: float
    until: float
    by: str
    lent: tuple[str, ...]

    @property
    def why(self) -> str:
        """Why a deployment stays down, as its state has it."""
        return f"until {when(self.until)}: {self.gib:g} GiB of {self.spark}, by {self.by}"

    def waits(self, needed: int, holder: str) -> str:
        """Return why a deployment stays down after the end. `needed`: the bytes that it waits for."""
        held = f"; {holder}" if holder else ""
        return f"{LEASE_OVER} ({when(self.until)}), and it waits for {needed / GIB:.0f} GiB of {self.spark}{held}"

    def text(self) -> str:
        """Return it as `parsed` reads it."""
        return json.dumps(asdict(self)) + "\n"


def when(until: float) -> str:
    """Return a time as the clock of this machine shows it."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(until))


def file(places: Places) -> str:
    """Return the path of the file."""
    return os.path.join(os.path.dirname(places.histories), FILE)


def read(places: Places) -> Lease | None:
    """Return the lease of this Spark, None without one."""
    return parsed(json_object(text(file(places))))


def parsed(document: Mapping[str, Any]) -> Lease | None:
    """Return the lease in a JSON object, None if it is no lease in every part."""
    if set(document) != set(Lease.__dataclass_fields__):
        return None
    spark, by, lent = document["spark"], document["by"], document["lent"]
    gib, until = number(document["gib"]), number(document["until"])
    words = [spark, by, *(lent if isinstance(lent, list) else [None])]
    if (
        gib is None
        or until is None
        or not all(isinstance(word, str) and word and word == clean(word) for word in words)
    ):
        return None
    return Lease(spark, gib, until, by, tuple(lent))


def write(lease: Lease, places: Places) -> None:
    """Replace the lease of this Spark. Raises OSError."""
    state_file.replace_file(file(places), lease.text())


def of(name: str, places: Places) -> Lease | None:
    """Return the lease by which a deployment stays down, None if it may start. One whose time is over still counts,
    until lend.py has ended it: the memory may not be free yet."""
    lease = read(places)
    return lease if lease and name in lease.lent else None
