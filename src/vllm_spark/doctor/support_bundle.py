"""`collect`: what a box gave becomes one archive on this machine, with the doctor's findings on top.

The box sends texts from which it has taken the secrets (plugins/modules/vllm_collect.py); its word is trusted for
neither their size nor their names. Of an archive only *.log is judged, by `vllm-spark doctor ARCHIVE` too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.doctor import command
from vllm_spark.doctor.command import BUNDLE_SUFFIX, LOG_SUFFIX
from vllm_spark.doctor.diagnosis import Judgement, Log, judge

BUNDLE_NOT_WRITTEN = register("bundle-not-written", runbook="bundle-not-written")

FINDINGS, FINDINGS_JSON, MANIFEST = "FINDINGS.txt", "findings.json", "manifest.json"
PRIVATE = 0o600

# What is unpacked of a box at most; the module stops at a quarter of it.
MOST_BYTES = 64 << 20
# Of the run, or the boot, before the newest: what failed then may be long repaired.
BEFORE = f"-previous{LOG_SUFFIX}"
STOPPED = "inactive"  # of a unit; one that failed or gave up is "failed"
CLOCK_SKEW_S = 5.0
PAIR = 2  # hosts
_GZIP = 16 + zlib.MAX_WBITS
_NAME = re.compile(r"(?:[\w@+:-][\w.@+:-]*/){0,8}[\w@+:-][\w.@+:-]*")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a box sent: texts by their path, and the module's manifest of them."""

    files: Mapping[str, str]
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Examination:
    """The doctor's word on the logs of a box: on those of now, and on those of the runs and the boot before and of
    deployments that somebody has stopped."""

    now: Judgement
    before: Judgement
    now_logs: Sequence[Log]
    before_logs: Sequence[Log]


@dataclass(frozen=True, slots=True)
class CollectRun:
    """What this machine knows of a collection: the inventory's name of the box, its own toolkit, when it asked and when
    it had the answer (seconds since the epoch)."""

    host: str
    toolkit: str
    asked: float
    answered: float


def prepare(folder: Path) -> None:
    """Make the folder and see that it can be written, before a box is asked. Raises RefusedError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RefusedError([_not_written(folder, error)]) from error


def unpack(packed: str) -> Collected:
    """Undo the module's packing. Raises ValueError for what is no answer of it."""
    try:
        expander = zlib.decompressobj(_GZIP)
        raw = expander.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the box's answer cannot be unpacked: {error}") from error
    if not expander.eof:
        raise ValueError(f"the box's answer is cut off, or of more than {MOST_BYTES >> 20} MiB")
    document = json.loads(raw)
    files, manifest = document["files"], document["manifest"]
    if odd := [name for name in files if not _NAME.fullmatch(name) or name in {FINDINGS, FINDINGS_JSON, MANIFEST}]:
        raise ValueError(f"the box's answer has files of odd names: {', '.join(odd[:3])}")
    return Collected({name: str(text) for name, text in files.items()}, manifest)


def examine(collected: Collected) -> Examination:
    """Ask the doctor."""
    stopped = tuple(
        f"deployments/{name}/"
        for name, unit in collected.manifest["deployments"].items()
        if unit["ActiveState"] == STOPPED
    )
    now: list[Log] = []
    before: list[Log] = []
    for name, text in collected.files.items():
        if name.endswith(LOG_SUFFIX):
            log = command.judged(name, io.BytesIO(text.encode("utf-8", "replace")))
            (before if name.endswith(BEFORE) or name.startswith(stopped) else now).append(log)
    return Examination(judge(now), judge(before), now, before)


def lines(found: Examination) -> Iterator[str]:
    """The findings as an operator reads them."""
    yield from command.lines(found.now, found.now_logs)
    if found.before.findings or found.before.unrecognised:
        yield "Before that (an earlier run or boot, or a deployment that was stopped; it may be repaired):"
        yield from (f"   {line}" for line in command.lines(found.before, found.before_logs))


def report_lines(collected: Collected, found: Examination, run: CollectRun, path: Path) -> Iterator[str]:
    """What the play prints of one box: its deployments, the findings, and where the bundle is."""
    yield from units(collected)
    yield from lines(found)
    noted = len(list(notes(collected, run)))
    aside = f"; {FINDINGS} in it has {noted} note{'s' * (noted != 1)} of what is missing or odd" if noted else ""
    yield f"bundle: {path} ({path.stat().st_size / 1024:.0f} KiB, {len(collected.files)} files){aside}"


def units(collected: Collected) -> Iterator[str]:
    """One line for each deployment that the box knows."""
    deployments = collected.manifest["deployments"]
    if not deployments:
        yield "no deployment on this box"
    for name, unit in deployments.items():
        result = f", result {unit['Result']}" if unit["Result"] not in ("success", "") else ""
        restarts = f", {unit['NRestarts']} restarts" if unit["NRestarts"] not in ("0", "") else ""
        yield f"{name}: {unit['ActiveState'] or 'unknown'} ({unit['SubState']}){result}{restarts}"


