"""A recipe on three, four or eight Sparks that nobody has bought yet: cables, addresses, memory of each rank, forecast.

It is for `plan --sparks`. Pure but for the files of rules and known issues.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.types import Document, MemoryFacts
from vllm_spark.inventory import cabling
from vllm_spark.inventory.cabling import Link, Rule, Shape
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe import heads, known_issues, roles
from vllm_spark.recipe.host_memory import Taken
from vllm_spark.sizing import forecast, host_files, memory, pairs, request_limits, speed_floor, tensor_parallel
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import Forecast, ForecastRequest
from vllm_spark.sizing.memory import Fit, MemoryModel

CABLE_PLAN = register("cable-plan", runbook="plan-no-go")

NOT_DEPLOYED = "the toolkit deploys a server over one cable or a switch, so it does not deploy this one"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: the recipe as it was typed, the topology, the memory of each Spark, the load, the Gbit/s of
    links, of which the slowest decides, and accepted known issues."""

    typed: str
    fabric: str
    sparks: int
    memory: MemoryFacts
    request: ForecastRequest
    gbps: Sequence[int] = ()
    accepted: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class CablePlan:
    """What would be.

    - `nccl`: version in the wheel of the recipe's engine; empty if it is not known
    - `ranks`: those of tensor parallel, and the stages of a pipeline
    - `links`: empty for a topology that does not exist
    - `gbps`: of the slowest link, which decides
    - `forecast`: with every refusal
    """

    wanted: Wanted
    rule: Rule
    nccl: str
    ranks: tuple[int, int]
    links: Sequence[Link]
    gbps: int
    forecast: Forecast


def plan(recipe: Document, wanted: Wanted, constants: Constants) -> CablePlan:
    """Return the plan of a recipe. A link that is slower than the data's `gbps` slows its all-reduces as much."""
    server = _Server.of(recipe, wanted)
    nccl, usual = cabling.nccl_of(recipe["engine"]["version"]), cabling.table()["gbps"]
    row = cabling.rule(Shape(wanted.fabric, wanted.sparks, recipe, nccl, server.stages > 1))
    slowest = min(wanted.gbps or [usual])
    foreseen = server.forecast(replace(constants, link=constants.link * slowest / usual))
    subject = known_issues.of_closed(server.recipe)
    refusals = [*_of_rule(recipe["name"], wanted, row), *known_issues.refusals(subject, wanted.accepted)]
    return CablePlan(
        wanted=wanted,
        rule=row,
        nccl=nccl,
        ranks=(server.tensor, server.stages),
        links=cabling.links(wanted.fabric, wanted.sparks),
        gbps=slowest,
        forecast=replace(
            foreseen,
            refusals=[*refusals, *foreseen.refusals],
            notes=[*foreseen.notes, *known_issues.notes(subject, wanted.accepted), server.how(recipe)],
        ),
    )


