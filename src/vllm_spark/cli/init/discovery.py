"""The Sparks that can be found: this machine, those that answer mDNS, and those on the cables of a found one."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from functools import cache

from vllm_spark.cli.init import sparks
from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.cli.init.sparks import Spark
from vllm_spark.core import this_machine
from vllm_spark.core.refusal import register
from vllm_spark.core.types import Facts
from vllm_spark.node import mdns
from vllm_spark.node.mdns import Answer

WHICH_SPARK = register("which-spark", runbook="init-refused")

TRIED = "nvidia-smi of this machine shows no GB10, and no spark-…, gx10-… or promaxgb10-… answers mDNS within 2 s"


@cache
def answers() -> tuple[Answer, ...]:
    """Return the Sparks that answer mDNS. This machine is one of them if it has a name of the factory."""
    return tuple(mdns.ask())


def own_address() -> str:
    """Return an address by which others reach this machine: the name that it answers by mDNS, or that of its route."""
    known = (answer.name for answer in answers() if sparks.is_here(answer.name))
    return next(known, this_machine.routed_address() or socket.gethostname())


def choose(talk: Conversation) -> list[str]:
    """Return the hosts to use: this machine if it is a Spark, else those that answer mDNS, or what the owner says.

    Raises RefusedError if a silent conversation cannot know them.
    """
    is_spark = sparks.this_is_a_spark()
    apart = names_of(on_own_cables()) if is_spark else []
    others = [name for name in names_of(answers()) if not sparks.is_here(name) and name not in apart]
    default = ["localhost"] if is_spark else list(map(reachable, others))
    if talk.silent and len(default) != 1:
        raise WHICH_SPARK.error(
            what=f"{', '.join(default)} answer mDNS" if default else f"no Spark was found: {TRIED}",
            expected="one Spark, or names",
            fix="name yours, as its login screen does: `vllm-spark init USER@HOST --yes`.",
        )
    if is_spark:
        talk.tell("This machine is a Spark: localhost.")
    if others or not is_spark:
        talk.tell(f"By mDNS answer: {shown(others)}." if others else f"No Spark was found: {TRIED}.")
    if talk.silent or len(others) + is_spark == 1:
        return default
    return talk.ask("Sparks to use, each by name or address", " ".join(default)).replace(",", " ").split()


def peers(talk: Conversation, spark: Spark, facts: Facts) -> list[str]:
    """Return the Sparks on the cables of a Spark that the owner wants too."""
    own = f"{facts['hostname'].partition('.')[0].lower()}.local"
    seen = sparks.ask_on_cables(spark) if spark.login else on_own_cables()
    names = [name for name in names_of(seen) if name != own]
    if not names:
        return []
    talk.tell(f"At the other end of its cable: {shown(names)}.")
    return list(map(reachable, names)) if talk.confirms("Use it too") else []


def on_own_cables() -> list[Answer]:
    """Return what answers mDNS on the cables of this machine, itself included."""
    return [answer for answer in answers() if answer.netdev in mdns.cables()]


def names_of(found: Iterable[Answer]) -> list[str]:
    """Return the names in answers, each once."""
    return list(dict.fromkeys(answer.name for answer in found))


def shown(names: Sequence[str]) -> str:
    """Return names as text, each with the address that is used in its place."""
    return ", ".join(name if name == reachable(name) else f"{name} ({reachable(name)})" for name in names)


@cache
def reachable(name: str) -> str:
    """Return a name if this machine can resolve it, else the address that its answer came from, if there is one."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return next((answer.address for answer in answers() if answer.name == name), name)
    return name
