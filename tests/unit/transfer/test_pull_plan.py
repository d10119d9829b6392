"""Plans of a pull: downloads from outside once, then copies over the fabric, or refusals. Cases as data."""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded_hosts import load, record
from project_files import DATA, RECIPE_FOLDERS
from vllm_spark.core import paths, ports
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.recipe import loader, lockfile
from vllm_spark.transfer import jobs, plan, selection, weights
from vllm_spark.transfer import site as transfer_site
from vllm_spark.transfer.site import PulledModel, PullSite, PullSteps

PAIR = [{"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"]}]
SOLO = "gemma-4-26b-a4b-nvfp4-mtp"
SOLOS = [{"name": f"s{number}", "recipe": SOLO, "hosts": [f"spark{number}"]} for number in (1, 2)]
ALONE = SOLOS[:1]
DERIVED = "gpt-oss-20b"
DERIVED_FROM = lockfile.locked_name(loader.load(DERIVED, (paths.RECIPES,)).document)
IMAGE = "sha256:3"
Make = Callable[..., PullSite]


def inventory(deployments: list[dict[str, Any]], lock_file: Path | None = None) -> spec.Inventory:
    hosts = ("spark1", "spark2")
    return spec.Inventory(deployments, hosts, hosts, RECIPE_FOLDERS, lock_file)


@pytest.fixture
def site(facts: dict[str, Any], tmp_path: Path) -> Make:
    """Return a site. `has`: host -> a state of its models (whole, cut, unread) and `image`. `cable` is a record."""

    def _site(
        deployments: list[dict[str, Any]],
        has: Mapping[str, set[str]] | None = None,
        cable: str = "one-cable",
        free: int = 10**12,
        bundled: bool = False,
    ) -> PullSite:
        locked = tmp_path / "lock.yml"
        locked.write_text(json.dumps({"images": {DERIVED_FROM: {"digest": f"sha256:{'4' * 64}"}}}))
        resolved = {host: selection.of_host(inventory(deployments, locked), host) for host in ("spark1", "spark2")}
        by_host = {host: specs for host, specs in resolved.items() if specs}
        facts_by_host, states = {}, {}
        for host, specs in by_host.items():
            mine = (has or {}).get(host, set())
            facts_by_host[host] = {
                **copy.deepcopy(facts),
                "fabric": record(tmp_path / host, load(DATA / "fabric" / cable, host)),
                "disks": {specs[0].site.hub_dir: {"free": free}},
                "images": {specs[0].base: IMAGE} if "image" in mine else {},
            }
            states[host] = [state_of(model, mine) for model in transfer_site.models(specs)]
        return PullSite(by_host, states, facts_by_host, "test", bundled)

    return _site


def state_of(model: PulledModel, has: set[str]) -> dict[str, Any]:
    state = next((state for state in ("whole", "cut", "unread") if state in has), "")
    size = model.size or 1000
    empty = {
        "folder": model.folder,
        "commit": model.commit,
        "manifest": bool(state),
        "sha256": "0" * 64 if state else "",
        "wrong": [],
        "present": bool(state) or "copied" in has,
    }
    empty |= {"whole": 0, "unread": 0, "missing": 0, "partial": 0, "error": ""}
    if state == "cut":
        return empty | {"whole": size - 100, "missing": 100, "wrong": ["model.safetensors"]}
    return empty | ({state: size} if state else {}) | ({"partial": size} if "copied" in has else {})


def summary_of(mine: PullSteps) -> dict[str, Any]:
    """Return the steps of a Spark that are not empty, in short."""
    summary = {
        "hub_fetch": [source["repository"] for source in mine.hub_fetch.get("sources", [])],
        "bundle_fetch": [source["repository"] for source in mine.bundle_fetch.get("sources", [])],
        "serves": [
            (number, source["repository"])
            for number, copies in enumerate(mine.copy_rounds)
            for source in copies["server"].get("sources", [])
        ],
        "copies": [
            (number, entry["sender"], source["repository"])
            for number, copies in enumerate(mine.copy_rounds)
            for entry in copies["fetches"]
            for source in entry["sources"]
        ],
        "pulls": [pull["keep"] for pull in mine.images.pulls],
        "bundle_pulls": len(mine.bundle_pulls),
        "server": len(mine.images.server.get("repositories", {})),
        "takes": len(mine.images.takes),
    }
    return {name: value for name, value in summary.items() if value}


