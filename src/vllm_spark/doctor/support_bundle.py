"""`collect`: the texts of a host become one archive on this machine, with the doctor's findings as its first file.

The host sends texts without their secrets (plugins/modules/vllm_collect_logs.py). Their sizes and names are checked
here again. Only the *.log files of an archive are diagnosed, also by `vllm-spark doctor ARCHIVE`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import math
import os
import re
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.run_command import typed
from vllm_spark.doctor import command, last_words
from vllm_spark.doctor.command import BUNDLE_SUFFIX, LOG_SUFFIX, MANIFEST
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import Judgement
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.places import Place
from vllm_spark.node.deployment_state import SERVING, json_object

BUNDLE_NOT_WRITTEN = register("bundle-not-written", runbook="bundle-not-written")

FINDINGS, FINDINGS_JSON = "FINDINGS.txt", "findings.json"
PRIVATE = 0o600

# Upper limit of the unpacked texts of a host. The module stops at a quarter of it.
MOST_BYTES = 64 << 20
# Suffix of logs of the previous run or boot: their faults may be repaired.
PREVIOUS = f"-previous{LOG_SUFFIX}"
STOPPED = "inactive"  # ActiveState of a stopped unit; a unit that failed or gave up is "failed"
CLOCK_SKEW_S = 5.0
PAIR = 2  # hosts
NO_PLACES: Mapping[str, Place] = MappingProxyType({})
_GZIP = 16 + zlib.MAX_WBITS
_NAME = re.compile(r"(?:[\w@+:-][\w.@+:-]*/){0,8}[\w@+:-][\w.@+:-]*")


class UnitState(TypedDict):
    """The properties of a deployment's unit, as systemctl show prints them."""

    ActiveState: str
    SubState: str
    Result: str
    NRestarts: str


class Manifest(TypedDict):
    """The module's manifest of a collection. `time` is the host's clock at the end of its work, `weak_secrets` are
    names."""

    time: float
    deployments: Mapping[str, UnitState]
    weak_secrets: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Collected:
    """The answer of a host: texts by their path, and the manifest."""

    files: Mapping[str, str]
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings of a host's current logs, and of earlier logs: previous runs and boots, and stopped deployments."""

    current: Judgement
    earlier: Judgement
    current_logs: Sequence[Log]
    earlier_logs: Sequence[Log]


@dataclass(frozen=True, slots=True)
class CollectRun:
    """One collection: the inventory's name of the host, this machine's toolkit, the times of the request and of the
    answer (seconds since the epoch), and where the logs are from."""

    host: str
    toolkit: str
    requested_at: float
    answered_at: float
    places: Mapping[str, Place] = field(default_factory=dict)


def prepare(folder: Path) -> None:
    """Create the folder and check that it is writable, before any host is read. Raises RefusedError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RefusedError([_not_written(folder, error)]) from error


def unpack(packed: str) -> Collected:
    """Unpack the module's answer. Raises ValueError if it is not one."""
    try:
        expander = zlib.decompressobj(_GZIP)
        raw = expander.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the host's answer cannot be unpacked: {error}") from error
    if not expander.eof:
        raise ValueError(f"the host's answer is cut off, or has more than {MOST_BYTES >> 20} MiB")
    document = json.loads(raw)
    files, manifest = document["files"], document["manifest"]
    if invalid := [name for name in files if not _NAME.fullmatch(name) or name in {FINDINGS, FINDINGS_JSON, MANIFEST}]:
        raise ValueError(f"the host's answer has files with invalid names: {', '.join(invalid[:3])}")
    return Collected({name: str(text) for name, text in files.items()}, manifest)


def places(collected: Collected, host: str, variables: Mapping[str, Any], deployments: object) -> dict[str, Place]:
    """Return where the logs of a host are from, by the deployment. `variables` are the host's, `deployments` is
    vllm_deployments, not validated."""
    hosts_of = dict(_hosts_of(deployments))
    return {
        name: Place.of_host(
            host,
            variables,
            deployment=name,
            hosts=hosts_of.get(name, (host,)),
            image=str(json_object(collected.files.get(f"deployments/{name}/gates.json", "")).get("image") or ""),
            judged=_judged(collected.files, name),
        )
        for name in collected.manifest["deployments"]
    }


