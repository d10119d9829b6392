"""The items of the toolkit on a host, in the order of removal. Pure.

Records and history identify the other items. They are removed last, so that the next run completes an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import text
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.lifecycle.installed import (
    QUIET,
    InstalledState,
    Item,
    image_items,
    known_images,
    lacks_docker,
    launches,
    referenced_images,
    references,
    with_bases,
)
from vllm_spark.node.host_layout import (
    BOOT,
    CACHE_DIR,
    FABRIC_DIR,
    FIREWALL_UNIT,
    HISTORY_DIR,
    HUB_DIR,
    LOCK,
    RUN_DIR,
    STARTS_DIR,
    STARTS_LOCK,
    STATE_DIR,
)

REMOVE_EVERYTHING = register("remove-everything", runbook="remove-refused")
REMOVE_WITHOUT_DOCKER = register("remove-without-docker", runbook="remove-refused")
REMOVE_UNKNOWN = register("remove-unknown", runbook="remove-refused")
REMOVE_LEFT = register("remove-left", runbook="remove-refused")

# Folders below STATE_DIR that have an option or a verb of their own.
OWN_FOLDERS = (HUB_DIR, CACHE_DIR, FABRIC_DIR, HISTORY_DIR)


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """The request of the operator: remove everything, or one deployment. `weights` and `caches` include models and
    compile caches. `preview`: nothing is removed (--check)."""

    deployment: str = ""
    weights: bool = False
    caches: bool = False
    limited: bool = False
    everything: bool = False
    preview: bool = False


def refusals(request: RemoveRequest, hosts: Mapping[str, InstalledState]) -> Iterator[Refusal]:
    """Yield the reasons why nothing is removed on any host."""
    if not (request.limited or request.everything or request.deployment or request.preview):
        yield REMOVE_EVERYTHING(
            what=f"remove was asked for all of {', '.join(hosts)}",
            expected="-l HOST, -e deployment=NAME, or -e remove_all=true",
            fix="-l HOST, -e deployment=NAME, or -e remove_all=true. --check shows what would go.",
        )
    for host, state in hosts.items():
        if lacks_docker(state):
            yield REMOVE_WITHOUT_DOCKER(
                what=f"Docker does not answer on {host}: {state['docker']['error']}",
                expected="a running Docker, because it knows the containers and images",
                fix=Fix(f"ssh -t {host} sudo systemctl start docker"),
            )
    here = {name for state in hosts.values() for name in (*state["deployments"], *state["history"])}
    if request.deployment and request.deployment not in here:
        yield REMOVE_UNKNOWN(
            what=f"there is no deployment {request.deployment} on {', '.join(hosts)}",
            expected=text.one_of(sorted(here), "a deployment; the toolkit has none there"),
            fix="name one of these, or limit to another host.",
        )


def remaining_lines(host: str, items: Sequence[Item]) -> Refusal:
    """Return the refusal for items that remain after the removal."""
    return REMOVE_LEFT(
        what=f"{host} still has {'; '.join(item.line() for item in items)}",
        expected="no item of the toolkit",
        fix="find the program that created it again, then repeat the command.",
    )


def plan(state: InstalledState, request: RemoveRequest) -> tuple[list[Item], list[str]]:
    """Return the items to remove, in this order, and a line for each one that stays, with its reason."""
    return _one(state, request) if request.deployment else _all(state, request)


# --- the whole host


def _all(state: InstalledState, request: RemoveRequest) -> tuple[list[Item], list[str]]:
    containers = [container["name"] for container in state["docker"]["containers"] if container["ours"]]
    images, left = image_items(state, known_images(state), set(), set(containers))
    weights, stay = _weights(state, request, None)
    caches, also = _caches(state, request, None)
    items = [
        # The firewall table goes last: it guards what the others have not stopped yet.
        *(Item("unit", unit, state["units"][unit]) for unit in sorted(state["units"], key=FIREWALL_UNIT.__eq__)),
        *(Item("container", name) for name in containers),
        *images,
        *weights,
        *caches,
        *(Item("path", path) for path in (*state["unit_files"], *state["programs"])),
        *_reload(state),
        # This run holds the lock during the removal and releases it at its end.
        *(Item("path", entry["path"]) for entry in state["run"] if not _is(entry, LOCK)),
        *_state(state),
        *_traces(state),
        *(Item("path", state["config"]) for _ in [0] if state["config"]),
        *(Item("account", name, "the user and group of the edge") for name in state["accounts"]),
        *(Item("path", entry["path"], "", entry["bytes"]) for entry in state["state"] if _is(entry, HISTORY_DIR)),
        *(Item("empty", folder) for folder in (RUN_DIR, HUB_DIR, CACHE_DIR, STATE_DIR)),
    ]
    others = [f"{path} stays: it does not say that vllm-spark has written it" for path in state["unit_files_of_others"]]
    return _nothing_but_tidying(items), [*left, *stay, *also, *others, *_packages(state)]


def _packages(state: InstalledState) -> Iterator[str]:
    """Yield the line about packages that deploys have installed. Purging haproxy also removes its account. An older
    version, which installed haproxy with others, has left no record."""
    names = " ".join(state["packages"] or (["haproxy"] if state["accounts"] else []))
    if names:
        yield f"packages that deploys installed stay, as others may use them by now: sudo apt-get purge {names}"


def _state(state: InstalledState) -> Iterator[Item]:
    """Yield the entries of the state folder that have no option of their own. The folder belongs to the toolkit. The
    role of the fabric needs the journal of the fabric to restore the network."""
    for entry in state["state"]:
        if not any(_is(entry, folder) for folder in OWN_FOLDERS):
            yield Item("path", entry["path"], "", entry["bytes"])


def _traces(state: InstalledState) -> Iterator[Item]:
    """Yield what the stop of a deployment's unit writes. A start of release 0.1.0 has had none of it before."""
    if any(unit.startswith("vllm@") for unit in state["units"]):
        yield from (Item("trace", path) for path in (STARTS_DIR, f"{RUN_DIR}/{BOOT}", f"{RUN_DIR}/{STARTS_LOCK}"))