def steps(pull_site: PullSite) -> dict[str, PullSteps]:
    """Return the steps of every host. Each host computes its own."""
    return {host: plan.steps(pull_site, host) for host in pull_site.specs}


M = "owner/Model"
G, D = "unsloth/gemma-4-26B-A4B-it-NVFP4", "google/gemma-4-26B-A4B-it-assistant"
ALL = {"whole", "image"}

# name -> (deployments, state by host, arguments of `site`, steps by host)
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, set[str]], dict[str, Any], dict[str, dict[str, Any]]]] = {
    "nothing is present: one download, then a copy over the fabric": (
        PAIR,
        {},
        {},
        {
            "spark1": {"hub_fetch": [M], "serves": [(0, M)], "pulls": [True], "server": 1},
            "spark2": {"copies": [(0, "spark1", M)], "takes": 1},
        },
    ),
    "everything is present": (PAIR, {"spark1": ALL, "spark2": ALL}, {}, {"spark1": {}, "spark2": {}}),
    "a new worker copies from the head": (
        PAIR,
        {"spark1": ALL},
        {},
        {
            "spark1": {"serves": [(0, M)], "server": 1},
            "spark2": {"copies": [(0, "spark1", M)], "takes": 1},
        },
    ),
    "a new head copies from the worker": (
        PAIR,
        {"spark2": ALL},
        {},
        {
            "spark1": {"copies": [(0, "spark2", M)], "takes": 1},
            "spark2": {"serves": [(0, M)], "server": 1},
        },
    ),
    "a head with a damaged copy copies from the worker": (
        PAIR,
        {"spark1": {"cut", "image"}, "spark2": ALL},
        {},
        {"spark1": {"copies": [(0, "spark2", M)]}, "spark2": {"serves": [(0, M)]}},
    ),
    "both are damaged": (
        PAIR,
        {"spark1": {"cut", "image"}, "spark2": {"cut", "image"}},
        {},
        {"spark1": {"hub_fetch": [M], "serves": [(0, M)]}, "spark2": {"copies": [(0, "spark1", M)]}},
    ),
    "a model without a manifest is fetched from the hub": (
        PAIR,
        {"spark1": {"image"}, "spark2": {"image"}},
        {},
        {"spark1": {"hub_fetch": [M], "serves": [(0, M)]}, "spark2": {"copies": [(0, "spark1", M)]}},
    ),
    "one Spark, with a drafter": (ALONE, {}, {}, {"spark1": {"hub_fetch": [G, D], "pulls": [False]}}),
    "two servers of one model share a download": (
        SOLOS,
        {},
        {},
        {
            "spark1": {"hub_fetch": [G, D], "serves": [(0, G), (0, D)], "pulls": [True], "server": 1},
            "spark2": {"copies": [(0, "spark1", G), (0, "spark1", D)], "takes": 1},
        },
    ),
    "two servers without a cable": (
        SOLOS,
        {},
        {"cable": "no-cable"},
        {"spark1": {"hub_fetch": [G, D], "pulls": [False]}, "spark2": {"hub_fetch": [G, D], "pulls": [False]}},
    ),
    "a bundle replaces hub and registry": (
        PAIR,
        {},
        {"bundled": True},
        {
            "spark1": {"bundle_fetch": [M], "serves": [(0, M)], "bundle_pulls": 1, "server": 1},
            "spark2": {"copies": [(0, "spark1", M)], "takes": 1},
        },
    ),
    "a bundle for one Spark": (ALONE, {}, {"bundled": True}, {"spark1": {"bundle_fetch": [G, D], "bundle_pulls": 1}}),
}