def _hosts_of(deployments: object) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (name, hosts) of each entry of vllm_deployments that has both."""
    for entry in deployments if isinstance(deployments, list) else []:
        hosts = entry.get("hosts") if isinstance(entry, dict) else None
        if isinstance(hosts, list):
            yield str(entry.get("name")), [str(host) for host in hosts]


def _judged(files: Mapping[str, str], name: str) -> bool:
    """Return True if the gate garbage has found the answers good since the deployment serves."""
    state = last_words.of_files(files.items()).get(name)
    last = json_object(files.get(f"deployments/{name}/judged.jsonl", "").strip().rpartition("\n")[2])
    with contextlib.suppress(ValueError, KeyError, TypeError):
        serves_since = state["since"] if state and state["state"] == SERVING else math.inf
        return "garbage" in last["gates"]["held"] and datetime.fromisoformat(last["time"]).timestamp() >= serves_since
    return False


def examine(collected: Collected, known: Mapping[str, Place] = NO_PLACES) -> Examination:
    """Return the doctor's findings. `known` is where the logs are from (`places`)."""
    stopped = tuple(
        f"deployments/{name}/"
        for name, unit in collected.manifest["deployments"].items()
        if unit["ActiveState"] == STOPPED
    )
    current: list[Log] = []
    earlier: list[Log] = []
    for name, text in collected.files.items():
        if name.endswith(LOG_SUFFIX):
            stream = io.BytesIO(text.encode("utf-8", "replace"))
            place = command.place_of(name, known)
            log = command.judged(name, stream, engine=command.is_engine_log(name), place=place)
            (earlier if name.endswith(PREVIOUS) or name.startswith(stopped) else current).append(log)
    return Examination(judge(current), judge(earlier), current, earlier)


def lines(examination: Examination) -> Iterator[str]:
    """Yield the findings as lines for the operator."""
    yield from command.lines(examination.current, examination.current_logs)
    if examination.earlier.findings or examination.earlier.unrecognised:
        yield "Before that (an earlier run or boot, or a stopped deployment; it may be repaired):"
        yield from (f"   {line}" for line in command.lines(examination.earlier, examination.earlier_logs))


def report_lines(collected: Collected, examination: Examination, run: CollectRun, path: Path) -> Iterator[str]:
    """Yield what the play prints for one host: its deployments, the findings and the path of the bundle."""
    yield from units(collected)
    found = lines(examination)
    restarted = ", ".join(name for name, unit in collected.manifest["deployments"].items() if _restarts(unit))
    if restarted and not (examination.current.findings or examination.current.unrecognised):
        next(found)  # "no finding" would contradict the restarts
        yield (
            f"{restarted} was restarted, and no line of the logs explains why. Fix: read liveness.log and the journals "
            "in the bundle. See docs/runbooks/engine-hangs.md"
        )
    yield from found
    count = len(list(notes(collected, run)))
    aside = f"; {FINDINGS} in it has {count} note{'s' * (count != 1)} on missing or unusual parts" if count else ""
    yield f"bundle: {path} ({path.stat().st_size / 1024:.0f} KiB, {len(collected.files)} files){aside}"


def units(collected: Collected) -> Iterator[str]:
    """Yield one line per deployment of the host."""
    deployments = collected.manifest["deployments"]
    if not deployments:
        yield "no deployment on this host"
    words = last_words.of_files(collected.files.items())
    for name, unit in deployments.items():
        result = f", result {unit['Result']}" if unit["Result"] not in ("success", "") else ""
        restarts = f", {_restarts(unit)} restarts" if _restarts(unit) else ""
        word = f"{last_words.said(words[name])}; its unit: " if name in words else ""
        yield f"{name}: {word}{_of_unit(unit)}{result}{restarts}"


def states(collected: Collected) -> dict[str, str]:
    """Return the state of each deployment of the host, of one without a written state that of its unit."""
    words = last_words.of_files(collected.files.items())
    units = collected.manifest["deployments"].items()
    return {name: words[name]["state"] if name in words else _of_unit(unit) for name, unit in units}


def _of_unit(unit: UnitState) -> str:
    return f"{unit['ActiveState'] or 'unknown'} ({unit['SubState']})"


def _restarts(unit: UnitState) -> str:
    """Return the number of restarts, or nothing for none."""
    return "" if unit["NRestarts"] == "0" else unit["NRestarts"]


