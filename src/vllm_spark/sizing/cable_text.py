"""A cable plan as text for an operator, and as a part of the document of `plan` for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.inventory import cabling, link_config
from vllm_spark.inventory.cabling import End
from vllm_spark.sizing import forecast_text
from vllm_spark.sizing.cable_plan import CablePlan

# What a row of the rules stands for. No row says that the toolkit has proven a shape.
MEANS = {cabling.READ: "read in public records, not repeated with this toolkit", cabling.UNPROVEN: "unproven"}


def lines(plan: CablePlan, recipe: Document) -> list[str]:
    """Return the plan as text. A shape that a rule refuses has nothing to be cabled, and so only the first line."""
    wanted, forecast = plan.wanted, plan.forecast
    deployed = "" if wanted.fabric == cabling.SWITCH else "; the toolkit does not deploy it"
    title = f"{recipe['name']} on {wanted.sparks} Sparks by a {wanted.fabric}: {forecast.verdict}{deployed}"
    if plan.rule.verdict == cabling.REFUSED:
        return [title]
    nccl = f"NCCL {plan.nccl}" if plan.nccl else "an unknown NCCL"
    failures = (f"    {one.what}: {one.shows} ({one.source})" for one in cabling.failures(wanted.fabric))
    return [
        title,
        f"  {MEANS[plan.rule.verdict]}: {plan.rule.why} ({plan.rule.source})",
        f"  vLLM {recipe['engine']['version']} with {nccl}: {_split(plan)}",
        *_cable_lines(plan),
        *forecast_text.lines(forecast, recipe, wanted.request)[1:],
        "  what fails although it is cabled so, and how it shows",
        *failures,
    ]


def _split(plan: CablePlan) -> str:
    tensor, stages = plan.ranks
    return f"tensor parallel {tensor}" + (f" in {stages} stages of a pipeline" if stages > 1 else "")


def _cable_lines(plan: CablePlan) -> Iterator[str]:
    yield f"  cables; the slowest has {plan.gbps} Gbit/s and decides"
    for link in plan.links:
        if plan.wanted.fabric == cabling.SWITCH:
            yield from (f"    {_end(end)} to the switch" for end in link)
        else:
            yield f"    {' to '.join(map(_end, link))}"
    yield f"  addresses, MTU {link_config.DEFAULT_MTU}"
    numbered = cabling.addresses(plan.links)
    for host, own in numbered.items():
        yield f"    {host}: {', '.join(f'{netdev} {address}' for netdev, address in own.items())}"
    yield "  variables of spark1; each other Spark has its own address in VLLM_HOST_IP"
    yield from (f"    {name}={value}" for name, value in _variables(plan).items())
    yield "  flags of spark1; each other Spark has its own --node-rank, and --headless"
    yield from (f"    --{name} {value}" for name, value in _flags(plan).items())


def _end(end: End) -> str:
    return f"{end.host} port {end.port} ({end.netdevs[0]})"


def _variables(plan: CablePlan) -> dict[str, str]:
    return cabling.variables(plan.links, plan.rule, cabling.addresses(plan.links))


def _flags(plan: CablePlan) -> dict[str, object]:
    tensor, stages = plan.ranks
    pipeline = {"pipeline-parallel-size": stages} if stages > 1 else {}
    joined = cabling.flags(plan.links, plan.rule, cabling.addresses(plan.links))
    return {"tensor-parallel-size": tensor, **pipeline, **joined}


def document(plan: CablePlan) -> dict[str, Any]:
    """Return the field `cabling` of the document of `plan`. A refused shape has no links and nothing that follows."""
    links = [] if plan.rule.verdict == cabling.REFUSED else plan.links
    return {
        "fabric": plan.wanted.fabric,
        "sparks": plan.wanted.sparks,
        "verdict": plan.rule.verdict,
        "rule": plan.rule.id,
        "why": plan.rule.why,
        "source": plan.rule.source,
        "nccl": plan.nccl or None,
        "tensor_parallel": plan.ranks[0],
        "pipeline_parallel": plan.ranks[1],
        "slowest_gbps": plan.gbps,
        "links": [
            [{"host": end.host, "port": end.port, "netdevs": list(end.netdevs)} for end in link] for link in links
        ],
        "addresses": cabling.addresses(links),
        "variables": _variables(plan) if links else {},
        "flags": _flags(plan) if links else {},
    }
