"""Everything that the toolkit has put on a host, in the order of removal. Pure.

Records and history, which identify the rest, are removed last, so that the next run completes an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.lifecycle.installed import (
    InstalledState,
    Item,
    find,
    image_items,
    known_images,
    launches,
    references,
    wanted_images,
    with_bases,
)

REMOVE_EVERYTHING = register("remove-everything", runbook="remove-refused")
REMOVE_WITHOUT_DOCKER = register("remove-without-docker", runbook="remove-refused")
REMOVE_UNKNOWN = register("remove-unknown", runbook="remove-refused")
REMOVE_LEFT = register("remove-left", runbook="remove-refused")

# Folders below /var/lib/vllm-spark that have an option or a verb of their own.
HUB, CACHE, FABRIC, HISTORY = "hub", "cache", "fabric", "history"
STATE_DIR = "/var/lib/vllm-spark"
# In /run/vllm-spark: this run holds it while it removes everything else, and gives it back at its end.
LOCK = "operator.lock"
CACHE_DIR = f"{STATE_DIR}/{CACHE}"


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """What the operator wants to remove: everything, or one deployment; models and caches only on request.
    `registry_image` is the image of the head's registry, which no record names."""

    deployment: str = ""
    weights: bool = False
    caches: bool = False
    limited: bool = False
    everything: bool = False
    registry_image: str = ""


def refusals(asked: RemoveRequest, boxes: Mapping[str, InstalledState]) -> Iterator[Refusal]:
    """Yield the reasons why nothing is removed on any host."""
    if not (asked.limited or asked.everything or asked.deployment):
        yield REMOVE_EVERYTHING(
            what=f"remove was asked for all of {', '.join(boxes)}",
            expected="-l HOST, -e deployment=NAME, or -e remove_all=true",
            fix="-l HOST, -e deployment=NAME, or -e remove_all=true. --check shows what would go.",
        )
    for host, held in boxes.items():
        if held["docker"]["error"] and (held["deployments"] or held["history"]):
            yield REMOVE_WITHOUT_DOCKER(
                what=f"Docker does not answer on {host}: {held['docker']['error']}",
                expected="a running Docker, because it knows the containers and images",
                fix=f"ssh {host} sudo systemctl start docker.",
            )
    here = {name for held in boxes.values() for name in (*held["deployments"], *held["history"])}
    if asked.deployment and asked.deployment not in here:
        yield REMOVE_UNKNOWN(
            what=f"there is no deployment {asked.deployment} on {', '.join(boxes)}",
            expected=f"one of {', '.join(sorted(here)) or 'none: the toolkit has no deployment there'}",
            fix="name one of these, or limit to another host.",
        )


def remaining_lines(host: str, items: Sequence[Item]) -> Refusal:
    """Return the refusal for items that remain after the removal."""
    return REMOVE_LEFT(
        what=f"{host} still has {'; '.join(item.line() for item in items)}",
        expected="no item of the toolkit",
        fix="see who has put it there again, then run the same once more.",
    )


def plan(held: InstalledState, asked: RemoveRequest) -> tuple[list[Item], list[str]]:
    """Return the items to remove, in this order, and a line for each one that stays, with its reason."""
    return _one(held, asked) if asked.deployment else _all(held, asked)


# --- the whole host


def _all(held: InstalledState, asked: RemoveRequest) -> tuple[list[Item], list[str]]:
    containers = [container["name"] for container in held["docker"]["containers"] if container["ours"]]
    registry = find(held, asked.registry_image) if asked.registry_image else None
    known = known_images(held) | ({asked.registry_image} if registry else set())
    images, left = image_items(held, known, set(), set(containers))
    weights, stay = _weights(held, asked, None)
    caches, also = _caches(held, asked, None)
    items = [
        *(Item("unit", unit, state) for unit, state in held["units"].items()),
        *(Item("container", name) for name in containers),
        *(Item("rules", program, "chain VLLM-SPARK") for program in held["chains"]),
        *images,
        *(Item("volume", volume["name"], "", volume["bytes"]) for volume in held["docker"]["volumes"]),
        *weights,
        *caches,
        *(Item("path", path) for path in (*held["unit_files"], *held["programs"])),
        *_reload(held),
        *(Item("path", entry["path"]) for entry in held["run"] if _base(entry) != LOCK),
        *_state(held),
        *(Item("path", held["config"]) for _ in [0] if held["config"]),
        *(Item("path", entry["path"], "", entry["bytes"]) for entry in held["state"] if _base(entry) == HISTORY),
        *(Item("empty", folder) for folder in ("/run/vllm-spark", f"{STATE_DIR}/{HUB}", CACHE_DIR, STATE_DIR)),
    ]
    others = [f"{path} stays: it does not say that vllm-spark has written it" for path in held["unit_files_of_others"]]
    return _nothing_but_tidying(items), [*left, *stay, *also, *others]


def _state(held: InstalledState) -> Iterator[Item]:
    """The folder is the toolkit's own, so whatever lies in it goes, but for what is asked for by name. The journal of
    the fabric is what the role of the fabric restores by."""
    for entry in held["state"]:
        if _base(entry) not in (HUB, CACHE, FABRIC, HISTORY):
            yield Item("path", entry["path"], "", entry["bytes"])


