"""State of the models in a hub cache: present, verified, missing. Runs on the host.

python3 -m vllm_spark.node.pull.hub_cache    reads {"hub", "sources"} from stdin, prints the list of `model_states`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Literal, TypedDict

from vllm_spark.node.pull.adoption import READERS, adopt
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import LinkError, sha256_of
from vllm_spark.node.pull.job import JobProgress
from vllm_spark.node.pull.model_files import PART, FileEntry, Manifest, ManifestError, ModelRef, Source, source_of


class HubRequest(TypedDict, total=False):
    """Models of one hub cache. `verify` also reads files that have a stamp. `hub_here` is the hub's path on the host
    if the program runs in a container."""

    hub: str
    hub_here: str
    sources: list[ModelRef]
    verify: bool


class ModelState(TypedDict):
    """State of one model. `sha256` is that of its manifest.

    Sizes are in bytes; `partial` is the part of `missing` that is already on the disk. Of a model without a manifest it
    is what the snapshot has.
    """

    folder: str
    commit: str
    manifest: bool
    sha256: str
    error: str
    files: int
    size: int
    whole: int
    unread: int
    missing: int
    partial: int
    wrong: list[str]
    present: bool


def file_state(source: Source, entry: FileEntry, checksums: ChecksumCache) -> Literal["whole", "unread", "missing"]:
    """Return whole (verified before), unread (size matches, never read) or missing (absent, or of another size)."""
    path = source.file(entry)
    try:
        size = path.stat().st_size
    except OSError:
        return "missing"
    if size != entry.size:
        return "missing"
    return "whole" if checksums.is_verified(path, entry.sha256) else "unread"


def model_states(hub: str, refs: Sequence[ModelRef]) -> list[ModelState]:
    """Return the state of each model without reading a model file. Raises ManifestError for an invalid reference."""
    return [_model_state(source_of(hub, ref)) for ref in refs]


def _model_state(model: Source) -> ModelState:
    state = ModelState(
        folder=model.folder,
        commit=model.commit,
        manifest=False,
        sha256="",
        error="",
        files=0,
        size=0,
        whole=0,
        unread=0,
        missing=0,
        partial=0,
        wrong=[],
        present=model.snapshot.is_dir() and any(model.snapshot.iterdir()),
    )
    try:
        manifest = model.stored_manifest()
        if manifest:
            model.accept(manifest)
    except ManifestError as error:
        manifest, state["error"] = None, str(error)
    if manifest is None:
        state["partial"] = sum(file.stat().st_size for file in model.snapshot.rglob("*") if file.is_file())
        return state
    state["sha256"] = manifest.sha256
    checksums = ChecksumCache.load(model.root)
    for entry in manifest.files:
        kind = file_state(model, entry, checksums)
        state[kind] += entry.size
        if kind == "missing":
            state["partial"] += _allocated_bytes(model, entry)
            state["wrong"].append(entry.path)
    state["manifest"], state["files"], state["size"] = True, len(manifest.files), manifest.size
    return state


def _allocated_bytes(model: Source, entry: FileEntry) -> int:
    """Return the bytes that a partial copy has already allocated on the disk."""
    with suppress(OSError):
        status = model.blob(entry).with_name(f"{entry.blob}{PART}").stat()
        return min(status.st_blocks * 512, entry.size)
    return 0


def remove_bad_files(
    model: Source,
    manifest: Manifest,
    *,
    verify: bool,
    on_read: Callable[[int], None] | None = None,
    stop: Event | None = None,
) -> list[FileEntry]:
    """Delete and return the files that differ from the manifest: absent, of another size, or of another sha256.

    What the hub cache's shared store has of them becomes the model's own. `verify` also reads files that have a stamp.
    `on_read` receives the size of each block. Raises JobError, StoppedError.
    """
    checksums = ChecksumCache.load(model.root)
    adopt(model, manifest.files, checksums, on_read, stop)
    for entry in manifest.files:
        link_existing_blob(model, entry)
    states = {entry: file_state(model, entry, checksums) for entry in manifest.files}
    to_read = [entry for entry, state in states.items() if state == "unread" or (verify and state == "whole")]

    def is_right(entry: FileEntry) -> bool:
        path = model.file(entry)
        try:
            if sha256_of(model.open(entry), on_read, stop) != entry.sha256:
                return False
        except (OSError, LinkError):
            return False
        checksums.set(path, entry.sha256)
        return True

    with ThreadPoolExecutor(READERS) as pool:
        bad = [entry for entry, right in zip(to_read, pool.map(is_right, to_read), strict=True) if not right]
    missing = [entry for entry, state in states.items() if state == "missing"]
    for entry in [*bad, *missing]:
        model.remove(entry)
    if to_read or missing:
        checksums.save()
    return sorted([*bad, *missing], key=lambda entry: entry.path)


def link_existing_blob(model: Source, entry: FileEntry) -> None:
    """Link a blob that exists already: from another commit, or from a copy that ended before it was linked."""
    blob = model.blob(entry)
    if not model.file(entry).exists() and blob.is_file() and blob.stat().st_size == entry.size:
        model.link(entry)


def check_models(request: HubRequest, progress: JobProgress, stop: Event) -> dict[str, object]:
    """Verify the files of every model that has a manifest. Bad files are deleted and returned by model folder, and
    `looks` are the states of all models after that."""
    bad: dict[str, list[str]] = {}
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        manifest = model.manifest()
        if manifest is None:
            continue
        progress.enter("checking", manifest.size)
        verify = request.get("verify", False)
        if entries := remove_bad_files(model, manifest, verify=verify, on_read=progress.add, stop=stop):
            bad[model.folder] = [entry.path for entry in entries]
    return {"bad": bad, "looks": model_states(request["hub"], request["sources"])}


def main() -> int:
    """Print the states of the models of the request on stdin, or {"error": …}."""
    request: HubRequest = json.load(sys.stdin)
    try:
        reply: object = model_states(request["hub"], request["sources"])
    except ManifestError as error:
        reply = {"error": str(error)}
    json.dump(reply, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