@pytest.mark.parametrize("name", CASES)
def test_case(site: Make, name: str) -> None:
    deployments, has, more, expected = CASES[name]
    by_host = steps(site(deployments, has, **more))
    assert {host: summary_of(mine) for host, mine in by_host.items()} == expected


class Switched(PullSite):
    """Sparks on one switch: each reaches each."""

    def address(self, sender: str, receiver: str) -> str:
        del receiver
        return f"10.0.0.{sender[-1]}"


# Sparks that have the model -> (round, sender, receiver) of every copy
TREES: list[tuple[set[int], list[tuple[int, int, int]]]] = [
    (set(), [(0, 1, 2), (1, 1, 3), (1, 2, 4), (2, 1, 5), (2, 2, 6), (2, 3, 7), (2, 4, 8)]),
    ({8}, [(0, 8, 1), (1, 8, 2), (1, 1, 3), (2, 8, 4), (2, 1, 5), (2, 2, 6), (2, 3, 7)]),
    ({1, 2, 3, 4}, [(0, 1, 5), (0, 2, 6), (0, 3, 7), (0, 4, 8)]),
]


@pytest.mark.parametrize(("complete", "copies"), TREES)
def test_receivers_are_a_tree(complete: set[int], copies: list[tuple[int, int, int]]) -> None:
    hosts = tuple(f"spark{number}" for number in range(1, 9))
    deployments = [{"name": f"s{host[-1]}", "recipe": SOLO, "hosts": [host]} for host in hosts]
    site_spec = spec.Inventory(deployments, hosts, hosts, RECIPE_FOLDERS)
    specs = {host: selection.of_host(site_spec, host) for host in hosts}
    states = {
        host: [
            state_of(model, {"whole"} if int(host[-1]) in complete else set())
            for model in transfer_site.models(specs[host])
        ]
        for host in hosts
    }
    planned = {host: PullSteps() for host in hosts}
    weights.plan(Switched(specs, states, {}, "test"), planned)
    seen = [
        (number, int(entry["sender"][-1]), int(host[-1]))
        for number in range(len(planned["spark1"].copy_rounds))
        for host in hosts
        for entry in planned[host].copy_rounds[number]["fetches"]
    ]
    assert sorted(seen) == sorted(copies)
    assert len({len(mine.copy_rounds) for mine in planned.values()}) == 1
    for number, sender, _ in copies:
        server = planned[f"spark{sender}"].copy_rounds[number]["server"]
        assert (server["address"], len(server["sources"])) == (f"10.0.0.{sender}", 2)


def test_addresses_and_ports_are_those_of_the_fabric(site: Make) -> None:
    by_host = steps(site(PAIR))
    server, request = by_host["spark1"].copy_rounds[0]["server"], by_host["spark2"].copy_rounds[0]["fetches"][0]
    assert (server["address"], server["port"]) == (request["address"], request["port"])
    upstream = by_host["spark2"].images.takes[0]["upstream"]
    assert upstream is not None
    assert upstream["url"] == f"http://{server['address']}:{ports.IMAGES_PORT}"
    assert server["address"].startswith(("192.168.", "10.")) or "169.254" in server["address"]
    assert {ports.WEIGHTS_PORT, ports.IMAGES_PORT, ports.MIRROR_PORT} <= set(ports.PORTS)


def test_a_bundled_pull_has_no_request_to_the_outside(site: Make) -> None:
    for mine in steps(site(PAIR, bundled=True)).values():
        upstreams = [entry["upstream"] for entry in [*mine.bundle_pulls, *mine.images.takes]]
        assert all(entry and entry["url"].startswith("http://") for entry in upstreams)
        assert not mine.images.pulls
        assert not any(mine.images.server.get("repositories", {}).values())
        assert not mine.hub_fetch


def test_the_engines_image_fetches_and_its_argv_has_no_token(site: Make) -> None:
    mine = steps(site(ALONE))["spark1"]
    argv = " ".join(mine.hub_fetch_argv)
    assert "127.0.0.1:25093/docker.io/vllm/vllm-openai@sha256:" in argv
    assert "--env-file" in argv
    assert "HF_TOKEN" not in argv


