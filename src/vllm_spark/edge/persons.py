"""Keys of persons: how they are drawn, hashed and named. Only hashes reach a host."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.types import EdgeFacts
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.node import edge_key

BAD_NAME = register("edge-key-name", runbook="edge-key")

# Names of the map and of the log, of at most config.MAX_USER characters.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PREFIX = "sk-spark-"
KEY_BYTES = 32
# The person of the key that a first deploy makes.
OWNER = "owner"
# Digits of a hash by which a person tells two keys apart.
SHOWN_DIGITS = 8


def new_key() -> str:
    """Return a new key with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: str) -> str:
    """Return what a host has of a key: the SHA-256 in hex, as haproxy.cfg computes it."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SiteKeys:
    """The keys of the other hosts of a site, or of the head of a worker, for a host without keys. `hashes`: SHA-256 ->
    entry (node/edge_key.py). `sources`: the hosts that have them; `unread`: hosts of the site that the
    run has not read."""

    hashes: Mapping[str, str]
    sources: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def persons(self) -> list[str]:
        return edge_key.persons(dict(self.hashes))


def head_of(intent: HostIntent) -> str:
    """Return the head of a worker whose edge belongs to no site; empty for another host. Clients ask the head, so a key
    that is printed for the worker would be tried there."""
    rank, edge = intent.rank, intent.edge
    return rank.deployment.hosts[0] if rank and rank.rank and not (edge and edge.joins) else ""


def of_site(edge: Edge, head: str, found: Mapping[str, EdgeFacts]) -> SiteKeys:
    """Return the keys that a host without keys takes over. Each of them opens the models of the whole site already, on
    the host that has it, or the model of which this host is a worker. A host that is neither in a site nor a worker
    takes over none. `head` is the result of `head_of`. `found`: host -> its edge, of the hosts that
    the run has read."""
    site = edge.settings.site if edge.joins else ()
    others = [head] if head else [host for host in site if host != edge.host]
    read = {host: found[host]["key_hashes"] for host in others if host in found}
    hashes: dict[str, str] = {}
    for keys in read.values():
        for key, entry in keys.items():
            known = edge_key.parse(hashes.get(key, entry))
            # The right to start models is one of the Spark on which it was given. A key that has it on one host alone
            # does not get it here.
            may_switch = known.may_switch and edge_key.parse(entry).may_switch and not head
            hashes[key] = str(replace(known, may_switch=may_switch))
    sources = tuple(host for host, keys in read.items() if keys)
    return SiteKeys(hashes, sources, tuple(host for host in others if host not in read))


def different(keys: Mapping[str, Mapping[str, Collection[str]]]) -> list[str]:
    """Return a line for each person whose keys are not the same on all hosts that know the person.

    `keys`: host -> person -> first digits of the hashes."""
    lines = []
    for name in sorted({name for known in keys.values() for name in known}):
        found = {host: ", ".join(sorted(known[name])) for host, known in keys.items() if name in known}
        if len(set(found.values())) > 1:
            places = ", ".join(f"{digits} on {host}" for host, digits in found.items())
            number = len({digits for known in keys.values() for digits in known.get(name, ())})
            one = f"Fix: vllm-spark key add {name}. It gives one key for all."
            lines.append(f"{name} has {number} different keys: {places}. {one}")
    return lines


def shown(hashes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return person -> the first digits of each key. `hashes`: SHA-256 -> entry."""
    found: dict[str, list[str]] = {}
    for key, value in hashes.items():
        found.setdefault(edge_key.parse(value).person, []).append(key[:SHOWN_DIGITS])
    return found


def name_refusal(name: str) -> Refusal | None:
    """Return the refusal of a person's name, or None."""
    if NAME.fullmatch(name):
        return None
    return BAD_NAME(
        what=f"key of {name!r}",
        expected="a name of at most 64 letters, digits and . _ -, because the edge's log contains it",
        fix=Fix("vllm-spark key add NAME", "NAME is such a name."),
    )
