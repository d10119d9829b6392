"""A client of the Hugging Face hub: the commit of a branch, the checksum of one small file, the list of all files.

The hub's own library reads the endpoint from HF_ENDPOINT. Without a token of the request it uses its own: HF_TOKEN, or
the one that `hf auth login` stored.
"""

from __future__ import annotations

import hashlib
import http
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.node.pull import hub_fetch
from vllm_spark.node.pull.files import git_sha1
from vllm_spark.node.pull.hub_fetch import HubFile
from vllm_spark.node.pull.model_files import Entry, Manifest, ManifestError
from vllm_spark.pinning.resolution import Resolution

HUB_LOGIN = register("hub-login", runbook="lock-model")
HUB_DOWN = register("hub-down", runbook="lock-model")
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
        with _refusing(repository, self._api().endpoint):
            model = self._api().model_info(repository, revision=BRANCH, timeout=self.deadline_s)
        return Resolution(str(model.sha), self._host())

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        """Return the sha256 of a model's file at a commit. Raises RefusedError, also if it is longer than MAX_BYTES."""
        with _refusing(f"{repository}@{revision}", self._api().endpoint):
            infos = self._api().get_paths_info(repository, [path], revision=revision)
        size, large = (getattr(infos[0], "size", None), getattr(infos[0], "lfs", None)) if infos else (None, None)
        if size is None or size > MAX_BYTES:
            state = "is not a file there" if size is None else f"has {size} bytes"
            raise RefusedError([_no_file(f"{repository}@{revision}", path, state)])
        if large:
            return Resolution(str(large.sha256), self._host())
        # Of a small file the hub knows only git's own hash.
        with _refusing(f"{repository}@{revision}", self._api().endpoint), tempfile.TemporaryDirectory() as folder:
            local = self._api().hf_hub_download(
                repository, path, revision=revision, cache_dir=folder, etag_timeout=self.deadline_s
            )
            return Resolution(hashlib.sha256(Path(local).read_bytes()).hexdigest(), self._host())

    def manifest(self, repository: str, revision: str) -> Resolution:
        """Return the sha256 of the manifest of a model at a commit. Raises RefusedError."""
        what = f"{repository}@{revision}"
        with _refusing(what, self._api().endpoint), tempfile.TemporaryDirectory() as folder:
            info = self._api().model_info(repository, revision=revision, files_metadata=True, timeout=self.deadline_s)
            try:
                files = hub_fetch.taken_files(info)
                entries = [self._entry(repository, revision, file, folder) for file in files]
            except ManifestError as error:
                raise RefusedError([_down(what, self._api().endpoint, str(error))]) from error
        return Resolution(Manifest(repository, revision, tuple(entries)).sha256, self._host())

    def _entry(self, repository: str, revision: str, file: HubFile, folder: str) -> Entry:
        """Return the manifest's entry of a file. A small one is downloaded, because the hub knows only git's hash."""
        sha256 = file.sha256
        if not sha256:
            if file.size > MAX_BYTES:
                raise ManifestError(f"{file.path} has {file.size} bytes and no sha256")
            local = self._api().hf_hub_download(
                repository, file.path, revision=revision, cache_dir=folder, etag_timeout=self.deadline_s
            )
            content = Path(local).read_bytes()
            if git_sha1(content) != file.oid:
                raise ManifestError(f"{file.path} has git's hash {git_sha1(content)}, the hub states {file.oid}")
            sha256 = hashlib.sha256(content).hexdigest()
        return Entry(file.path, file.size, sha256, sha256)

    def _api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint or None, token=self.token or None, library_name="vllm-spark")

    def _host(self) -> str:
        return self._api().endpoint.rpartition("//")[2]


@contextmanager
def _refusing(what: str, endpoint: str) -> Iterator[None]:
    """Convert every error of the library into a RefusedError. `what` is the repository of the request."""
    try:
        yield
    except GatedRepoError as error:
        raise RefusedError([_login(what, "is gated")]) from error
    except RepositoryNotFoundError as error:
        raise RefusedError([_login(what, "does not exist, or is private")]) from error
    except HFValidationError as error:
        raise RefusedError([_login(what, "is not the name of a repository")]) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise RefusedError([_login(what, f"may not be read (status {status})")]) from error
        raise RefusedError([_down(what, endpoint, f"status {status}")]) from error
    # The library does not wrap the errors of its own HTTP client.
    except (OSError, httpx2.HTTPError) as error:
        raise RefusedError([_down(what, endpoint, " ".join(str(error).split()))]) from error


def _login(what: str, state: str) -> Refusal:
    return HUB_LOGIN(
        what=f"{what} {state}",
        expected="a repository of the hub that the token may read",
        fix="correct model.repository of the recipe; for a gated one accept its terms and set HF_TOKEN.",
    )


def _down(what: str, endpoint: str, reason: str) -> Refusal:
    return HUB_DOWN(
        what=f"{what}: the hub at {endpoint} does not answer: {reason}",
        expected="a hub that this machine can reach",
        fix="ansible-playbook lock.yml again when it answers; HF_ENDPOINT names another hub.",
    )


def _no_file(what: str, path: str, state: str) -> Refusal:
    return HUB_NO_FILE(
        what=f"{path} of {what} {state}",
        expected=f"a file of at most {MAX_BYTES} bytes, because it is mounted into the container",
        fix="correct mounts[].path of the recipe.",
    )
