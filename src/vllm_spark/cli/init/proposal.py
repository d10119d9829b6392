"""The deployments of a new inventory: the recipe that was named, or one for the use of the owner that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.core import near_names
from vllm_spark.core import table as text_table
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.core.units import GB
from vllm_spark.inventory import link_config
from vllm_spark.inventory.links import HostFabric
from vllm_spark.recipe import loader, proposed
from vllm_spark.sizing import uses
from vllm_spark.sizing.forecast import Forecast
from vllm_spark.sizing.uses import Use

TOO_FEW_SPARKS = register("too-few-sparks", runbook="init-refused")
NOTHING_FITS = register("nothing-fits", runbook="plan-no-go")

SHOWN = 5


def groups(recipe: Document, hosts: Sequence[str]) -> list[list[str]]:
    """Return the hosts of each server: as many servers as the Sparks can hold. Raises RefusedError with too few."""
    nodes = recipe["topology"]["nodes"]
    if len(hosts) < nodes:
        raise TOO_FEW_SPARKS.error(
            what=f"recipe {recipe['name']} is for {nodes} Sparks, and init has {len(hosts)}: {', '.join(hosts)}",
            expected=f"{nodes} Sparks, or a recipe for one",
            fix=f"name them, the head first: `vllm-spark init --recipe {recipe['name']} {' '.join(['HOST'] * nodes)}`.",
        )
    return _in_parts(hosts, nodes)


def deployments(
    wish: Document | str | None, facts: Mapping[str, Facts], searched: Sequence[Path], talk: Conversation
) -> list[dict[str, Any]]:
    """Return the deployments. `wish` is a recipe, or the word of a use. Raises RefusedError if nothing fits."""
    recipe = _proposed(wish, facts, searched, talk) if wish is None or isinstance(wish, str) else wish
    hosts = groups(recipe, list(facts))
    for group in hosts:
        if refusals := uses.forecast_of(recipe, uses.USES[0], {name: facts[name] for name in group}).refusals:
            raise RefusedError(refusals)
    word = re.match("[a-z]+", recipe["name"])
    name = word[0] if word else "model"
    return [
        {"name": f"{name}-{number}" if len(hosts) > 1 else name, "recipe": recipe["name"], "hosts": group}
        for number, group in enumerate(hosts, 1)
    ]


def fabric(deployments: Sequence[Mapping[str, Any]], facts: Mapping[str, Facts]) -> dict[str, dict[str, Any]]:
    """Return the variable of the cable of each Spark of a pair whose cable has no address yet."""
    found: dict[str, dict[str, Any]] = {}
    for hosts in (each["hosts"] for each in deployments if len(each["hosts"]) == 2):  # noqa: PLR2004  a pair
        found |= link_config.proposed(*(HostFabric.parse(host, facts[host]["fabric"]) for host in hosts))
    return {host: {"vllm_fabric": value} for host, value in found.items()}


def _proposed(word: str | None, facts: Mapping[str, Facts], searched: Sequence[Path], talk: Conversation) -> Document:
    """Return the recipe that the owner takes, of those that fit."""
    words = {use.word: use for use in uses.USES}
    answer = word or talk.ask(f"Best for {', '.join(words)}", uses.USES[0].word)
    use = words[(near_names.close_names(answer, words) or [uses.USES[0].word])[0]]
    loaded = (loader.load(name, searched).document for name in loader.names(searched))
    # Any other recipe is the owner's own choice: --recipe NAME.
    documents = {one["name"]: one for one in loaded if proposed.is_proposed(one)}
    fits = _fitting(list(documents.values()), use, facts)
    _show(fits[:SHOWN], documents, use)
    return loader.load(talk.ask("Recipe", fits[0].name), searched).document


def _fitting(documents: Sequence[Document], use: Use, facts: Mapping[str, Facts]) -> list[Forecast]:
    """Return the forecasts of what fits: for two Sparks with a cable as one server, otherwise for each Spark alone."""
    cabled = all(HostFabric.parse(name, known["fabric"]).up for name, known in facts.items())
    for nodes in (2, 1) if cabled and len(facts) > 1 else (1,):
        parts = _in_parts(list(facts), nodes)
        if fits := uses.fitting(documents, use, [{name: facts[name] for name in part} for part in parts]):
            return fits
    raise NOTHING_FITS.error(
        what=f"no recipe for {use.name} fits {', '.join(facts)}",
        expected="a recipe that fits the free memory and disk",
        fix=Fix("vllm-spark recipes", "`vllm-spark init --recipe NAME` says what is missing for one of them."),
    )


def _show(fits: Sequence[Forecast], documents: Mapping[str, Document], use: Use) -> None:
    """Print the recipes that fit."""
    each, all_ = ("", "") if use.streams == 1 else (f", each of {use.streams} streams", ", together")
    columns = ("recipe", f"forecast tok/s{each}", f"reported tok/s{all_}", "download GB")
    table = Table(*columns, box=None, pad_edge=False)
    for fit in fits:
        figure, speed = uses.figure_of(documents[fit.name], use.streams), fit.prediction
        forecast = speed.cell() if speed else "reported only"
        table.add_row(fit.name, forecast, f"{figure['value']:g}" if figure else "?", f"{fit.download_bytes / GB:.1f}")
    text_table.show(table)


def _in_parts(hosts: Sequence[str], size: int) -> list[list[str]]:
    """Return the hosts in parts of a size. What is left over is in none."""
    return [list(hosts[first : first + size]) for first in range(0, len(hosts) - size + 1, size)]
