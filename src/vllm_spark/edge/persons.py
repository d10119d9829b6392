"""Keys of persons: how they are drawn, hashed and named. Only hashes reach a host."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.types import Facts
from vllm_spark.inventory.front import EdgeOwner

BAD_NAME = register("edge-key-name", runbook="edge-key")

# Names of the map and of the log, of at most config.MAX_USER characters.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PREFIX = "sk-spark-"
KEY_BYTES = 32
# What follows a person in the map, after a slash, if a request of this key may start a model. No name has a slash.
MAY_SWITCH = "switch"
# The person of the key that a first deploy makes.
OWNER = "owner"


def new_key() -> str:
    """Return a new key with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: str) -> str:
    """Return what a host has of a key: the SHA-256 in hex, as haproxy.cfg computes it."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SiteKeys:
    """The keys of the other hosts of a site, for a host without keys. `hashes`: SHA-256 -> person, with the right to
    start models. `sources`: the hosts that have them; `unread`: hosts of the site that the run has not read."""

    hashes: Mapping[str, str]
    sources: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def persons(self) -> list[str]:
        return sorted({value.removesuffix(f"/{MAY_SWITCH}") for value in self.hashes.values()})


def of_site(owner: EdgeOwner, facts: Mapping[str, Facts]) -> SiteKeys:
    """Return the keys that a host without keys takes over. Each of them opens the models of the whole site already, on
    the host that has it. Without a site there are none. `facts` are those of the hosts that the run has read."""
    others = [host for host in owner.edge.site if host != owner.host] if owner.edge.joins(owner.host) else []
    read = {host: facts[host]["edge"]["key_hashes"] for host in others if facts.get(host, {}).get("edge")}
    hashes: dict[str, str] = {}
    for keys in read.values():
        for key, value in keys.items():
            # A key that may start models on one host alone does not get that right here: a name without it is shorter.
            hashes[key] = min(hashes.get(key, value), value)
    sources = tuple(host for host, keys in read.items() if keys)
    return SiteKeys(hashes, sources, tuple(host for host in others if host not in read))


def name_refusal(name: str) -> Refusal | None:
    """Return the refusal of a person's name, or None."""
    if NAME.fullmatch(name):
        return None
    return BAD_NAME(
        what=f"key of {name!r}",
        expected="a name of at most 64 letters, digits and . _ -, because the edge's log contains it",
        fix=Fix("vllm-spark key add NAME", "NAME is such a name."),
    )
