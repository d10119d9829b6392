"""Download a model from the Hugging Face hub at one commit, and write its manifest.

On a Spark it runs in the engine's own image, which has huggingface_hub, so nothing is installed on the host. On the
controller it writes bundles. huggingface_hub downloads, and continues an interrupted download. The hub states the
sha256 of large files and git's hash of small ones.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from vllm_spark.node import shared_blobs
from vllm_spark.node.host_job import JobEndedError, reason_of
from vllm_spark.node.pull import adoption, hub_cache
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import LinkError, git_sha1
from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.node.pull.job import JobError, JobProgress, repeated
from vllm_spark.node.pull.model_files import (
    BLOB_NAME,
    FileEntry,
    Manifest,
    Source,
    check_path,
    is_taken,
    parse,
    source_of,
)

# Variables of each process that downloads. The library's shared store would have files outside of the model's folder,
# which alone an engine gets; it exists since 1.32.0 (node/shared_blobs.py).
ENVIRONMENT = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_SHARED_BLOBS": "1"}
STREAMS = 8
POLL_INTERVAL_S = 1.0
# A file that is damaged after two downloads is damaged on the hub, or the disk damages it.
ATTEMPTS = 2
# A hub that is busy. Retry-After is obeyed up to MAX_RETRY_AFTER_S.
PASSING_STATUSES = {429, 500, 502, 503, 504}
RETRY_DELAYS_S = (1.0, 5.0, 20.0, 60.0)
MAX_RETRY_AFTER_S = 300.0
LOGIN_ERRORS = {"GatedRepoError", "RepositoryNotFoundError"}
Result = TypeVar("Result")


def ensure_model(
    model: Source, repository: str, progress: JobProgress, *, verify: bool = False
) -> tuple[Manifest, bool]:
    """Return the manifest, and whether the hub was contacted.

    A model that is complete by its manifest needs no network. Raises JobError.
    """
    existing = model.manifest()
    if existing:
        progress.enter("checking", existing.size)
        if not hub_cache.remove_bad_files(model, existing, verify=verify, on_read=progress.add):
            return existing, False
    files = _with_reasons(progress, lambda: list_files(repository, model))
    progress.enter("checking", sum(file.size for file in files))
    _adopt(model, files, progress)
    refuse_links(model)
    for _ in range(ATTEMPTS):
        progress.enter("downloading", sum(file.size for file in files))
        _with_reasons(progress, lambda: _download(model, repository, files, progress))
        manifest = model.accept(_manifest(model, repository, files))
        model.write_manifest(manifest)
        progress.enter("checking", manifest.size)
        bad = hub_cache.remove_bad_files(model, manifest, verify=False, on_read=progress.add)
        if not bad:
            return manifest, True
        progress.note = f"{bad[0].path} arrived damaged and is fetched again"
    detail = f"{bad[0].path} of {repository} arrived {ATTEMPTS} times with another sha256 than the hub's"
    raise JobError("corrupt", detail)


def list_files(repository: str, model: Source) -> list[FileEntry]:
    """Return the files of the commit that are taken, with the hub's checksums. Raises JobError if the hub has another
    commit, and ManifestError for a path that leads out."""
    from huggingface_hub import HfApi  # noqa: PLC0415  the rest of this file needs no library

    info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(
        repository, revision=model.commit, files_metadata=True
    )
    if info.sha != model.commit:
        raise JobError("hub-down", f"the hub answers commit {info.sha} of {repository} instead of {model.commit}")
    return taken_files(info, model.more)


def taken_files(info: Any, more: Collection[str] = ()) -> list[FileEntry]:
    """Return the files of a ModelInfo that are taken. A small one has no sha256, and its blob is named by git's hash.

    Raises ManifestError for a path that leads out.
    """
    return [_listed(file) for file in info.siblings or () if is_taken(file.rfilename, more)]


def _listed(file: Any) -> FileEntry:
    sha256 = file.lfs.sha256 if file.lfs else ""
    return FileEntry(check_path(file.rfilename), int(file.size or 0), sha256, sha256 or str(file.blob_id))


def refuse_links(model: Source) -> None:
    """Refuse links in the folders that the hub's library writes to as root: it follows them. Raises LinkError.

    Blobs of other commits may be in the shared store: the library does not write to a blob that exists.
    """
    for names in (("blobs",), ("refs",), ("snapshots", model.commit)):
        with suppress(FileNotFoundError), model.pinned(*names) as folder:
            for file in folder.iterdir() if names == ("blobs",) else ():
                if file.is_symlink() and not (BLOB_NAME.fullmatch(file.name) and shared_blobs.hash_of(file)):
                    raise LinkError(f"{model.root / 'blobs' / file.name} is a link")


def _download(model: Source, repository: str, files: list[FileEntry], progress: JobProgress) -> None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()
    with repeated(lambda: _watch_disk(model.root / "blobs", progress), POLL_INTERVAL_S):
        snapshot_download(
            repository,
            revision=model.commit,
            cache_dir=str(model.hub),
            max_workers=STREAMS,
            allow_patterns=[glob.escape(file.path) for file in files],
            endpoint=os.environ.get("HF_ENDPOINT"),
        )


def _watch_disk(blobs: Path, progress: JobProgress) -> None:
    """Report the size on the disk as progress, because the library does not report any."""
    sizes = 0
    for name in os.listdir(blobs) if blobs.is_dir() else ():
        with suppress(OSError):  # renamed since it was listed
            sizes += (blobs / name).stat().st_blocks * 512
    progress.done = min(sizes, progress.total)


def _adopt(model: Source, files: list[FileEntry], progress: JobProgress) -> None:
    """Adopt what the shared store has of the files. Delete blobs of a wrong size, and links to what was not adopted.

    The library assumes that an existing blob is complete.
    """
    adoption.adopt(model, files, ChecksumCache.load(model.root), progress.add)
    for file in files:
        for path in (model.file(file), model.blob(file)):
            if path.exists() and path.stat().st_size != file.size:
                model.remove(file)
        if shared_blobs.hash_of(model.blob(file)):
            model.remove(file)


def _manifest(model: Source, repository: str, files: list[FileEntry]) -> Manifest:
    """Return the manifest of the downloaded files, checked as that of a sender."""
    entries = tuple(_entry(model, file) for file in files)
    return parse(Manifest(repository, model.commit, entries).to_json(), model.more)


def _entry(model: Source, file: FileEntry) -> FileEntry:
    path = model.file(file)
    sha256 = file.sha256
    if not sha256:
        content = path.read_bytes()
        if git_sha1(content) != file.blob:
            model.remove(file)
            raise JobError("corrupt", f"{file.path} has git's hash {git_sha1(content)}, the hub states {file.blob}")
        sha256 = hashlib.sha256(content).hexdigest()
    # The library takes another name from a mirror. Where the blob itself leads does not matter.
    name = path.readlink().name if path.is_symlink() else ""
    return FileEntry(file.path, path.stat().st_size, sha256, name if BLOB_NAME.fullmatch(name) else file.blob)


def _with_reasons(progress: JobProgress, call: Callable[[], Result]) -> Result:
    """Call a function, again after a status that passes, and convert the library's errors to JobError.

    The library does not wrap the errors of its HTTP client, which differs between its versions.
    """
    delays_s = iter(RETRY_DELAYS_S)
    while True:
        try:
            return call()
        except JobEndedError:
            raise
        except Exception as error:
            status, retry_after = _status(error)
            least_s = next(delays_s, None)
            if status not in PASSING_STATUSES or least_s is None:
                raise _job_error(error, status) from error
            delay_s = min(max(retry_after, least_s), MAX_RETRY_AFTER_S)
            progress.note = f"the hub answers {status}, next attempt in {delay_s:.0f} s"
            time.sleep(delay_s)


def _status(error: BaseException | None) -> tuple[int, float]:
    """Return status and Retry-After in seconds of the response behind an error, or zeros."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            text = str(response.headers.get("Retry-After", ""))
            return int(response.status_code), float(text) if re.fullmatch(r"\d{1,6}", text) else 0.0
        error = error.__cause__ or error.__context__
    return 0, 0.0


def _job_error(error: Exception, status: int) -> JobError:
    detail = " ".join(str(error).split())[:500] or type(error).__name__
    if type(error).__name__ in LOGIN_ERRORS or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return JobError("hub-login", detail)
    if reason_of(error) == "disk-full":
        return JobError("disk-full", detail)
    return JobError("hub-down", f"{type(error).__name__}: {detail}")


def fetch_from_hub(request: HubRequest, progress: JobProgress, stop: Event) -> dict[str, object]:
    """Download every model of the request that is not complete. Return those with bytes and files. Raises JobError."""
    Thread(target=_exit_on, args=(stop,), daemon=True).start()
    fetched: list[dict[str, object]] = []
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        verify = bool(request.get("verify"))
        manifest, contacted = ensure_model(model, ref["repository"], progress, verify=verify)
        if contacted:
            fetched.append({"repository": manifest.repository, "bytes": manifest.size, "files": len(manifest.files)})
    return {"fetched": fetched}


def _exit_on(stop: Event) -> None:
    """Exit on request. The library cannot be cancelled, and continues later from what is on the disk."""
    stop.wait()
    os._exit(143)