def _base(entry: Mapping[str, Any]) -> str:
    return str(entry["path"]).rpartition("/")[2]


def _is(entry: Mapping[str, Any], path: str) -> bool:
    """Return True if an entry has the name of this file or folder. The root of the host is a test's own."""
    return _base(entry) == path.rpartition("/")[2]


def _reload(state: InstalledState) -> list[Item]:
    """Return the items that make systemd forget units whose files are removed."""
    folders = sorted({path.rpartition("/")[0] for path in state["unit_files"]})
    tidy = [Item("empty", folder) for folder in folders if folder.endswith(".d")]
    return [*tidy, Item("reload", "systemd")] if state["unit_files"] or state["units"] else []


def _nothing_but_tidying(items: Sequence[Item]) -> list[Item]:
    """Return the items; empty if they only tidy up, so that a host without the toolkit stays unchanged."""
    return list(items) if any(item.kind not in QUIET for item in items) else []


# --- one deployment


def _one(state: InstalledState, request: RemoveRequest) -> tuple[list[Item], list[str]]:
    name = request.deployment
    others = [other for other in state["deployments"] if other != name]
    own = state["deployments"].get(name)
    if own is None and name not in state["history"]:
        return [], []
    named = {reference for launch in launches(state, (), [name]) for reference in references(launch["record"])}
    named |= {reference for entry in state["history"].get(name, []) for reference in references(entry)}
    kept = list(launches(state, (), others))
    containers = [c["name"] for c in state["docker"]["containers"] if c["name"] == f"vllm-{name}" and c["ours"]]
    images, left = image_items(state, with_bases(state, named), referenced_images(state, kept), {*containers})
    weights, stay = _weights(state, request, name)
    caches, also = _caches(state, request, name)
    units = [f"vllm@{name}.service", f"vllm-liveness@{name}.timer", f"vllm-liveness@{name}.service"]
    units.append(f"vllm-gave-up@{name}.service")
    files = [path for path in state["unit_files"] if f"@{name}.service" in path or f"@{name}.timer" in path]
    items = [
        *(Item("unit", unit, state["units"][unit]) for unit in units if unit in state["units"]),
        *(Item("container", container) for container in containers),
        *images,
        *weights,
        *caches,
        *(Item("path", path) for path in files),
        *(_reload({"unit_files": files, "units": {unit for unit in units if unit in state["units"]}})),
        *(Item("path", entry["path"]) for entry in state["run"] if _base(entry) == name),
        *(Item("path", own["folder"]) for _ in [0] if own),
        *(Item("path", path) for path in state["states"] if _base({"path": path}) in (f"{name}.jsonl", f"{name}.json")),
        *(Item("trace", f"{STARTS_DIR}/{name}.json") for _ in [0] if own),
        *(Item("path", f"{HISTORY_DIR}/{name}.jsonl") for _ in [0] if name in state["history"]),
    ]
    without = "ansible-playbook remove.yml without a deployment takes them"
    shared = f"units and programs that all deployments share stay: {without}"
    rest = [] if others else [shared]
    return _nothing_but_tidying(items), [*left, *stay, *also, *rest, *_peers(state, name)]