# name -> (state by host, free bytes, part of the message or empty). The model and its drafter take 16.5 GiB.
DISKS = {
    "too full": ({}, 17 << 30, "has 17.0 GiB free"),
    "enough": ({}, 30 << 30, ""),
    "full, and nothing is missing": ({"spark1": ALL}, 0, ""),
    "full, and its files were copied by hand": ({"spark1": {"copied", "image"}}, 3 << 30, ""),
    "full, and a hundred bytes are missing": ({"spark1": {"cut", "image"}}, 1 << 30, "has 1.0 GiB free"),
}


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_is_too_small_is_refused(site: Make, name: str) -> None:
    has, free, text = DISKS[name]
    pull_site = site(ALONE, has, free=free)
    if not text:
        steps(pull_site)
        return
    with pytest.raises(RefusedError, match=text) as refused:
        steps(pull_site)
    assert [refusal.id for refusal in refused.value.refusals] == ["pull-disk"]


def test_a_spark_without_docker_is_refused(site: Make) -> None:
    pull_site = site(ALONE)
    pull_site.facts["spark1"]["docker"]["version"] = ""
    with pytest.raises(RefusedError) as refused:
        steps(pull_site)
    assert [refusal.id for refusal in refused.value.refusals] == ["no-docker"]


# name -> (state by host after the pull, ids of the refusals)
ENDS = {
    "all": ({"spark1": ALL, "spark2": ALL}, []),
    "not read": ({"spark1": {"unread", "image"}, "spark2": ALL}, ["pull-incomplete"]),
    "cut": ({"spark1": ALL, "spark2": {"cut", "image"}}, ["pull-incomplete"]),
    "no image": ({"spark1": ALL, "spark2": {"whole"}}, ["images-differ"]),
    "nothing": ({}, ["images-differ", "pull-incomplete", "pull-incomplete"]),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_result_of_a_pull_is_verified(site: Make, name: str) -> None:
    has, expected = ENDS[name]
    pull_site, ids = site(PAIR, has), []
    for host in pull_site.specs:
        try:
            plan.verify(pull_site, host)
        except RefusedError as error:
            ids += [refusal.id for refusal in error.refusals]
    assert sorted(ids) == expected


def test_two_images_of_one_name_are_refused(site: Make) -> None:
    pull_site = site(PAIR, {"spark1": ALL, "spark2": ALL})
    pull_site.facts["spark2"]["images"] = dict.fromkeys(pull_site.facts["spark2"]["images"], "sha256:other")
    with pytest.raises(RefusedError, match="spark2 has sha256:other"):
        plan.verify(pull_site, "spark1")


def test_a_bundle_contains_no_derived_image(site: Make) -> None:
    patched = [{"name": "p", "recipe": DERIVED, "hosts": ["spark1"]}]
    with pytest.raises(RefusedError) as refused:
        steps(bundled := site(patched, bundled=True))
    assert [refusal.id for refusal in refused.value.refusals] == ["bundle-derived"]
    derived = steps(replace(bundled, bundled=False))["spark1"].images
    assert derived.pulls
    assert derived.builds


# name -> (names that the operator gives, deployments of the pull)
NAMED = {
    "the active ones": ((), ["a"]),
    "an inactive one": (("b",), ["b"]),
    "all": (("all",), ["a", "b"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_pull_may_name_inactive_deployments(name: str) -> None:
    named, expected = NAMED[name]
    deployments = [
        {"name": "a", "recipe": SOLO, "hosts": ["spark1"]},
        {"name": "b", "recipe": SOLO, "hosts": ["spark1"], "active": False},
    ]
    specs = selection.of_host(inventory(deployments), "spark1", named)
    assert [entry.deployment.name for entry in specs] == expected


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(RefusedError, match="pull_deployments names nobody"):
        selection.of_host(inventory(ALONE), "spark1", ("nobody",))


def test_the_programs_import_only_placed_modules() -> None:
    programs = plan.programs()
    statement = re.compile(r"^from vllm_spark\.node(?:\.pull)?(?: import ([\w, ]+)|\.(\w+) import)", re.MULTILINE)
    matches = [name for text in programs.values() for match in statement.findall(text) for name in match if name]
    imported = {name.split(" as ")[0].strip() for names in matches for name in names.split(",")}
    assert {"hub_cache", "unix_http"} < imported
    assert imported <= {Path(path).stem for path in programs}


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
def test_the_headline_shows_the_progress(expected: str) -> None:
    assert jobs.headline(HEADLINES[expected]) == expected


@pytest.mark.parametrize("reason", [*jobs.REASONS, "unknown"])
def test_every_reason_of_a_job_has_a_fix_and_a_runbook(reason: str) -> None:
    refusal = jobs.failure("fetch-peer", "spark2", {"ok": False, "reason": reason, "detail": "the detail"})
    assert "on spark2 stopped: the detail — expected" in str(refusal)
    assert (paths.RUNBOOKS / f"{refusal.runbook}.md").is_file()


def test_the_state_of_every_model_is_requested_once(site: Make) -> None:
    specs = site(ALONE).specs["spark1"]
    request = plan.model_state_request([*specs, *(replace(entry) for entry in specs)])
    assert [source["repository"] for source in request["sources"]] == [G, D]


@pytest.mark.parametrize("job", jobs.JOBS.values(), ids=jobs.JOBS)
def test_every_job_has_its_function_on_the_host_and_a_valid_unit_name(job: jobs.Job) -> None:
    module = importlib.import_module(f"vllm_spark.node.pull.{job.module}")
    assert callable(getattr(module, job.function))
    assert f"vllm_spark/node/pull/{job.module}.py" in plan.programs()
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", job.id)


def test_the_roles_run_only_known_jobs() -> None:
    text = "".join(file.read_text() for file in (paths.ROOT / "roles").rglob("*.yml"))
    names = re.findall(r"^ +vllm_spark\.toolkit\.vllm_pull_job:\n +job: ([\w-]+)$", text, re.MULTILINE)
    assert set(names) == set(jobs.JOBS)


@pytest.mark.parametrize(
    ("has", "part"),
    [
        (set(), "comes from the hub, "),
        ({"cut"}, "comes from the hub, 0.0 GiB"),
        # `plan` says that the model is on the host: the pull says what it still needs the hub for.
        ({"copied"}, "is here without a manifest"),
    ],
)
def test_the_line_says_what_the_hub_is_needed_for(has: set[str], part: str, site: Make) -> None:
    mine = steps(site(ALONE, {"spark1": {"image", *has}}))["spark1"]
    assert any(part in line for line in mine.lines), mine.lines


@pytest.mark.parametrize("bundled", [False, True])
def test_a_recipe_without_a_size_has_an_unknown_one(bundled: bool, site: Make) -> None:
    made = site(ALONE, {"spark1": {"image"}}, bundled=bundled)
    recipe = made.specs["spark1"][0].recipe
    unsized = {**recipe, "model": {key: value for key, value in recipe["model"].items() if key != "size_bytes"}}
    specs = {"spark1": [replace(made.specs["spark1"][0], recipe=unsized)]}
    lines = "\n".join(steps(replace(made, specs=specs))["spark1"].lines)
    assert f"comes from the {'bundle' if bundled else 'hub'}, of unknown size; 931.3 GiB are free for it" in lines
    assert "0.0 GiB" not in lines


def test_a_built_image_is_pulled_by_the_digest_of_its_push() -> None:
    request = {"image": "x:1", "digest": ""}
    pushed = [
        {"skipped": True},
        {"result": {"image": "y:1", "digest": "no"}},
        {"result": {"image": "x:1", "digest": "d"}},
    ]
    assert jobs.with_digest(request, pushed)["digest"] == "d"
    assert jobs.with_digest({**request, "digest": "locked"}, pushed)["digest"] == "locked"
    assert jobs.with_digest(request, [])["digest"] == ""
