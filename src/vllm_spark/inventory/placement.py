"""Refusals of a deployment on its hosts: unknown hosts, the limit, the executor, and missing secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core import text
from vllm_spark.core.engine_version import release
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.inventory import cabling
from vllm_spark.inventory.deployment import Deployment, refuse_overrides
from vllm_spark.recipe import architecture, heads, loader, lockfile, rules
from vllm_spark.recipe.loader import Recipe

HOST_NAME = register("host-name", runbook="inventory-refused")
UNKNOWN_HOST = register("unknown-host", runbook="inventory-refused")
NOTHING_HERE = register("nothing-here", runbook="inventory-refused")
OWN_ADDRESS = register("own-address", runbook="inventory-refused")
OWN_TWICE = register("own-twice", runbook="inventory-refused")
HOST_COUNT = register("host-count", runbook="inventory-refused")
HALF_A_PAIR = register("half-a-pair", runbook="inventory-refused")
EXECUTOR_OF_ONE = register("executor-of-one", runbook="pair-executor")
NO_DRAFTER = register("no-drafter", runbook="inventory-refused")
NO_RAY = register("no-ray", runbook="pair-executor")
NO_MP_NODES = register("no-mp-nodes", runbook="pair-executor")
RANKS_REFUSED = register("ranks-refused", runbook="pair-executor")
SECRET_EMPTY = register("secret-empty", runbook="secrets")
SECRET_NAME = register("secret-name", runbook="secrets")
# A name that docker run --env-file takes.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The first release with --nnodes.
MP_NODES_SINCE = (0, 12)
# Only the machine itself uses them.
LOOPBACK_NAME = re.compile(r"localhost\b|127\.|::1$")
# The launch of a rank contains the name of the other host, in a comment too, and root runs the launch.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")


def host_refusals(
    deployments: Sequence[Deployment], sparks: Collection[str], limit: Sequence[str], fronts: Collection[str] = ()
) -> Iterator[Refusal]:
    """Yield a refusal per host whose name is not plain or that is not in the group `sparks`, and one if neither a
    deployment nor one of `fronts`, which may forward to deployments, is within the limit."""
    for deployment in deployments:
        for host in deployment.hosts:
            if not PLAIN_NAME.fullmatch(host):
                yield HOST_NAME(
                    what=f"deployment {deployment.name} names {host!r}",
                    expected="a name of letters, digits and . _ : -, because launches contain it",
                    fix="rename it in the inventory and in hosts of the deployment; ansible_host keeps its address.",
                )
            elif host not in sparks:
                yield UNKNOWN_HOST(
                    what=f"deployment {deployment.name} names {host}",
                    expected=f"hosts of the group sparks: {', '.join(sparks)}",
                    fix=f"add {host} to the inventory, or correct hosts of {deployment.name}.",
                )
    busy = {host for deployment in deployments for host in deployment.hosts}
    if not (busy and {*busy, *fronts} & set(limit)):
        placed = [f"{deployment.name} on {'+'.join(deployment.hosts)}" for deployment in deployments]
        yield NOTHING_HERE(
            what=f"no deployment names {', '.join(limit)}",
            expected=text.one_of(placed, "a deployment; vllm_deployments is empty"),
            fix="limit to a host that has a deployment, or add one to vllm_deployments.",
        )


def own_refusals(own: Mapping[str, str], names: Sequence[str]) -> Iterator[Refusal]:
    """Yield a refusal if two hosts are the machine that deploys, or if the inventory does not say how others reach it.

    `own` are the hosts with `ansible_connection: local` and their ansible_host, empty without one; `names` are the
    names and addresses of the machine."""
    if len(own) > 1:
        yield OWN_TWICE(
            what=f"{' and '.join(own)} have ansible_connection: local, so each would be this machine",
            expected="one host that is the machine that deploys",
            fix="keep ansible_connection: local below the name of that host alone, not in vars of the group, and give "
            "the others ansible_host.",
        )
    for host, address in own.items():
        if not address or LOOPBACK_NAME.match(address):
            yield OWN_ADDRESS(
                what=f"{host} is this machine, and its ansible_host is {address or 'not set'}",
                expected="the name or address by which clients and other Sparks reach it",
                fix=f"write ansible_host: {' or '.join(names) or 'ADDRESS'} below {host} in the inventory.",
            )


def rank_refusals(deployment: Deployment, recipe: Document, limit: Sequence[str]) -> Iterator[Refusal]:
    """Yield a refusal if a recipe is for another number of hosts, or if the limit omits one of them."""
    nodes = recipe["topology"]["nodes"]
    if len(deployment.hosts) != nodes:
        yield HOST_COUNT(
            what=f"deployment {deployment.name} has {len(deployment.hosts)} hosts ({', '.join(deployment.hosts)})",
            expected=f"{nodes}, which recipe {deployment.recipe} is for",
            fix=f"correct hosts of {deployment.name}, or name another recipe.",
        )
    absent = [host for host in deployment.hosts if host not in limit]
    if absent:
        head = ", the head," if absent[0] == deployment.hosts[0] else ""
        yield HALF_A_PAIR(
            what=f"the limit leaves out {', '.join(absent)}{head} of deployment {deployment.name}",
            expected=f"all of its hosts, because {'a pair is' if nodes == 2 else 'its ranks are'} one service",  # noqa: PLR2004  a pair
            fix=f"run the same command with -l {','.join(deployment.hosts)}.",
        )


def overridden(placed: Deployment, recipe: Recipe) -> dict[str, Any]:
    """Return the document of a recipe with the overrides of a deployment. Raises RefusedError if they do not fit it."""
    refusals = list(_drafter_refusals(placed, recipe.document))
    if refusals:
        raise RefusedError(refusals)
    document = loader.merged(recipe, placed.overrides)
    refuse_overrides(placed, loader.merged_faults(document, placed.overrides))
    return document


def _drafter_refusals(placed: Deployment, recipe: Document) -> Iterator[Refusal]:
    """Yield a refusal if the overrides set the tokens of a drafter that the recipe does not have."""
    if placed.overrides.get("drafter") and "drafter" not in recipe:
        yield NO_DRAFTER(
            what=f"deployment {placed.name} has overrides.drafter, and recipe {placed.recipe} has no drafter",
            expected="a recipe with a drafter",
            fix=f"remove overrides.drafter of {placed.name}, or name a recipe with a drafter.",
        )


def executor_refusals(recipe: Document) -> Iterator[Refusal]:
    """Yield a refusal if the engine or its image cannot run the executor on this number of Sparks."""
    name, engine, topology = recipe["name"], recipe["engine"], recipe["topology"]
    several, executor, tensor = topology["nodes"] > 1, topology["executor"], topology["tensor_parallel"]
    known = recipe["model"].get("architecture")
    if several and known and (odd := heads.uneven(architecture.of_recipe(recipe, known), tensor)):
        yield RANKS_REFUSED(
            what=f"recipe {name}: {tensor} ranks cannot share {', '.join(odd)}",
            expected="a topology.tensor_parallel that divides them",
            fix="the rest of the ranks as topology.pipeline_parallel, or another number of Sparks.",
        )
    if not several and executor == "ray":
        yield EXECUTOR_OF_ONE(
            what=f"overrides give recipe {name} executor ray, and it is for one Spark",
            expected="the recipe's own executor",
            fix="remove topology.executor from the overrides.",
        )
    if several and executor == "ray" and "ray" not in engine:
        yield NO_RAY(
            what=f"recipe {name} has executor ray, and its image {lockfile.locked_name(recipe)} no engine.ray",
            expected="the version of Ray in the image, because vLLM's own images do not contain Ray",
            fix="name an image with Ray and its version as engine.ray, or use executor mp.",
        )
    if executor == "mp" and (row := cabling.of_recipe(recipe)) and row.verdict == cabling.REFUSED:
        yield RANKS_REFUSED(
            what=f"recipe {name} on {topology['nodes']} Sparks: {row.why} (rule {row.id}: {row.source})",
            expected="a combination of which a public record shows a start on a published image",
            fix=f"{row.fix}.",
        )
    if topology["nodes"] > rules.RAY_NODES and executor == "ray":
        yield RANKS_REFUSED(
            what=f"overrides give recipe {name} executor ray, and it is for {topology['nodes']} Sparks",
            expected="mp, because Ray serves two Sparks",
            fix="remove topology.executor from the overrides.",
        )
    if several and executor == "mp" and release(engine["version"]) < MP_NODES_SINCE:
        yield NO_MP_NODES(
            what=f"vLLM {engine['version']} of recipe {name} has no --nnodes",
            expected=f"{'.'.join(map(str, MP_NODES_SINCE))} or later for executor mp on several Sparks",
            fix="use executor ray on two Sparks, or a later engine.",
        )


def secret_refusals(recipe: Document, secrets: Mapping[str, bool]) -> Iterator[Refusal]:
    """Yield a refusal per secret that is no variable or is empty, and per secret of the recipe that is not set.

    `secrets`: name -> True if it has a value.
    """
    for name in sorted(secrets):
        if not VARIABLE.fullmatch(name):
            yield SECRET_NAME(
                what=f"vllm_secrets has the name {text.quoted(name)}",
                expected="the name of a variable: letters, digits and underscores, as text",
                fix="correct the name; YAML reads yes, no, on, off, true and false as no text.",
            )
    states = {name: "is empty" for name, has_value in sorted(secrets.items()) if not has_value}
    states |= {name: "is not set" for name in recipe.get("secrets", []) if name not in secrets}
    for name, state in states.items():
        yield SECRET_EMPTY(
            what=f"vllm_secrets.{name} {state}",
            expected="a value on one line, from vault or the environment",
            fix=f"set it (ansible-vault encrypt_string, or export {name} and lookup('env', '{name}')).",
        )