def _of_rule(name: str, wanted: Wanted, row: Rule) -> Iterator[Refusal]:
    if row.verdict == cabling.READ:
        return
    other = f"vllm-spark plan {wanted.typed} --sparks {wanted.sparks} --fabric {row.instead}"
    yield CABLE_PLAN(
        what=f"{name} on {wanted.sparks} Sparks by a {wanted.fabric} is {row.verdict}: {row.why} "
        f"(rule {row.id}: {row.source})",
        expected="a combination of which a public record shows a start on a published image",
        fix=Fix(other, f"Or: {row.fix}." if row.fix else "") if row.instead else f"{row.fix}.",
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """A recipe on ranks that nobody has: `tensor` of them share each of the `stages` of a pipeline."""

    recipe: Document
    wanted: Wanted
    model: MemoryModel | None
    tensor: int
    stages: int

    @classmethod
    def of(cls, recipe: Document, wanted: Wanted) -> _Server:
        """Return the server with the most ranks that share the heads evenly. Those of an unknown model share all."""
        model, sparks = memory.model_of(recipe), wanted.sparks
        tensor = heads.most(model.architecture, sparks) if model else sparks
        return cls(tensor_parallel.on_ranks(recipe, sparks, tensor), wanted, model, tensor, sparks // tensor)

    def forecast(self, constants: Constants) -> Forecast:
        """Return the forecast, with the refusals of memory, context and speed."""
        recipe, request, name = self.recipe, self.wanted.request, self.recipe["name"]
        known = self.model.architecture if self.model else None
        fits = [self._fit(self.model, rank) if self.model else None for rank in range(self.wanted.sparks)]
        speed = forecast.predicted(recipe, request, constants, self.model)
        sizes = [host_files.size(recipe, source) for source in host_files.sources(recipe)]
        unknown = memory.unknown_parts(recipe)
        return Forecast(
            name=name,
            hosts=[_host(rank) for rank in range(self.wanted.sparks)],
            fits={_host(rank): fit for rank, fit in enumerate(fits) if fit},
            model=self.model,
            prediction=speed,
            download_bytes=sum(sizes),
            refusals=[
                *request_limits.too_long(name, recipe, known, request.context),
                *self._too_small(fits),
                *speed_floor.too_slow(name, speed, request.min_speed, []),
            ],
            notes=list(self._notes(unknown)),
            download_known=all(sizes),
            reference=True,
            unknown=unknown,
        )

    def _fit(self, model: MemoryModel, rank: int) -> Fit:
        """Return the division of one rank's memory. The head holds more, the ends of a pipeline other parts."""
        tokens = self.wanted.request.context or request_limits.longest(self.recipe, model.architecture)
        fit = memory.fit(self.recipe, model, self.wanted.memory, tokens)
        if self.stages > 1:
            own = [model.stage_bytes(self.tensor, self.stages, stage) for stage in range(self.stages)]
            less = max(own) - own[rank // self.tensor]
            fixed = "kv_cache_bytes" in self.recipe["memory"]
            fit = replace(
                fit,
                weights=fit.weights - less,
                room=fit.room + (0 if fixed else less),
                reserved=fit.reserved - (less if fixed else 0),
            )
        head = [] if rank else [Taken("held by the head alone", "", head_bytes(self.recipe), base=True)]
        return replace(fit, parts=[*fit.parts, *head])

    def how(self, original: Document) -> str:
        """Return how the toolkit deploys the server, or that it does not."""
        if self.wanted.fabric != cabling.SWITCH:
            return NOT_DEPLOYED
        if self.recipe["topology"] == original["topology"]:
            return "the toolkit deploys it by this recipe"
        if (role := roles.of(original)) != CHAT:
            return f"the toolkit deploys a model of the role {role} on one Spark or two"
        topology = ", ".join(f"{key}: {value}" for key, value in self.recipe["topology"].items())
        heads_permit = "" if self.model else ", if so many ranks can share its heads"
        return (
            f"the toolkit deploys it by a recipe with `topology: {{{topology}}}`{heads_permit}: "
            f"`{forecast.new_recipe(self.recipe)} --like {self.wanted.typed}` writes one"
        )

    def _too_small(self, fits: Sequence[Fit | None]) -> Iterator[Refusal]:
        """Refuse ranks without room for their cache, or whose Sparks have too little memory; neighbours with one budget
        together, but for the head."""
        name, known = self.recipe["name"], self.wanted.memory
        for (head, fit), group in itertools.groupby(enumerate(fits), key=lambda item: (item[0] == 0, item[1])):
            ranks = [rank for rank, _ in group]
            hosts = _host(ranks[0]) + (f" to {_host(ranks[-1])}" if len(ranks) > 1 else "")
            if fit:
                yield from forecast.too_small(name, hosts, self.recipe, fit, self.wanted.request)
            available = known["available"] - (head_bytes(self.recipe) if head else 0)
            own: MemoryFacts = {"total": known["total"], "available": available}
            yield from memory.too_little_refusal(name, hosts, self.recipe, own, reference=True)

    def _notes(self, unknown: Sequence[str]) -> Iterator[str]:
        yield from (f"the memory of the host for the {what} is not known, and no part of this plan" for what in unknown)
        if pairs.held_by_one(self.recipe) and memory.file_bytes(self.recipe):
            yield (
                f"one Spark holds this model: {self.wanted.sparks} servers behind one address need no switch and serve "
                f"{self.wanted.sparks} times the requests (docs/operations/more-sparks.md)"
            )
        if self.model is None:
            yield "memory, speed and heads are not known: the recipe has no model.architecture and model.layout"
        else:
            yield from pairs.staged(self.recipe, self.model.architecture)
        yield "the interval of the speed is that of one Spark or of a pair: no row of more Sparks is in its fit"


def head_bytes(recipe: Document) -> int:
    """Return what the head of more than two ranks holds beside the processes that each of them has."""
    return max(0, cabling.head_bytes() - sum(part.bytes for part in memory.beside(recipe) if part.base))


def _host(rank: int) -> str:
    return f"spark{rank + 1}"
