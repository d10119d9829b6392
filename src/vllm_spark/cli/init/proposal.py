"""The deployments of a new inventory: the recipes that were named, or one for the use of the owner that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.core import near_names
from vllm_spark.core import table as text_table
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.core.units import GB
from vllm_spark.inventory import deployment, link_config
from vllm_spark.inventory.links import HostFabric
from vllm_spark.recipe import loader, proposed
from vllm_spark.sizing import budget, uses
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
    wish: Sequence[Document] | str | None, facts: Mapping[str, Facts], searched: Sequence[Path], talk: Conversation
) -> list[dict[str, Any]]:
    """Return the deployments. `wish` are recipes, or the word of a use. Raises RefusedError if one does not fit, or not
    all of them together."""
    recipes = [_proposed(wish, facts, searched, talk)] if wish is None or isinstance(wish, str) else wish
    entries, wanted = [], {}
    for name, recipe in zip(_names([recipe["name"] for recipe in recipes]), recipes, strict=True):
        hosts = groups(recipe, list(facts))
        for number, group in enumerate(hosts, 1):
            own = f"{name}-{number}" if len(hosts) > 1 else name
            entries.append({"name": own, "recipe": recipe["name"], "hosts": group})
            wanted[own] = recipe
    parts = _shared(entries, wanted, facts, talk)
    for entry in entries:
        reported = {host: facts[host] for host in entry["hosts"]}
        if refusals := uses.forecast_of(parts[entry["name"]], uses.USES[0], reported).refusals:
            raise RefusedError(refusals)
    return entries


def _names(recipes: Sequence[str]) -> list[str]:
    """Return the name of a deployment of each recipe: its first word, or all of it if another one has that word too."""
    words = [word[0] if (word := re.match("[a-z]+", recipe)) else "model" for recipe in recipes]
    return [
        deployment.name_for(recipe) if words.count(word) > 1 else word
        for word, recipe in zip(words, recipes, strict=True)
    ]


def _shared(
    entries: Sequence[Mapping[str, Any]],
    recipes: Mapping[str, Document],
    facts: Mapping[str, Facts],
    talk: Conversation,
) -> dict[str, Document]:
    """Return the recipes by deployment, with their part of the memory where they share a Spark. The owner reads who has
    what. Raises RefusedError with the same table if it is too much."""
    found = dict(recipes)
    for host, known in facts.items():
        total = known["memory"]["total"]
        names = sorted(entry["name"] for entry in entries if host in entry["hosts"])
        if len(names) > 1:
            budgets = budget.divided([budget.of_recipe(name, recipes[name]) for name in names], total)
            if refused := list(budget.refusals(host, budgets, total)):
                fix = "leave out one --recipe, or name a smaller one: `vllm-spark recipes` lists them."
                raise RefusedError(replace(refusal, fix=fix) for refusal in refused)
            for line in budget.table(host, budgets, total):
                talk.tell(line)
            found |= {one.name: budget.with_budget(recipes[one.name], one, total) for one in budgets}
    return found


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
