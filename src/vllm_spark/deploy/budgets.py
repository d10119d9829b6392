"""The part of a Spark's memory that each of its deployments gets. Pure; sizing/budget.py has the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.core.types import Facts
from vllm_spark.core.units import gib
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import unit_limits
from vllm_spark.sizing import budget, memory
from vllm_spark.sizing.budget import Budget


def shared(hosts: Mapping[str, HostContext]) -> dict[str, HostContext]:
    """Return the hosts of a deployment, with its part of the memory if one of them is shared. All ranks get what the
    smallest room among them allows. A deployment alone on its Sparks stays as it is.

    Raises RefusedError if the budgets of a host do not fit together, or if one of them is unknown."""
    specs = {host: one.spec for host, one in hosts.items()}
    if not any(spec.beside for spec in specs.values()) or any(has_part(spec) for spec in specs.values()):
        return dict(hosts)
    totals = {host: one.facts["memory"]["total"] for host, one in hosts.items()}
    by_host = {host: of_host(spec, totals[host]) for host, spec in specs.items()}
    if refused := [one for host, found in by_host.items() for one in budget.refusals(host, found, totals[host])]:
        raise RefusedError(refused)
    own = [one for host, found in by_host.items() for one in found if one.name == specs[host].deployment.name]
    least, total = min(own, key=lambda one: one.cache), max(totals.values())
    parts = {host: budget.with_budget(spec.recipe, least, total) for host, spec in specs.items()}
    return {host: one.with_rank(recipe=parts[host]) for host, one in hosts.items()}


def refusals(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    """Yield the refusals of a host whose budgets do not fit together or are not known: before a download."""
    try:
        shared({spec.host: HostContext(spec.host, spec, facts)})
    except RefusedError as error:
        yield from error.refusals


def has_part(spec: Spec) -> bool:
    """Return True for a rank whose recipe has its part of the memory already."""
    return memory.WORKSPACE_KEY in spec.recipe["memory"]


def of_host(spec: Spec, total: int) -> list[Budget]:
    """Return the budgets of the deployments of a host, by name. `total` is its memory in bytes."""
    recipes = sorted({**spec.beside, spec.deployment.name: spec.recipe}.items())
    return budget.divided([budget.of_recipe(name, recipe) for name, recipe in recipes], total)


def larger(host: HostContext) -> list[str]:
    """Return the neighbours that run with more memory than their budget, as those that had the Spark alone before: this
    deployment has its room only after they have stopped, and their own turn starts them again."""
    spec, total = host.spec, host.facts["memory"]["total"]
    recipes = {**spec.beside, spec.deployment.name: spec.recipe}
    found = []
    for one in of_host(spec, total) if spec.beside else ():
        part = budget.with_budget(recipes[one.name], one, total)
        room = (host.facts["records"].get(one.name) or {}).get("room", {})
        runs = one.name in spec.beside and f"vllm@{one.name}.service" in host.facts["running_units"]
        if runs and unit_limits.needed(room, total) > memory.required_bytes(part, total):
            found.append(one.name)
    return found


def table(host: HostContext) -> Iterator[str]:
    """Yield the lines about a Spark that several deployments share; none for a deployment alone there. The last one
    says that other programs hold what the starts need, which is known while none of the toolkit's units runs."""
    spec = host.spec
    if spec.beside:
        total, available = host.facts["memory"]["total"], host.facts["memory"]["available"]
        found = of_host(spec, total)
        yield from budget.table(spec.host, found, total)
        wanted = budget.needed(found, total) - budget.host_bytes(total)
        if wanted > available and not host.serves:
            yield (
                f"memory of {spec.host}: {gib(available)} are available, and the starts together need {gib(wanted)}: "
                "other programs hold the rest, and a start waits ten minutes for its memory"
            )
