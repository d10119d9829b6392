"""The Sparks that can be found: this machine, those that answer mDNS, and those on the cables of a found one."""

from __future__ import annotations

import socket
from functools import cache

from vllm_spark.cli.init import sparks
from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.cli.init.sparks import Spark
from vllm_spark.core.refusal import register
from vllm_spark.core.types import Facts
from vllm_spark.node import mdns
from vllm_spark.node.mdns import Answer

NO_SPARK_FOUND = register("no-spark-found", runbook="init-refused")
SEVERAL_FOUND = register("several-sparks-found", runbook="init-refused")

TRIED = "nvidia-smi of this machine shows no GB10, and no spark-…, gx10-… or promaxgb10-… answers mDNS within 2 s"


@cache
def answers() -> tuple[Answer, ...]:
    """Return the Sparks that answer mDNS. This machine is one of them if it has a name of the factory."""
    return tuple(mdns.ask())


def own_address() -> str:
    """Return an address by which others reach this machine: the name that it answers by mDNS, or that of its route."""
    return next((answer.name for answer in answers() if sparks.is_here(answer.name)), sparks.routed_address())


def choose(talk: Conversation) -> list[str]:
    """Return the hosts to use: this machine if it is a Spark, else those that answer mDNS, or what the owner says.

    Raises RefusedError if a silent conversation cannot know them.
    """
    others = [reachable(name) for name in dict.fromkeys(each.name for each in answers()) if not sparks.is_here(name)]
    if sparks.this_is_a_spark():
        talk.tell("This machine is a Spark: localhost.")
        default = ["localhost"]
    else:
        default = others
    if others:
        talk.tell(f"By mDNS answer: {', '.join(others)}.")
    if talk.silent and len(default) > 1:
        raise SEVERAL_FOUND.error(
            what=f"{', '.join(default)} answer mDNS, and --yes does not choose between them",
            expected="one Spark, or names",
            fix=f"name those that are yours: `vllm-spark init {default[0]} --yes`.",
        )
    if talk.silent and not default:
        raise NO_SPARK_FOUND.error(
            what=f"no Spark was found: {TRIED}",
            expected="a Spark",
            fix="give the address at its login screen: `vllm-spark init USER@HOST --yes`.",
        )
    if not default:
        talk.tell(f"No Spark was found: {TRIED}.")
    return talk.ask("Sparks to use, each by name or address", " ".join(default)).replace(",", " ").split()


def peers(talk: Conversation, spark: Spark, facts: Facts) -> list[str]:
    """Return the Sparks on the cables of a Spark that the owner wants too."""
    seen = sparks.ask_on_cables(spark) if spark.login else answers_on_cables()
    own = f"{facts['hostname'].partition('.')[0].lower()}.local"
    names = [reachable(name) for name in dict.fromkeys(seen) if name != own]
    if not names:
        return []
    talk.tell(f"At the other end of its cable: {', '.join(names)}.")
    return names if talk.confirms("Use it too") else []


def answers_on_cables() -> list[str]:
    """Return the names that answer mDNS on the cables of this machine."""
    return [answer.name for answer in answers() if answer.netdev in mdns.cables()]


def reachable(name: str) -> str:
    """Return a name if this machine can resolve it, else the address that its answer came from, if there is one."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return next((answer.address for answer in answers() if answer.name == name), name)
    return name
