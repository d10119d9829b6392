"""The files of a deployment on one host, and the record among them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from vllm_spark.core import paths, templates
from vllm_spark.core.host_file import File
from vllm_spark.core.types import Document, Record
from vllm_spark.deploy import exclusion, launch
from vllm_spark.inventory import spec as inventory_spec
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import host_layout
from vllm_spark.node.engine_api import CHAT
from vllm_spark.node.host_layout import LIVENESS, UNIT_DIR, UNIT_FILE
from vllm_spark.recipe import roles
from vllm_spark.sizing import memory

# The modules of the state of a deployment and of the limits of its unit.
OF_UNITS = (
    *("state_file.py", "edge_admin.py", "deployment_state.py", "state_writer.py"),
    *("host_layout.py", "unit_limits.py", "starts.py", "endings.py", "lease.py"),
)


def files(spec: Spec, drop_ins: Mapping[str, str], gate_request: Document, deployed: Record) -> list[File]:
    """Return the files of one rank in the order in which they are installed."""
    config = spec.config_dir
    return [
        *(_mounted_files(spec)),
        File(f"{config}/launch", launch.script(spec), "0755", syntax="sh"),
        File(f"{config}/gates.json", _json(gate_request)),
        File(f"{config}/deployed.json", _json(deployed)),
        *(_drop_in(name, text) for name, text in drop_ins.items()),
        *_programs(spec),
    ]


def new_record(spec: Spec, old: Record, fingerprint: str, toolkit: str, *, keeps_old: bool = True) -> Record:
    """Return the content of deployed.json. It names the toolkit that installed the launch until the launch changes.

    `keeps_old`: the old launch becomes the previous one. Otherwise the one before it stays the previous one."""
    same = old.get("launch") == fingerprint
    recipe = spec.recipe
    kept: Record = {**old}
    kept.pop("previous", None)
    previous = old.get("previous") if same or not keeps_old else kept
    if previous and previous.get("launch") == fingerprint:
        previous = None
    record: Record = {
        "deployment": spec.deployment.name,
        "rank": spec.rank,
        "recipe": recipe["name"],
        "recipe_sha256": spec.recipe_sha256,
        "image": f"{recipe['image']['repository']}:{recipe['image']['tag']}",
        "digest": spec.digest,
        "engine": recipe["engine"]["version"],
        "model": f"{recipe['model']['repository']}@{recipe['model']['revision']}",
        "launch": fingerprint,
        # The fingerprint leaves out comments; this identifies the file, so that an edit on the host is noticed.
        "launch_sha256": hashlib.sha256(launch.script(spec).encode()).hexdigest(),
        "port": spec.deployment.port,
        "open": spec.open,
        "room": memory.requirement(recipe),
        "accepted_known_issues": list(spec.accepted),
        "toolkit": old.get("toolkit", toolkit) if same else toolkit,
        "previous": previous or None,
    }
    if spec.beside:
        record["beside"] = sorted(spec.beside)
    if spec.derived:
        record["derived"] = {"image": spec.derived.image, "inputs": spec.derived.inputs}
    return record


def _drop_in(name: str, text: str) -> File:
    return File(f"{exclusion.drop_in_folder(name)}/{exclusion.DROP_IN}", text)


def _programs(spec: Spec) -> Iterator[File]:
    """Yield the units and their programs, the same text on every host. liveness.json comes last: the timer probes a
    host that has it."""
    yield File(UNIT_FILE, launch.unit_file())
    yield _unit(host_layout.GAVE_UP_UNIT)
    yield from switch_program()
    yield File(host_layout.STATE_PROGRAM, (paths.NODE / "unit_events.py").read_text(encoding="utf-8"), "0755")
    if spec.group:
        yield from supervisor()
    if spec.in_turn:
        yield from _package(host_layout.MODULES, ("turn.py",))
        yield File(host_layout.TURN_PROGRAM, (paths.NODE / "take_turn.py").read_text(encoding="utf-8"), "0755")
    if spec.rank == 0:
        yield File(LIVENESS, (paths.NODE / "liveness.py").read_text(encoding="utf-8"), "0755")
        for name in ("vllm-liveness@.service", "vllm-liveness@.timer"):
            yield _unit(name)
        probe = {
            **api_place(spec),
            **({} if (role := roles.of(spec.recipe)) == CHAT else {"role": role}),
            "model": spec.recipe["model"]["served_name"],
            "deadline_s": spec.recipe["gates"]["ready"]["deadline_s"],
        }
        yield File(f"{spec.config_dir}/liveness.json", _json(probe))


def _unit(name: str) -> File:
    """Return a unit whose text is the same everywhere."""
    return File(f"{UNIT_DIR}/{name}", templates.unchanged(name))


def api_place(spec: Spec) -> dict[str, object]:
    """Return where programs of the host reach the API: socket of a closed engine, address and port of an open one."""
    if spec.socket:
        return {"socket": spec.socket}
    return {"address": spec.deployment.local_address, "port": spec.deployment.port}


def switch_program() -> Iterator[File]:
    """Yield vllm-switch, after the modules that it shares with liveness."""
    yield from modules()
    yield File(host_layout.SWITCH_PROGRAM, exclusion.switch_program(), "0755")


def modules() -> Iterator[File]:
    """Yield the modules by which liveness and vllm-switch reach an engine and the edge."""
    yield from _package(host_layout.MODULES, ("unix_http.py", "engine_api.py", "neighbours.py", *OF_UNITS))


def notify_program() -> Iterator[File]:
    """Yield the program that tells the owner about troubles, after its modules, with its unit and its timer."""
    yield from modules()
    yield from _package(host_layout.MODULES, ("troubles.py", "delivery.py", "certificate.py"))
    yield File(host_layout.NOTIFY, (paths.NODE / "notify.py").read_text(encoding="utf-8"), "0755")
    yield from map(_unit, (host_layout.NOTIFY_UNIT, host_layout.NOTIFY_TIMER))


def lend_program() -> Iterator[File]:
    """Yield the program that lends memory and brings deployments back, with what must know of a lease, its unit and its
    timer."""
    yield from switch_program()
    yield File(host_layout.STATE_PROGRAM, (paths.NODE / "unit_events.py").read_text(encoding="utf-8"), "0755")
    yield File(host_layout.LEND, (paths.NODE / "lend.py").read_text(encoding="utf-8"), "0755")
    yield from map(_unit, (host_layout.LEASE_UNIT, host_layout.LEASE_TIMER))


def metrics_modules() -> Iterator[File]:
    """Yield the modules of the program that writes figures."""
    yield from modules()
    yield from _package(host_layout.MODULES, ("certificate.py",))


def module_folders() -> list[str]:
    """Return the folders of these modules, parents before children."""
    folder = host_layout.MODULES
    return [host_layout.PROGRAM_DIR, folder, f"{folder}/vllm_spark", f"{folder}/vllm_spark/node"]


def _package(folder: str, modules: Sequence[str]) -> Iterator[File]:
    """Yield the package, otherwise empty, that programs import modules of the toolkit from."""
    for package in ("vllm_spark", "vllm_spark/node"):
        yield File(f"{folder}/{package}/__init__.py", "")
    for name in modules:
        yield File(f"{folder}/vllm_spark/node/{name}", (paths.NODE / name).read_text(encoding="utf-8"))


def supervisor() -> Iterator[File]:
    """Yield the modules of the supervisor as a package of their own, and last the program that starts them."""
    folder = host_layout.SUPERVISOR_MODULES
    yield from _package(folder, (*OF_UNITS, "turn.py"))
    for module in sorted((paths.NODE / "supervise").glob("*.py")):
        yield File(f"{folder}/vllm_spark/node/supervise/{module.name}", module.read_text(encoding="utf-8"))
    yield File(host_layout.SUPERVISOR, (paths.NODE / "supervise_launcher.py").read_text(encoding="utf-8"), "0755")


def supervisor_folders() -> list[str]:
    """Return the folders of the supervisor's modules, parents before children."""
    folder = host_layout.SUPERVISOR_MODULES
    return [folder, f"{folder}/vllm_spark", f"{folder}/vllm_spark/node", f"{folder}/vllm_spark/node/supervise"]


def _mounted_files(spec: Spec) -> Iterator[File]:
    for mount in spec.recipe.get("mounts", []):
        if mount["from"] == "toolkit":
            yield File(inventory_spec.mount_source(spec, mount), spec.files[mount["path"]])


def _json(document: Mapping[str, object]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
