"""The rules of host_findings: facts of a host in, what was seen out. Pure.

Facts are those of plugins/modules/spark_facts.py with `host`. Every one of them is optional: of what a box does not
tell, and of facts recorded without them, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_spark.core.types import Facts
from vllm_spark.core.units import GB, gib
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe.hub_cache import snapshot
from vllm_spark.sizing import memory

# Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReason*).
CLOCKS_SET, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x2, 0x20, 0x40, 0x80
# Below it a clock is low because nothing asks for more; the doctor's signature begins here too.
LOADED_PERCENT = 90

UNKNOWN_AMOUNT = "an unknown amount"


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen, as on a line of a log, and the values of the texts."""

    line: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of data/host_findings.yml."""

    id: str
    cause: str
    fix: str
    runbook: str
    source: str
    of: str = ""
    pattern: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostContext:
    """A host of a deployment, and its peer where this host speaks for the pair."""

    name: str
    spec: Spec
    facts: Facts
    peer: str = ""
    peer_facts: Facts = field(default_factory=dict)

    @property
    def host(self) -> Facts:
        return self.facts.get("host") or {}

    @property
    def docker(self) -> Facts:
        return self.facts.get("docker") or {}

    @property
    def serves(self) -> bool:
        """Does a model server of ours run here? Then its memory is in every figure."""
        return bool(self.facts.get("running_units"))

    @property
    def needed(self) -> int:
        """Bytes of memory that a start takes."""
        return memory.needed_bytes(self.spec.recipe, self.facts["memory"]["total"])


Rule = Callable[[HostRule, HostContext], Iterator[Observation]]


def nvidia_smi(place: HostContext) -> Iterator[str]:
    """The lines of nvidia-smi that the doctor has signatures for."""
    gpu = _gpu(place.facts)
    power, load, clock = (gpu.get(key) for key in ("power_w", "load_percent", "sm_mhz"))
    if load is not None and load >= LOADED_PERCENT and power is not None and clock is not None:
        yield f"{power:.2f} W, {load:.0f} %, {clock:.0f} MHz"
    reasons = gpu.get("event_reasons") or 0
    for bit, name in ((HW_POWER_BRAKE, "HW Power Brake Slowdown"), (HW_THERMAL, "HW Thermal Slowdown")):
        if reasons & bit:
            yield f"{name} : Active"


def _gpu(facts: Facts) -> Facts:
    return next(iter(facts.get("gpus") or []), {})


def _version(facts: Facts, of: str) -> str:
    """A version by its name in the file, or nothing."""
    found = {"kernel": facts.get("kernel"), "driver": _gpu(facts).get("driver")}
    found["bios"] = (facts.get("host") or {}).get("bios")
    return str(found[of] or "")


def _known_version(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    version = _version(place.facts, entry.of)
    if re.fullmatch(entry.pattern, version):
        yield Observation(f"{entry.of} {version}", {"version": version})


def _differs(of: str) -> Rule:
    def rule(_: HostRule, place: HostContext) -> Iterator[Observation]:
        yield from _unequal(of, _version(place.facts, of), _version(place.peer_facts, of))

    return rule


def _nic_firmware(_: HostRule, place: HostContext) -> Iterator[Observation]:
    mine, other = (
        ", ".join(sorted({version for version in nics.values() if version}))
        for nics in ((facts.get("host") or {}).get("nics") or {} for facts in (place.facts, place.peer_facts))
    )
    yield from _unequal("fw_ver", mine, other)


def _unequal(what: str, mine: str, other: str) -> Iterator[Observation]:
    if mine and other and mine != other:
        yield Observation(f"{what} {mine} and {other}", {"mine": mine, "other": other})


def _ollama(_: HostRule, place: HostContext) -> Iterator[Observation]:
    if models := place.host.get("ollama"):
        names = ", ".join(model["name"] for model in models)
        seen = "; ".join(f"{model['name']} {gib(model['bytes'])}" for model in models)
        yield Observation(f"/api/ps {seen}", {"models": names, "amount": gib(sum(model["bytes"] for model in models))})


def _processes(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    """Each container, unit or process once, with all that it holds."""
    ours = place.docker.get("containers") or {}
    owners: dict[tuple[str, str], list[Facts]] = {}
    for process in place.host.get("processes") or []:
        owner = _owner(process)
        if owner[1] not in ours and not (_is_ollama(process) and place.host.get("ollama")):
            owners.setdefault(owner, []).append(process)
    for (kind, name), group in owners.items():
        sizes = [process["bytes"] for process in group]
        known = None not in sizes
        if not known or sum(sizes) >= entry.limits["used_bytes"]:
            pids = ", ".join(str(process["pid"]) for process in group)
            amount = gib(sum(sizes)) if known else UNKNOWN_AMOUNT
            yield Observation(
                f"compute-apps {group[0]['process']} (pid {pids}), {amount}",
                {
                    "name": f"{group[0]['process']} (pid {pids})" if kind == "process" else f"{kind} {name}",
                    "amount": amount,
                    "how": _how(kind, name, place.name, pids),
                },
            )


def _owner(process: Facts) -> tuple[str, str]:
    """(container, unit or process, its name). What a user started is below the unit of his whole session, which nobody
    wants stopped."""
    unit = str(process.get("unit") or "")
    if process.get("container"):
        return "container", str(process["container"])
    if unit and not unit.startswith(("user@", "session-")):
        return "unit", unit
    return "process", str(process["process"])


def _is_ollama(process: Facts) -> bool:
    return any("ollama" in str(process.get(key) or "") for key in ("process", "unit", "container"))


def _how(kind: str, name: str, host: str, pids: str) -> str:
    """How its memory comes back."""
    if kind == "container":
        return f"`ssh {host} sudo docker stop {name}`"
    if kind == "unit":
        return f"`ssh {host} sudo systemctl stop {name}`"
    return f"end it the way it was started (a notebook: shut its kernel down), or `ssh {host} kill {pids}`"


def _containers(_: HostRule, place: HostContext) -> Iterator[Observation]:
    """Those with the GPU that are not ours and that no process has named."""
    named = {_owner(process)[1] for process in place.host.get("processes") or []}
    ours = place.docker.get("containers") or {}
    for name in place.docker.get("on_gpu") or []:
        if name not in ours and name not in named and not (place.host.get("ollama") and "ollama" in name):
            yield Observation(f"docker inspect {name}", {"name": name})


def _page_cache(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    found = place.facts["memory"]
    free, cached = found.get("free"), found.get("page_cache")
    if free is None or cached is None or place.serves:
        return
    if cached >= entry.limits["cache_bytes"] and free < place.needed <= found["available"]:
        yield Observation(
            f"MemFree {gib(free)}, MemAvailable {gib(found['available'])}",
            {"cache": gib(cached), "needed": gib(place.needed), "free": gib(free)},
        )


def _swap(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    total, free = (place.facts["memory"].get(key) for key in ("swap_total", "swap_free"))
    swappiness = place.host.get("swappiness")
    if total is not None and free is not None and total - free >= entry.limits["used_bytes"]:
        yield Observation(
            f"SwapTotal {gib(total)}, SwapFree {gib(free)}",
            {
                "used": gib(total - free),
                "total": gib(total),
                "swappiness": "unknown" if swappiness is None else str(swappiness),
            },
        )


def _kernel_keeps(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    """Pages of a kexec handover are free CMA pages that the total of CMA does not count."""
    total, free = (place.facts["memory"].get(key) for key in ("cma_total", "cma_free"))
    if total is not None and free is not None and free - total >= entry.limits["kept_bytes"]:
        yield Observation(
            f"CmaTotal {gib(total)}, CmaFree {gib(free)}",
            {"kernel": str(place.facts.get("kernel")), "kept": gib(free - total)},
        )


def _clock_reason(bit: int) -> Rule:
    def rule(_: HostRule, place: HostContext) -> Iterator[Observation]:
        reasons = _gpu(place.facts).get("event_reasons") or 0
        if reasons & bit:
            yield Observation(f"clocks_event_reasons.active {reasons:#018x}")

    return rule


def _persistence(_: HostRule, place: HostContext) -> Iterator[Observation]:
    if _gpu(place.facts).get("persistence") is False:
        yield Observation("persistence_mode Disabled")


def _disks(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    """Each folder whose disk has less than what is about to be written there, or than the box itself needs. Folders of
    one disk are told once, for the largest."""
    told = set()
    disks = [(path, disk, *_to_write(entry, place, path)) for path, disk in _measured(place)]
    for path, disk, what, size in sorted(disks, key=lambda found: -found[3]):
        if disk["free"] < size and (disk["total"], disk["free"]) not in told:
            told.add((disk["total"], disk["free"]))
            values = {"path": path, "free": _gb(disk["free"]), "what": what, "needed": _gb(size)}
            yield Observation(f"{path} {_gb(disk['free'])} free of {_gb(disk['total'])}", values)


def _measured(place: HostContext) -> Iterator[tuple[str, Facts]]:
    if place.docker.get("root") and place.docker.get("disk"):
        yield place.docker["root"], place.docker["disk"]
    yield from (place.facts.get("disks") or {}).items()


def _to_write(entry: HostRule, place: HostContext, path: str) -> tuple[str, int]:
    """(what is about to be written there, its bytes)."""
    spec, rest = place.spec, ("what a server writes beside it (compile caches, logs)", entry.limits["rest_bytes"])
    if path == place.docker.get("root") and (place.facts.get("images") or {}).get(spec.base) is None:
        return "the image, while it is unpacked,", entry.limits["image_bytes"]
    model = snapshot(spec.site.hub_dir, spec.recipe["model"])
    if path == spec.site.hub_dir and not (place.facts.get("paths") or {}).get(model):
        return max(rest, ("the model", memory.file_bytes(spec.recipe)), key=lambda written: written[1])
    return rest


def _clock_off(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    off = ahead(place.facts)
    if off and _beyond(off, entry.limits["seconds"]):
        side = "ahead of" if off[0] > 0 else "behind"
        yield Observation(f"time {_interval(off)}", {"ahead": f"{_about(off)} {side}"})


def _clocks_apart(entry: HostRule, place: HostContext) -> Iterator[Observation]:
    mine, other = ahead(place.facts), ahead(place.peer_facts)
    if mine and other:
        apart = (mine[0] - other[1], mine[1] - other[0])
        if _beyond(apart, entry.limits["seconds"]):
            yield Observation(f"time {_interval(apart)}", {"apart": _about(apart)})


def ahead(facts: Facts) -> tuple[float, float] | None:
    """(least, most) seconds that a box's clock is ahead of the controller's. The box read its clock twice, after it was
    asked and before the answer was there, so the truth is between; None where that cannot be told."""
    box, asked = facts.get("time"), facts.get("asked")
    if not box or not asked:
        return None
    least, most = box["ended"] - asked["after"], box["began"] - asked["before"]
    # A clock that was set meanwhile tells nothing.
    return (least, most) if least <= most else None


def _beyond(between: tuple[float, float], limit: float) -> bool:
    """Is it surely more than the limit, one way or the other?"""
    return between[0] > limit or between[1] < -limit


def _about(between: tuple[float, float]) -> str:
    return f"{abs(sum(between) / 2):.1f} s"


def _interval(between: tuple[float, float]) -> str:
    return f"between {between[0]:+.1f} s and {between[1]:+.1f} s"


def _reboot(_: HostRule, place: HostContext) -> Iterator[Observation]:
    packages: Sequence[str] | None = place.host.get("reboot")
    if packages is not None:
        yield Observation("/run/reboot-required", {"packages": ", ".join(packages) or "packages that it does not name"})


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


# Every entry of the file has its rule.
RULES: Mapping[str, Rule] = {
    "ollama-loaded": _ollama,
    "gpu-process": _processes,
    "gpu-container": _containers,
    "page-cache": _page_cache,
    "swap-in-use": _swap,
    "kernel-keeps-memory": _kernel_keeps,
    "kernel-6.17.0-1008": _known_version,
    "driver-590": _known_version,
    "bios-old": _known_version,
    "gpu-clocks-set": _clock_reason(CLOCKS_SET),
    "gpu-hot": _clock_reason(SW_THERMAL),
    "persistence-off": _persistence,
    "disk-nearly-full": _disks,
    "clock-off": _clock_off,
    "clocks-apart": _clocks_apart,
    "driver-differs": _differs("driver"),
    "kernel-differs": _differs("kernel"),
    "bios-differs": _differs("bios"),
    "nic-firmware-differs": _nic_firmware,
    "reboot-pending": _reboot,
}
