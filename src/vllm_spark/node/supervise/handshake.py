"""The proof of two supervisors that they have the key of their deployment, and the keys that follow from it.

    head    vllm-spark-link 1 NONCE_OF_HEAD
    worker  vllm-spark-link 1 NONCE_OF_WORKER PROOF_OF_WORKER
    head    vllm-spark-link 1 PROOF_OF_HEAD

A proof is an HMAC-SHA256 of the key over role, deployment and both nonces. The nonces prevent a replay, the role
prevents a reflection. Neither side sends anything else before it has seen the other's proof. Every later line has an
HMAC of its own (link.py), with a key that follows from the nonces, for one direction.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import re
import secrets
from pathlib import Path

from vllm_spark.node.supervise.rank import Rank

KEY = re.compile(r"[0-9a-f]{64}\n?")
HELLO = b"vllm-spark-link 1"
WORDS = re.compile(rb"vllm-spark-link 1((?: [0-9a-f]{64})+)\n")
ROLES = ("head", "worker")


class LostError(Exception):
    """Raised if the other rank is gone. Its text says how that was detected."""


class UnprovenError(LostError):
    """Raised if the other side does not prove the key of the deployment."""


class NoKeyError(UnprovenError):
    """Raised if this host has no key of the deployment."""


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of one connection. `send` and `receive` authenticate its lines, `token` is that of Ray's cluster."""

    send: bytes
    receive: bytes
    token: str


def read_key(file: Path) -> bytes:
    """Return the key of the deployment: 64 hexadecimal digits in a file. Raises NoKeyError."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, ValueError):
        raise NoKeyError(f"{file} cannot be read") from None
    if not KEY.fullmatch(text):
        raise NoKeyError(f"{file} does not contain a key")
    return bytes.fromhex(text.strip())


def derive(key: bytes, *words: str) -> bytes:
    """Return HMAC-SHA256 of the words. Each has its length before it, so that no two lists give the same bytes."""
    content = b"".join(len(word.encode()).to_bytes(4, "big") + word.encode() for word in words)
    return hmac.digest(key, content, "sha256")


def session_keys(key: bytes, rank: Rank, nonces: tuple[str, str]) -> Keys:
    """Return the keys of the connection with these nonces, those of the head and of the worker."""
    session = derive(key, "session", rank.name, *nonces)
    own, other = ROLES if rank.rank == 0 else ROLES[::-1]
    return Keys(derive(session, "lines", own), derive(session, "lines", other), token_of(session, rank))


def token_of(session: bytes, rank: Rank) -> str:
    """Return Ray's token of this start. Both ranks compute it; it is never sent."""
    return derive(session, "ray", rank.name, rank.launch).hex()


async def prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: Rank) -> Keys:
    """Prove the key to the other side and check its proof. Raises UnprovenError and OSError."""
    key = read_key(rank.key_file)
    own = secrets.token_hex(32)
    if rank.rank == 0:
        _send(writer, own)
        other, proof = await _words(reader, 2)
        nonces = (own, other)
        _check(proof, derive(key, "proof", ROLES[1], rank.name, *nonces))
        _send(writer, derive(key, "proof", ROLES[0], rank.name, *nonces).hex())
        return session_keys(key, rank, nonces)
    (other,) = await _words(reader, 1)
    nonces = (other, own)
    _send(writer, own, derive(key, "proof", ROLES[1], rank.name, *nonces).hex())
    (proof,) = await _words(reader, 1)
    _check(proof, derive(key, "proof", ROLES[0], rank.name, *nonces))
    return session_keys(key, rank, nonces)


def _send(writer: asyncio.StreamWriter, *words: str) -> None:
    writer.write(b" ".join([HELLO, *(word.encode() for word in words)]) + b"\n")


async def _words(reader: asyncio.StreamReader, count: int) -> list[str]:
    """Return the words of the other side's next line. Nothing of an unproven side is parsed further."""
    try:
        line = await reader.readline()
    except ValueError:
        raise UnprovenError("it sent a line that is too long") from None
    if not line:
        raise UnprovenError("it closed the connection before it proved the key")
    match = WORDS.fullmatch(line)
    words = match[1].decode().split() if match else []
    if len(words) != count:
        raise UnprovenError("it does not speak this version of the link")
    return words


def _check(proof: str, expected: bytes) -> None:
    if not hmac.compare_digest(bytes.fromhex(proof), expected):
        raise UnprovenError("it does not have this key")
