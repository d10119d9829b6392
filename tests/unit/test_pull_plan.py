"""Who gets what from where: from outside once, then over the fabric; or every reason why not. Cases as data."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, RECIPE_FOLDERS
from recorded_hosts import load, record

from vllm_spark.core import paths, ports
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.recipe import loader, lockfile
from vllm_spark.transfer import messages, plan, selection
from vllm_spark.transfer import site as transfer_site
from vllm_spark.transfer.site import PulledModel, PullSite, PullSteps

PAIR = [{"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"]}]
SOLO = "gemma-4-26b-a4b-nvfp4-mtp"
SOLOS = [{"name": f"s{number}", "recipe": SOLO, "hosts": [f"spark{number}"]} for number in (1, 2)]
ALONE = SOLOS[:1]
DERIVED = "gemma-4-26b-a4b-fp8-mtp-overlay"
DERIVED_FROM = lockfile.locked_name(loader.load(DERIVED, (paths.RECIPES,)).document)
IMAGE = "sha256:3"
Make = Callable[..., PullSite]


def inventory(deployments: list[dict[str, Any]], lock_file: Path | None = None) -> spec.Inventory:
    hosts = ("spark1", "spark2")
    return spec.Inventory(deployments, hosts, hosts, RECIPE_FOLDERS, lock_file)


@pytest.fixture
def site(facts: dict[str, Any], tmp_path: Path) -> Make:
    """A site: `has` says by host what is there, `whole` or `cut` models and the `image`; `cable` is a recorded one."""

    def _site(
        deployments: list[dict[str, Any]],
        has: Mapping[str, set[str]] | None = None,
        cable: str = "one-cable",
        free: int = 10**12,
        bundled: bool = False,
    ) -> PullSite:
        locked = tmp_path / "lock.yml"
        locked.write_text(json.dumps({"images": {DERIVED_FROM: {"digest": f"sha256:{'4' * 64}"}}}))
        found = {host: selection.of_host(inventory(deployments, locked), host) for host in ("spark1", "spark2")}
        wanted = {host: specs for host, specs in found.items() if specs}
        boxes, looks = {}, {}
        for host, specs in wanted.items():
            mine = (has or {}).get(host, set())
            boxes[host] = {
                **copy.deepcopy(facts),
                "fabric": record(tmp_path / host, load(DATA / "fabric" / cable, host)),
                "disks": {specs[0].site.hub_dir: {"free": free}},
                "images": {specs[0].base: IMAGE} if "image" in mine else {},
            }
            looks[host] = [look(model, mine) for model in transfer_site.models(specs)]
        return PullSite(wanted, looks, boxes, "test", bundled)

    return _site


def look(model: PulledModel, has: set[str]) -> dict[str, Any]:
    state = next((state for state in ("whole", "cut", "unread") if state in has), "")
    size = model.size or 1000
    empty = {"folder": model.folder, "commit": model.commit, "manifest": bool(state), "wrong": []}
    empty |= {"whole": 0, "unread": 0, "missing": 0, "partial": 0, "error": ""}
    if state == "cut":
        return empty | {"whole": size - 100, "missing": 100, "wrong": ["model.safetensors"]}
    return empty | ({state: size} if state else {})


def done(mine: PullSteps) -> dict[str, Any]:
    """The steps of a Spark, short: only those that there are."""
    short = {
        "fetch": [source["repository"] for source in mine.fetch.get("sources", [])],
        "load": [source["repository"] for source in mine.load.get("sources", [])],
        "give": [source["repository"] for source in mine.give.get("sources", [])],
        "take": [(entry["from"], source["repository"]) for entry in mine.take for source in entry["sources"]],
        "pulls": len(mine.pulls),
        "shelved": len(mine.shelved),
        "shelf": bool(mine.shelf),
        "over": len(mine.over),
    }
    return {name: value for name, value in short.items() if value}


def steps(asked: PullSite) -> dict[str, PullSteps]:
    """Of every host, as the tasks of each make them."""
    return {host: plan.steps(asked, host) for host in asked.wanted}


M = "owner/Model"
G, D = "unsloth/gemma-4-26B-A4B-it-NVFP4", "google/gemma-4-26B-A4B-it-assistant"
ALL = {"whole", "image"}

# (deployments, what there is, more) -> what each Spark does
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, set[str]], dict[str, Any], dict[str, dict[str, Any]]]] = {
    "nothing is here: once from outside, then over the fabric": (
        PAIR,
        {},
        {},
        {
            "spark1": {"fetch": [M], "give": [M], "shelved": 1, "shelf": True},
            "spark2": {"take": [("spark1", M)], "over": 1},
        },
    ),
    "everything is here": (PAIR, {"spark1": ALL, "spark2": ALL}, {}, {"spark1": {}, "spark2": {}}),
    "a new worker takes from the head": (
        PAIR,
        {"spark1": ALL},
        {},
        {"spark1": {"give": [M], "shelf": True}, "spark2": {"take": [("spark1", M)], "over": 1}},
    ),
    "a new head takes from the worker": (
        PAIR,
        {"spark2": ALL},
        {},
        {"spark1": {"take": [("spark2", M)], "over": 1}, "spark2": {"give": [M], "shelf": True}},
    ),
    "a head whose copy is damaged takes from the worker, and asks nobody outside": (
        PAIR,
        {"spark1": {"cut", "image"}, "spark2": ALL},
        {},
        {"spark1": {"take": [("spark2", M)]}, "spark2": {"give": [M]}},
    ),
    "both are damaged": (
        PAIR,
        {"spark1": {"cut", "image"}, "spark2": {"cut", "image"}},
        {},
        {"spark1": {"fetch": [M], "give": [M]}, "spark2": {"take": [("spark1", M)]}},
    ),
    "a model without a manifest is asked for at the hub": (
        PAIR,
        {"spark1": {"image"}, "spark2": {"image"}},
        {},
        {"spark1": {"fetch": [M], "give": [M]}, "spark2": {"take": [("spark1", M)]}},
    ),
    "one Spark, drafter and all": (ALONE, {}, {}, {"spark1": {"fetch": [G, D], "pulls": 1}}),
    "two servers of one model share a download": (
        SOLOS,
        {},
        {},
        {
            "spark1": {"fetch": [G, D], "give": [G, D], "shelved": 1, "shelf": True},
            "spark2": {"take": [("spark1", G), ("spark1", D)], "over": 1},
        },
    ),
    "two servers that no cable joins": (
        SOLOS,
        {},
        {"cable": "no-cable"},
        {"spark1": {"fetch": [G, D], "pulls": 1}, "spark2": {"fetch": [G, D], "pulls": 1}},
    ),
    "a bundle takes the place of outside": (
        PAIR,
        {},
        {"bundled": True},
        {
            "spark1": {"load": [M], "give": [M], "shelved": 1, "shelf": True},
            "spark2": {"take": [("spark1", M)], "over": 1},
        },
    ),
    "a bundle for one Spark": (ALONE, {}, {"bundled": True}, {"spark1": {"load": [G, D], "shelved": 1}}),
}


@pytest.mark.parametrize("name", CASES)
def test_case(site: Make, name: str) -> None:
    deployments, has, more, expected = CASES[name]
    found = steps(site(deployments, has, **more))
    assert {host: done(mine) for host, mine in found.items()} == expected


def test_addresses_and_ports_are_the_fabrics(site: Make) -> None:
    found = steps(site(PAIR))
    give, taken = found["spark1"].give, found["spark2"].take[0]
    assert (give["address"], give["port"]) == (taken["address"], taken["port"])
    assert found["spark2"].over[0]["behind"]["url"] == f"http://{give['address']}:{ports.IMAGES_PORT}"
    assert give["address"].startswith("192.168.") or give["address"].startswith("10.") or "169.254" in give["address"]
    assert {ports.WEIGHTS_PORT, ports.IMAGES_PORT, ports.MIRROR_PORT} <= set(ports.PORTS)


def test_without_outside_no_request_leads_there(site: Make) -> None:
    for mine in steps(site(PAIR, bundled=True)).values():
        behind = [entry["behind"] for entry in [*mine.shelved, *mine.over, mine.shelf] if entry]
        assert all(entry is None or entry["url"].startswith("http://") for entry in behind)
        assert not mine.fetch


def test_the_engines_own_image_fetches_and_no_token_is_in_its_words(site: Make) -> None:
    mine = steps(site(ALONE))["spark1"]
    words = " ".join(mine.fetch_words)
    assert "vllm/vllm-openai@sha256:" in words
    assert "--env-file" in words
    assert "HF_TOKEN" not in words


# (what there is, free bytes) -> a part of the message, or nothing. The model and its drafter take 16.5 GiB.
DISKS = {
    "too full": ({}, 17 << 30, "has 17.0 GiB free"),
    "enough": ({}, 30 << 30, ""),
    "full, and nothing has to come": ({"spark1": ALL}, 0, ""),
    "full, and a hundred bytes have to come": ({"spark1": {"cut", "image"}}, 1 << 30, "has 1.0 GiB free"),
}


@pytest.mark.parametrize("name", DISKS)
def test_the_disk_is_looked_at_first(site: Make, name: str) -> None:
    has, free, said = DISKS[name]
    asked = site(ALONE, has, free=free)
    if not said:
        steps(asked)
        return
    with pytest.raises(RefusedError, match=said) as refused:
        steps(asked)
    assert [refusal.id for refusal in refused.value.refusals] == ["pull-disk"]


def test_a_box_without_docker_is_refused(site: Make) -> None:
    asked = site(ALONE)
    asked.facts["spark1"]["docker"]["version"] = ""
    with pytest.raises(RefusedError) as refused:
        steps(asked)
    assert [refusal.id for refusal in refused.value.refusals] == ["no-docker"]


# what is there at the end -> ids of what is said
ENDS = {
    "all": ({"spark1": ALL, "spark2": ALL}, []),
    "not read": ({"spark1": {"unread", "image"}, "spark2": ALL}, ["pull-incomplete"]),
    "cut": ({"spark1": ALL, "spark2": {"cut", "image"}}, ["pull-incomplete"]),
    "no image": ({"spark1": ALL, "spark2": {"whole"}}, ["images-differ"]),
    "nothing": ({}, ["images-differ", "pull-incomplete", "pull-incomplete"]),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_judged(site: Make, name: str) -> None:
    has, expected = ENDS[name]
    asked, said = site(PAIR, has), []
    for host in asked.wanted:
        try:
            plan.proven(asked, host)
        except RefusedError as error:
            said += [refusal.id for refusal in error.refusals]
    assert sorted(said) == expected


def test_two_images_of_one_name_are_found(site: Make) -> None:
    asked = site(PAIR, {"spark1": ALL, "spark2": ALL})
    asked.facts["spark2"]["images"] = dict.fromkeys(asked.facts["spark2"]["images"], "sha256:other")
    with pytest.raises(RefusedError, match="spark2 has sha256:other"):
        plan.proven(asked, "spark1")


def test_a_bundle_holds_no_derived_image(site: Make) -> None:
    patched = [{"name": "p", "recipe": DERIVED, "hosts": ["spark1"]}]
    with pytest.raises(RefusedError) as refused:
        steps(asked := site(patched, bundled=True))
    assert [refusal.id for refusal in refused.value.refusals] == ["bundle-derived"]
    made = steps(replace(asked, bundled=False))["spark1"].made
    assert made["pull"]
    assert made["build"]


# deployments, names -> the names of those that are pulled for
NAMED = {
    "those that serve": ((), ["a"]),
    "one whose turn comes later": (("b",), ["b"]),
    "all": (("all",), ["a", "b"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_pull_may_be_for_what_comes_later(name: str) -> None:
    named, expected = NAMED[name]
    deployments = [
        {"name": "a", "recipe": SOLO, "hosts": ["spark1"]},
        {"name": "b", "recipe": SOLO, "hosts": ["spark1"], "active": False},
    ]
    found = selection.of_host(inventory(deployments), "spark1", named)
    assert [entry.deployment.name for entry in found] == expected


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(RefusedError, match="pull_deployments names nobody"):
        selection.of_host(inventory(ALONE), "spark1", ("nobody",))


def test_the_programs_import_nothing_that_is_not_placed() -> None:
    placed = plan.programs()
    named = re.compile(r"^from vllm_spark\.node\.pull(?: import ([\w, ]+)|\.(\w+) import)", re.MULTILINE)
    found = [name for text in placed.values() for match in named.findall(text) for name in match if name]
    imported = {name.split(" as ")[0].strip() for names in found for name in names.split(",")}
    assert "hub_cache" in imported
    assert imported <= {Path(path).stem for path in placed}


HEADLINES = {
    "copying 12.1 of 16.9 GB (71 %), 3.02 GB/s  00:04": {
        "phase": "copying",
        "done": 12_100_000_000,
        "total": 16_900_000_000,
        "seconds": 4.0,
        "note": "",
    },
    "starting  00:00": {},
    "serving, 0.00 GB/s (1 connections lost)  01:01": {"phase": "serving", "done": 1, "total": 0, "seconds": 61.0}
    | {"note": "1 connections lost"},
}


@pytest.mark.parametrize("expected", HEADLINES)
def test_progress_reads(expected: str) -> None:
    assert messages.job_headline(HEADLINES[expected]) == expected


@pytest.mark.parametrize("reason", [*messages.REASONS, "never heard of"])
def test_every_reason_of_a_job_has_a_fix_and_a_runbook(reason: str) -> None:
    said = messages.job_failure("take", "spark2", {"ok": False, "reason": reason, "said": "what it saw"})
    assert "on spark2 stopped: what it saw — expected" in str(said)
    assert (paths.RUNBOOKS / f"{said.runbook}.md").is_file()


def test_the_look_is_of_every_model_once(site: Make) -> None:
    specs = site(ALONE).wanted["spark1"]
    asked = plan.look_at([*specs, *(replace(entry) for entry in specs)])
    assert [source["repository"] for source in asked["sources"]] == [G, D]
