"""Cables of more than two Sparks: their topology as links, the rules about them, and their addresses. Pure.

cabling.yml has the data, with a source for each row. `plan --sparks` says it before cables and a switch are bought, and
the rules of a switch hold for each deployment of more than two ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB
from vllm_spark.inventory import fabric, link_config, rank_group
from vllm_spark.inventory.fabric import FabricChoice
from vllm_spark.inventory.rank_group import Member, RankGroup
from vllm_spark.recipe import conditions
from vllm_spark.recipe import rules as recipe_rules
from vllm_spark.recipe.conditions import Subject

FILE = Path(__file__).with_name("cabling.yml")

# Sparks at a switch share their subnets. A deployment of more than two ranks needs that.
SWITCH = "switch"
FABRICS, NUMBERS = (SWITCH, "triangle", "ring"), (3, 4, 8)
READ, UNPROVEN, REFUSED = "read", "unproven", "refused"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: a Spark by its rank, and its port, 0 or 1."""

    rank: int
    port: int

    @property
    def host(self) -> str:
        return f"spark{self.rank + 1}"

    @property
    def netdevs(self) -> tuple[str, str]:
        """The twins of the port, as DGX OS names them."""
        return f"enp1s0f{self.port}np{self.port}", f"enP2p1s0f{self.port}np{self.port}"

    @property
    def hcas(self) -> tuple[str, str]:
        return f"rocep1s0f{self.port}", f"roceP2p1s0f{self.port}"


# The ends of a cable, or those of a switch with one of each Spark.
Link = tuple[End, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked for. `nccl` is the version of the recipe's engine; empty is unknown. `pipeline`: the ranks are in
    several stages."""

    fabric: str
    sparks: int
    recipe: Document
    nccl: str
    pipeline: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. cabling.yml explains the fields."""

    id: str
    fabrics: Sequence[str]
    verdict: str
    why: str
    source: str
    sparks: Sequence[int] = range(NUMBERS[0], NUMBERS[-1] + 1)
    nccl: Mapping[str, str] = field(default_factory=dict)
    split: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    instead: str = ""
    fix: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    bootstrap: str = ""

    def applies(self, shape: Shape) -> bool:
        """Return True if the row is about this shape. An unknown NCCL is in no range."""
        return (
            shape.fabric in self.fabrics
            and shape.sparks in self.sparks
            and (not self.nccl or bool(shape.nccl and conditions.version_matches(self.nccl, shape.nccl)))
            and (not self.split or shape.pipeline)
            and conditions.conditions_match(self.when, Subject(shape.recipe))
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """What fails although the cables are right, and how it shows."""

    fabrics: Sequence[str]
    what: str
    shows: str
    source: str


@cache
def table() -> Mapping[str, Any]:
    """Return the content of the file."""
    content: Mapping[str, Any] = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return content


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rows in the file's order."""
    return tuple(Rule(**row) for row in table()["rules"])


def rule(shape: Shape) -> Rule:
    """Return the row that decides about a shape: the first one that applies. There is one for each."""
    return next(row for row in rules() if row.applies(shape))


def of_recipe(recipe: Document) -> Rule | None:
    """Return the row about a recipe for more than two Sparks, which need a switch; None for one or two."""
    nodes, stages = recipe["topology"]["nodes"], recipe_rules.stages_of(recipe)
    if nodes < NUMBERS[0]:
        return None
    return rule(Shape(SWITCH, nodes, recipe, nccl_of(recipe["engine"]["version"]), stages > 1))


def failures(fabric_name: str) -> list[Failure]:
    """Return what fails with some cables."""
    return [row for row in (Failure(**row) for row in table()["failures"]) if fabric_name in row.fabrics]


def nccl_of(engine_version: str) -> str:
    """Return the NCCL of an engine's wheel, or an empty text if it is not known."""
    found = (row["version"] for row in table()["nccl"] if conditions.version_matches(row["vllm"], engine_version))
    return next(found, "")


def head_bytes() -> int:
    """Return what a server holds on the head beside its share of the memory."""
    return int(table()["head"]["gib"] * GIB)


def links(fabric_name: str, sparks: int) -> list[Link]:
    """Return the links of a topology; none if so many Sparks cannot have it."""
    listed = table()["topologies"][fabric_name].get(sparks, [])
    ends = ([str(end).split(".") for end in link] for link in listed)
    return [tuple(End(int(spark) - 1, int(port)) for spark, port in link) for link in ends]


def shapes() -> str:
    """Return the topologies in words, each with the numbers of Sparks that can have it."""
    return ", ".join(f"{name} of {number}" for name in FABRICS for number in NUMBERS if links(name, number))


def addresses(topology: Sequence[Link]) -> dict[str, dict[str, str]]:
    """Return host -> netdev -> address. Each link has two subnets of its own, one for each twin of its ports."""
    found: dict[str, dict[str, str]] = {}
    free = link_config.free_subnets(())
    for link in topology:
        subnets = [next(free) for _ in range(link_config.TWINS)]
        for side, end in enumerate(sorted(link, key=lambda end: end.rank)):
            found.setdefault(end.host, {}).update(link_config.numbered(end.netdevs, subnets, side))
    return {host: found[host] for host in sorted(found)}


def variables(topology: Sequence[Link], row: Rule, numbered: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the container's variables of the head: those of a pair, and those of the row. The other ranks differ in
    the address alone."""
    return {**fabric.environment(_choice(topology, row, numbered), "mp"), **row.variables}


def flags(topology: Sequence[Link], row: Rule, numbered: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return the flags that join the ranks, as the head has them."""
    choice = _choice(topology, row, numbered)
    members = tuple(Member(host, choice.address) for host in numbered)
    return rank_group.flags(RankGroup(0, "mp", choice.netdev, members))


def _choice(topology: Sequence[Link], row: Rule, numbered: Mapping[str, Mapping[str, str]]) -> FabricChoice:
    """Return what the head uses. By cables alone not every Spark reaches every other one, so that the ranks find each
    other by another netdev, whose address is not planned."""
    own = sorted((end for link in topology for end in link if end.rank == 0), key=lambda end: end.port)
    netdevs = tuple(netdev for end in own for netdev in end.netdevs)
    primary = numbered[own[0].host][netdevs[0]].partition("/")[0]
    return FabricChoice(
        host=own[0].host,
        address=f"ADDRESS_ON_{row.bootstrap}" if row.bootstrap else primary,
        netdev=row.bootstrap or netdevs[0],
        netdevs=netdevs,
        hcas=tuple(hca for end in own for hca in end.hcas),
        gid_index=None,
        mtu=link_config.DEFAULT_MTU,
    )
