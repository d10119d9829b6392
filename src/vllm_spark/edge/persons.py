"""Keys of persons: how they are drawn, hashed and named. Only hashes reach a host."""

from __future__ import annotations

import hashlib
import re
import secrets

from vllm_spark.core.refusal import Refusal, register

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


def name_refusal(name: str) -> Refusal | None:
    """Return the refusal of a person's name, or None."""
    if NAME.fullmatch(name):
        return None
    return BAD_NAME(
        what=f"key of {name!r}",
        expected="a name of at most 64 letters, digits and . _ -, because the edge's log contains it",
        fix="vllm-spark key add NAME with such a name.",
    )
