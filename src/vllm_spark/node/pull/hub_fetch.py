"""A model from the Hugging Face hub at one commit, into a hub cache, with a manifest of what it has to be. Runs in the
engine's own image, which has huggingface_hub, so that a Spark needs nothing installed; and on the controller, which
makes bundles.

The hub's own library fetches, and goes on where an earlier run was cut. What a file has to be is the hub's word: the
sha256 of large files, git's hash of small ones.

    python3 -m vllm_spark.node.pull.hub_fetch
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from vllm_spark.node.pull import hub_cache, job
from vllm_spark.node.pull.hub_cache import Entry, Manifest, Source
from vllm_spark.node.pull.job import JobError, JobProgress

STREAMS = 8
POLL_INTERVAL_S = 1.0
# What is damaged on the disk is fetched anew; what comes damaged twice is the hub's fault, or the disk's.
ATTEMPTS = 2
FULL = {28, 122}  # ENOSPC, EDQUOT
LOGIN = {"GatedRepoError", "RepositoryNotFoundError"}


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub lists it. `sha256` is empty for a small one, which git's hash `oid` names."""

    path: str
    size: int
    oid: str
    sha256: str


def ensure_model(
    model: Source, repository: str, progress: JobProgress, *, verify: bool = False
) -> tuple[Manifest, bool]:
    """(the manifest, whether the hub was asked). What is whole by a manifest that is here needs no network. Raises
    JobError."""
    known = model.manifest()
    if known:
        progress.enter("checking", known.size)
        if not hub_cache.check(model, known, verify=verify, read=progress.add):
            return known, False
    listed = _asked(list_files, repository, model.commit)
    for file in listed:
        _forget_wrong_size(model, file)
    for _ in range(ATTEMPTS):
        progress.enter("downloading", sum(file.size for file in listed))
        _asked(_download, model, repository, progress)
        manifest = _manifest(model, repository, listed)
        model.write(manifest)
        progress.enter("checking", manifest.size)
        bad = hub_cache.check(model, manifest, verify=False, read=progress.add)
        if not bad:
            return manifest, True
        progress.note = f"{bad[0].path} came damaged, again"
    raise JobError("corrupt", f"{bad[0].path} of {repository} came {ATTEMPTS} times with another sha256 than the hub's")


def list_files(repository: str, commit: str) -> list[HubFile]:
    """Every file of the commit, with what the hub knows of it."""
    from huggingface_hub import HfApi  # noqa: PLC0415  what else is in this file needs no library

    info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(repository, revision=commit, files_metadata=True)
    if info.sha != commit:
        raise JobError("hub-down", f"the hub answers commit {info.sha} of {repository} where {commit} was asked")
    return [
        HubFile(file.rfilename, int(file.size or 0), str(file.blob_id), file.lfs.sha256 if file.lfs else "")
        for file in info.siblings or ()
    ]


def _download(model: Source, repository: str, progress: JobProgress) -> None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()
    over = Event()
    teller = Thread(target=_watch, args=(model.root / "blobs", progress, over), daemon=True)
    teller.start()
    try:
        snapshot_download(
            repository,
            revision=model.commit,
            cache_dir=str(model.hub),
            max_workers=STREAMS,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    finally:
        over.set()
        teller.join()


def _watch(blobs: Path, progress: JobProgress, over: Event) -> None:
    """The library tells nobody how far it is; the disk does."""
    while not over.wait(POLL_INTERVAL_S):
        sizes = 0
        for name in os.listdir(blobs) if blobs.is_dir() else ():
            try:
                sizes += (blobs / name).stat().st_blocks * 512
            except OSError:
                continue  # it has just got its name
        progress.done = min(sizes, progress.total)


def _forget_wrong_size(model: Source, file: HubFile) -> None:
    """The library takes a blob that is there for whole."""
    entry = Entry(file.path, file.size, file.sha256, file.sha256 or file.oid)
    for path in (model.file(entry), model.blob(entry)):
        if path.exists() and path.stat().st_size != file.size:
            model.forget(entry)


def _manifest(model: Source, repository: str, listed: list[HubFile]) -> Manifest:
    return hub_cache.parse(
        {
            "repository": repository,
            "commit": model.commit,
            "files": [_entry(model, file) for file in listed],
        }
    )


def _entry(model: Source, file: HubFile) -> dict[str, Any]:
    path = model.snapshot / file.path
    sha256 = file.sha256
    if not sha256:
        content = path.read_bytes()
        if hub_cache.git_sha1(content) != file.oid:
            path.resolve().unlink()
            raise JobError(
                "corrupt", f"{file.path} has git's hash {hub_cache.git_sha1(content)}, the hub says {file.oid}"
            )
        sha256 = hashlib.sha256(content).hexdigest()
    kept = path.resolve().name
    blob = kept if path.is_symlink() and hub_cache.BLOB.fullmatch(kept) else file.sha256 or file.oid
    return {"path": file.path, "size": path.stat().st_size, "sha256": sha256, "blob": blob}


def _asked(ask: Any, *words: Any) -> Any:
    """The library's errors as reasons. It lets its HTTP client's through, another client in each of its versions."""
    try:
        return ask(*words)
    except JobError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:500] or type(error).__name__
        if type(error).__name__ in LOGIN:
            raise JobError("hub-login", said) from error
        if isinstance(error, OSError) and error.errno in FULL:
            raise JobError("disk-full", said) from error
        raise JobError("hub-down", f"{type(error).__name__}: {said}") from error


def fetch(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Every model of the request."""
    Thread(target=_end_with, args=(stop,), daemon=True).start()
    fetched = []
    for document in request["sources"]:
        model = hub_cache.source(request["hub"], document)
        manifest, asked = ensure_model(model, document["repository"], progress, verify=bool(request.get("verify")))
        if asked:
            fetched.append({"repository": manifest.repository, "bytes": manifest.size, "files": len(manifest.files)})
    return {"fetched": fetched}


def _end_with(stop: Event) -> None:
    """The library cannot be told to end, and needs not be: it goes on from what is on the disk."""
    stop.wait()
    os._exit(143)


if __name__ == "__main__":
    sys.exit(job.run("fetch", fetch))