def _base(entry: Mapping[str, Any]) -> str:
    return str(entry["path"]).rpartition("/")[2]


def _reload(held: InstalledState) -> list[Item]:
    """systemd remembers units whose files are gone."""
    folders = sorted({path.rpartition("/")[0] for path in held["unit_files"] if path.rpartition("/")[0].endswith(".d")})
    tidy = [Item("empty", folder) for folder in folders]
    return [*tidy, Item("reload", "systemd")] if held["unit_files"] or held["units"] else []


def _nothing_but_tidying(items: Sequence[Item]) -> list[Item]:
    """Tidying alone is nothing to do: a box that the toolkit has never touched is left alone."""
    return list(items) if any(item.kind not in ("empty", "reload") for item in items) else []


# --- one deployment


def _one(held: InstalledState, asked: RemoveRequest) -> tuple[list[Item], list[str]]:
    name = asked.deployment
    others = [other for other in held["deployments"] if other != name]
    mine = held["deployments"].get(name)
    if mine is None and name not in held["history"]:
        return [], []
    named = {reference for launch in launches(held, (), [name]) for reference in references(launch["record"])}
    named |= {reference for entry in held["history"].get(name, []) for reference in references(entry)}
    kept = list(launches(held, (), others))
    containers = [c["name"] for c in held["docker"]["containers"] if c["name"] == f"vllm-{name}" and c["ours"]]
    images, left = image_items(held, with_bases(held, named), wanted_images(held, kept), {*containers})
    weights, stay = _weights(held, asked, name)
    caches, also = _caches(held, asked, name)
    pairs = any(launch["needs"]["pair"] for launch in kept)
    units = [f"vllm@{name}.service", f"vllm-liveness@{name}.timer", f"vllm-liveness@{name}.service"]
    files = [path for path in held["unit_files"] if f"@{name}.service" in path or f"@{name}.timer" in path]
    items = [
        *(Item("unit", unit, held["units"][unit]) for unit in units if unit in held["units"]),
        *(Item("container", container) for container in containers),
        # The rules are for the pair that started last; where no pair is left, nobody needs them.
        *(Item("rules", program, "chain VLLM-SPARK") for program in held["chains"] if not pairs),
        *images,
        *weights,
        *caches,
        *(Item("path", path) for path in files),
        *(_reload({"unit_files": files, "units": {unit for unit in units if unit in held["units"]}})),
        *(Item("path", entry["path"]) for entry in held["run"] if _base(entry) == name),
        *(Item("path", mine["folder"]) for _ in [0] if mine),
        *(Item("path", f"{STATE_DIR}/{HISTORY}/{name}.jsonl") for _ in [0] if name in held["history"]),
    ]
    shared = "units and programs that all deployments share stay: remove.yml without a deployment takes them"
    rest = [] if others else [shared]
    return _nothing_but_tidying(items), [*left, *stay, *also, *rest, *_peers(held, name)]


def _peers(held: InstalledState, name: str) -> list[str]:
    peers = {launch["needs"]["peer"] for launch in launches(held, (), [name])} - {""}
    return [f"{peer} has the other half of {name}: it waits for this one until it is removed, too" for peer in peers]


# --- what only goes when it is asked for


def _weights(held: InstalledState, asked: RemoveRequest, name: str | None) -> tuple[list[Item], list[str]]:
    """The models that launches of `name` mount and none of the others; without a name all of those, and those in the
    toolkit's own folder. A folder of the hub each, never the hub, which may be somebody's own."""
    mine = {path for launch in launches(held, (), name and [name]) for path in launch["needs"]["models"]}
    others = [other for other in held["deployments"] if name not in (None, other)]
    wanted = {path for launch in launches(held, (), others) for path in launch["needs"]["models"]}
    sizes = {entry["path"]: entry["bytes"] for entry in held["models"] if name is None}
    sizes |= {path: held["paths"][path] for path in mine - wanted if path in held["paths"]}
    found = [Item("path", path, "a model", size) for path, size in sorted(sizes.items())]
    if asked.weights:
        return found, [f"{path} stays: another deployment has it, too" for path in sorted(mine & wanted)]
    return [], [f"{item.name} stays, a model: -e remove_weights=true takes it" for item in found]


def _caches(held: InstalledState, asked: RemoveRequest, name: str | None) -> tuple[list[Item], list[str]]:
    """Compile caches: those in the toolkit's own folder, and wherever a launch says that its own is."""
    paths = {entry["path"]: entry["bytes"] for entry in held["caches"]}
    for deployment in held["deployments"]:
        for launch in launches(held, (), [deployment]):
            cache = launch["needs"]["cache"]
            # Named after the deployment, or it is nothing that the plan has written.
            if cache.endswith(f"/{deployment}") and cache in held["paths"]:
                paths[cache] = held["paths"][cache]
    mine = {path: size for path, size in paths.items() if name is None or path.rpartition("/")[2] == name}
    found = [Item("path", path, "a compile cache", size) for path, size in sorted(mine.items())]
    if asked.caches:
        return found, []
    return [], [f"{item.name} stays, a compile cache: -e remove_caches=true takes it" for item in found]