def _peers(state: InstalledState, name: str) -> list[str]:
    peers = dict.fromkeys(peer for launch in launches(state, (), [name]) for peer in launch["needs"]["peers"])
    part = "the other half" if len(peers) == 1 else "another rank"
    return [f"{peer} has {part} of {name}: it waits for this one until it is removed, too" for peer in peers]


# --- removed only with an option


def _weights(state: InstalledState, request: RemoveRequest, name: str | None) -> tuple[list[Item], list[str]]:
    """Return the models to remove, and a line for each one that stays. With a name: the models that only its launches
    mount. Without a name: all mounted models and those in the folder of the toolkit. An item is the folder of one
    model, never the hub itself, because other programs may use the hub."""
    mounted = {path for launch in launches(state, (), name and [name]) for path in launch["needs"]["models"]}
    others = [other for other in state["deployments"] if name not in (None, other)]
    mounted_by_others = {path for launch in launches(state, (), others) for path in launch["needs"]["models"]}
    sizes = {entry["path"]: entry["bytes"] for entry in state["models"] if name is None}
    sizes |= {path: state["paths"][path] for path in mounted - mounted_by_others if path in state["paths"]}
    items = [Item("path", path, "a model", size) for path, size in sorted(sizes.items())]
    if request.weights:
        return items, [f"{path} stays: another deployment has it, too" for path in sorted(mounted & mounted_by_others)]
    return [], [f"{item.name} stays, a model: -e remove_weights=true takes it" for item in items]


def _caches(state: InstalledState, request: RemoveRequest, name: str | None) -> tuple[list[Item], list[str]]:
    """Return the compile caches to remove, and a line for each one that stays. They are in the folder of the toolkit or
    at the path in a launch."""
    paths = {entry["path"]: entry["bytes"] for entry in state["caches"]}
    for deployment in state["deployments"]:
        for launch in launches(state, (), [deployment]):
            cache = launch["needs"]["cache"]
            # The plan names every cache after its deployment. A folder with another name is not the toolkit's.
            if cache.endswith(f"/{deployment}") and cache in state["paths"]:
                paths[cache] = state["paths"][cache]
    selected = {path: size for path, size in paths.items() if name is None or path.rpartition("/")[2] == name}
    items = [Item("path", path, "a compile cache", size) for path, size in sorted(selected.items())]
    if request.caches:
        return items, []
    return [], [f"{item.name} stays, a compile cache: -e remove_caches=true takes it" for item in items]