def notes(collected: Collected, run: CollectRun) -> Iterator[str]:
    """Yield what is missing from the archive, and what to know when reading it."""
    manifest = collected.manifest
    # The host reads its clock at the end of its work, so every time between request and answer is right.
    late, early = run.requested_at - manifest["time"], manifest["time"] - run.answered_at
    if max(late, early) > CLOCK_SKEW_S:
        side = "behind" if late > early else "ahead of"
        yield f"the clock of the host is {max(late, early):.0f} s {side} this machine's"
    for name in manifest["weak_secrets"]:
        yield f"{name} is too short or too plain to be searched in texts: it is masked only beside its name"
    yield from manifest["notes"]


def write(folder: Path, collected: Collected, examination: Examination, run: CollectRun) -> Path:
    """Write the archive atomically, with mode 0600, and return its path. Raises RefusedError."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(run.answered_at))
    host = re.sub(r"[^A-Za-z0-9._-]", "_", run.host)
    path = folder / f"collect-{host}-{stamp}{BUNDLE_SUFFIX}"
    part = f".collect-{host}@"
    try:
        # Ansible kills its workers on Ctrl-C, so an earlier run may have left a partial file.
        for leftover in folder.glob(f"{part}*.part"):
            leftover.unlink()
        # mkstemp creates the file with mode 0600.
        handle, name = tempfile.mkstemp(dir=folder, prefix=part, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for member, text in _members(collected, examination, run):
                    _add(archive, member, text, run.answered_at)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise RefusedError([_not_written(folder, error)]) from error
    return path


def pairs(deployments: object, bundles: Mapping[str, str], known: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line per deployment of several Sparks of which one was read: all archives, and the command that diagnoses
    them together.

    `deployments` is vllm_deployments, not validated. `bundles` are paths by host, `known` the states of the deployments
    of each host by their names."""
    for name, hosts in _hosts_of(deployments):
        if len(hosts) < PAIR or not any(name in known.get(host, ()) for host in hosts):
            continue
        title = (
            f"{name} is {', '.join(f'{known[host][name]} on {host}' for host in hosts if name in known.get(host, ()))}"
        )
        if missing := [host for host in hosts if host not in bundles]:
            again = typed(f"ansible-playbook collect.yml -l {','.join(hosts)}")
            yield f"{title}, and there is no bundle of {' and '.join(missing)}. Next: {again}"
        else:
            paths, all_ = " ".join(bundles[host] for host in hosts), "Both" if len(hosts) == PAIR else "All"
            yield f"{title}. {all_}, root cause first: vllm-spark doctor {paths}"


def _members(collected: Collected, examination: Examination, run: CollectRun) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of each file, those for people first."""
    yield FINDINGS, "\n".join(_front_page(collected, examination, run)) + "\n"
    findings = {
        **command.to_json(examination.current, examination.current_logs),
        "before": command.to_json(examination.earlier, examination.earlier_logs),
    }
    yield FINDINGS_JSON, json.dumps(findings, indent=2) + "\n"
    about = {"inventory_host": run.host, "toolkit": run.toolkit, "asked": run.requested_at, "answered": run.answered_at}
    about |= {"places": {name: asdict(place) for name, place in run.places.items()}}
    yield MANIFEST, json.dumps({**collected.manifest, **about}, indent=2, sort_keys=True) + "\n"
    yield from sorted(collected.files.items(), key=lambda item: (item[0].startswith("host/"), item[0]))


def _front_page(collected: Collected, examination: Examination, run: CollectRun) -> Iterator[str]:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(run.answered_at))
    yield f"{run.host}, {moment}, vllm-spark {run.toolkit}"
    yield from units(collected)
    yield ""
    yield from lines(examination)
    remarks = list(notes(collected, run))
    if remarks:
        yield from ("", "Missing parts and remarks:", *(f" - {note}" for note in remarks))
    yield ""
    yield f"Secrets are masked. {MANIFEST} has versions and times. Only logs end in {LOG_SUFFIX}; times in UTC."


def _add(archive: tarfile.TarFile, name: str, text: str, moment: float) -> None:
    data = text.encode("utf-8", "replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), PRIVATE, int(moment)
    archive.addfile(member, io.BytesIO(data))


def _not_written(folder: Path, error: OSError) -> Refusal:
    return BUNDLE_NOT_WRITTEN(
        what=f"nothing can be written to {folder} on this machine: {error.strerror}",
        expected="a writable folder on a disk with free space",
        fix="name another, -e vllm_report_dir=FOLDER, or free some space.",
    )