def notes(collected: Collected, run: CollectRun) -> Iterator[str]:
    """What is not in the archive, and what to know of what is."""
    manifest = collected.manifest
    # The box looks at its clock at the end of its work, so at any time up to the answer it is right.
    late, early = run.asked - manifest["time"], manifest["time"] - run.answered
    if max(late, early) > CLOCK_SKEW_S:
        side = "behind" if late > early else "ahead of"
        yield f"the clock of the box is {max(late, early):.0f} s {side} this machine's"
    for name in manifest["weak_secrets"]:
        yield f"{name} is too short or too plain a secret to be looked for in texts: it is masked beside its name alone"
    for path, left_out in manifest["left_out"].items():
        yield f"{path}: left out: {left_out}"
    yield from manifest["notes"]


def write(folder: Path, collected: Collected, found: Examination, run: CollectRun) -> Path:
    """Write the archive, readable by its owner alone, whole or not at all, and return its path. Raises RefusedError."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(run.answered))
    host = re.sub(r"[^A-Za-z0-9._-]", "_", run.host)
    path = folder / f"collect-{host}-{stamp}{BUNDLE_SUFFIX}"
    part = f".collect-{host}@"
    try:
        # Ansible ends its workers at once on Ctrl-C, so one may have left its part.
        for left in folder.glob(f"{part}*.part"):
            left.unlink()
        # mkstemp makes it 0600.
        handle, name = tempfile.mkstemp(dir=folder, prefix=part, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for member, text in _members(collected, found, run):
                    _add(archive, member, text, run.answered)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise RefusedError([_not_written(folder, error)]) from error
    return path


def pairs(deployments: object, bundles: Mapping[str, str], known: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """A line for each deployment of two Sparks of which a box was asked: both archives, and how to judge them as one.

    `deployments` is vllm_deployments as the inventory has it, which may be wrong in any way; `bundles` are paths by
    host, `known` the names of the deployments that each box knows."""
    for entry in deployments if isinstance(deployments, list) else []:
        name, hosts = (str(entry.get("name")), entry.get("hosts")) if isinstance(entry, dict) else ("", None)
        if not isinstance(hosts, list) or len(hosts) < PAIR or not any(name in known.get(host, ()) for host in hosts):
            continue
        said = f"{name} is {' and '.join(hosts)} together"
        if missing := [host for host in hosts if host not in bundles]:
            again = f"ansible-playbook collect.yml -l {','.join(hosts)}"
            yield f"{said}, and of {' and '.join(missing)} there is no bundle. Next: {again}"
        else:
            both = " ".join(bundles[host] for host in hosts)
            yield f"{said}. Both, root cause first: vllm-spark doctor {both}"


def _members(collected: Collected, found: Examination, run: CollectRun) -> Iterator[tuple[str, str]]:
    """(path, text) of the archive, what a person reads first, first."""
    yield FINDINGS, "\n".join(_front_page(collected, found, run)) + "\n"
    judged = {
        **command.to_json(found.now, found.now_logs),
        "before": command.to_json(found.before, found.before_logs),
    }
    yield FINDINGS_JSON, json.dumps(judged, indent=2) + "\n"
    about = {"inventory_host": run.host, "toolkit": run.toolkit, "asked": run.asked, "answered": run.answered}
    yield MANIFEST, json.dumps({**collected.manifest, **about}, indent=2, sort_keys=True) + "\n"
    yield from sorted(collected.files.items(), key=lambda item: (item[0].startswith("box/"), item[0]))


def _front_page(collected: Collected, found: Examination, run: CollectRun) -> Iterator[str]:
    yield f"{run.host}, {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(run.answered))}, vllm-spark {run.toolkit}"
    yield from units(collected)
    yield ""
    yield from lines(found)
    said = list(notes(collected, run))
    if said:
        yield from ("", "What is not here, and what to know:", *(f" - {note}" for note in said))
    yield ""
    yield f"Secrets are masked. Where each file comes from: {MANIFEST}. Logs alone end in {LOG_SUFFIX}; times in UTC."


def _add(archive: tarfile.TarFile, name: str, text: str, moment: float) -> None:
    data = text.encode("utf-8", "replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), PRIVATE, int(moment)
    archive.addfile(member, io.BytesIO(data))


def _not_written(folder: Path, error: OSError) -> Refusal:
    return BUNDLE_NOT_WRITTEN(
        what=f"nothing can be written to {folder} on this machine: {error.strerror}",
        expected="a folder that you may write, on a disk with room",
        fix="name another, -e vllm_report_dir=FOLDER, or make room.",
    )
