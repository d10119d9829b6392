"""A client of the Hugging Face hub: the commit of a branch, the checksum of one small file, the list of all files.

The hub's own library reads the endpoint from HF_ENDPOINT. Without a token of the request it uses its own: HF_TOKEN, or
the one that `hf auth login` stored.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.node.pull import hub_fetch
from vllm_spark.node.pull.files import git_sha1
from vllm_spark.node.pull.model_files import FileEntry, Manifest, ManifestError
from vllm_spark.pinning import hub_errors
from vllm_spark.pinning.hub_errors import refusing
from vllm_spark.pinning.resolution import Resolution

HUB_NO_FILE = register("hub-no-file", runbook="lock-model")

BRANCH = "main"
DEADLINE_S = 30.0
# A mounted file is a program or a template. Weights are never mounted one by one.
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub. An empty field leaves the choice to the library and its environment variables."""

    endpoint: str = ""
    token: str = ""
    deadline_s: float = DEADLINE_S

    def revision(self, repository: str) -> Resolution:
        """Return the commit of a model's branch `main`. Raises RefusedError."""
        with refusing(repository, self.api().endpoint):
            model = self.api().model_info(repository, revision=BRANCH, timeout=self.deadline_s)
        return Resolution(str(model.sha), self._host())

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        """Return the sha256 of a model's file at a commit. Raises RefusedError, also if it is longer than MAX_BYTES."""
        with refusing(f"{repository}@{revision}", self.api().endpoint):
            infos = self.api().get_paths_info(repository, [path], revision=revision)
        size, large = (getattr(infos[0], "size", None), getattr(infos[0], "lfs", None)) if infos else (None, None)
        if size is None or size > MAX_BYTES:
            state = "is not a file there" if size is None else f"has {size} bytes"
            raise RefusedError([_no_file(f"{repository}@{revision}", path, state)])
        if large:
            return Resolution(str(large.sha256), self._host())
        # The hub knows only git's own hash of a small file.
        with refusing(f"{repository}@{revision}", self.api().endpoint), tempfile.TemporaryDirectory() as folder:
            local = self.api().hf_hub_download(
                repository, path, revision=revision, cache_dir=folder, etag_timeout=self.deadline_s
            )
            return Resolution(hashlib.sha256(Path(local).read_bytes()).hexdigest(), self._host())

    def manifest(self, repository: str, revision: str) -> Resolution:
        """Return the sha256 of the manifest of a model at a commit. Raises RefusedError."""
        what = f"{repository}@{revision}"
        with refusing(what, self.api().endpoint), tempfile.TemporaryDirectory() as folder:
            info = self.api().model_info(repository, revision=revision, files_metadata=True, timeout=self.deadline_s)
            try:
                files = hub_fetch.taken_files(info)
                entries = [self._entry(repository, revision, file, folder) for file in files]
            except ManifestError as error:
                raise RefusedError([hub_errors.down(what, self.api().endpoint, str(error))]) from error
        return Resolution(Manifest(repository, revision, tuple(entries)).sha256, self._host())

    def _entry(self, repository: str, revision: str, file: FileEntry, folder: str) -> FileEntry:
        """Return the manifest's entry of a file. A small one is downloaded, because the hub knows only git's hash."""
        sha256 = file.sha256
        if not sha256:
            if file.size > MAX_BYTES:
                raise ManifestError(f"{file.path} has {file.size} bytes and no sha256")
            local = self.api().hf_hub_download(
                repository, file.path, revision=revision, cache_dir=folder, etag_timeout=self.deadline_s
            )
            content = Path(local).read_bytes()
            if git_sha1(content) != file.blob:
                raise ManifestError(f"{file.path} has git's hash {git_sha1(content)}, the hub states {file.blob}")
            sha256 = hashlib.sha256(content).hexdigest()
        return FileEntry(file.path, file.size, sha256, sha256)

    def api(self) -> HfApi:
        """Return the library's client of this hub."""
        return HfApi(endpoint=self.endpoint or None, token=self.token or None, library_name="vllm-spark")

    def _host(self) -> str:
        return self.api().endpoint.rpartition("//")[2]


def _no_file(what: str, path: str, state: str) -> Refusal:
    return HUB_NO_FILE(
        what=f"{path} of {what} {state}",
        expected=f"a file of at most {MAX_BYTES} bytes, because it is mounted into the container",
        fix="correct mounts[].path of the recipe.",
    )
