"""The Hugging Face hub, asked through its own library: the commit of a branch, and the checksum of one small file.

Where it is: the library reads HF_ENDPOINT. Who asks: the token handed in, else the library's own (HF_TOKEN, or what
`hf auth login` has left).
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
from vllm_spark.recipe.lockfile import Resolution

HUB_LOGIN = register("hub-login", runbook="lock-model")
HUB_DOWN = register("hub-down", runbook="lock-model")
HUB_NO_FILE = register("hub-no-file", runbook="lock-model")

BRANCH = "main"
DEADLINE_S = 30.0
# A mounted file is a program or a template. Weights are never mounted one by one.
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub. Empty fields leave the choice to the library and its variables."""

    endpoint: str = ""
    token: str = ""
    deadline_s: float = DEADLINE_S

    def revision(self, repository: str) -> Resolution:
        """The commit that a model's branch `main` is at. Raises RefusedError."""
        with _refusing(repository, self._api().endpoint):
            found = self._api().model_info(repository, revision=BRANCH, timeout=self.deadline_s)
        return Resolution(str(found.sha), self._said())

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        """The sha256 of a model's file at a commit. Raises RefusedError, also for one that no recipe would mount."""
        with _refusing(f"{repository}@{revision}", self._api().endpoint):
            found = self._api().get_paths_info(repository, [path], revision=revision)
        size, large = (getattr(found[0], "size", None), getattr(found[0], "lfs", None)) if found else (None, None)
        if size is None or size > MAX_BYTES:
            shown = "is no file there" if size is None else f"has {size} bytes"
            raise RefusedError([_no_file(f"{repository}@{revision}", path, shown)])
        if large:
            return Resolution(str(large.sha256), self._said())
        # A small file is known to the hub by git's own hash only.
        with _refusing(f"{repository}@{revision}", self._api().endpoint), tempfile.TemporaryDirectory() as folder:
            local = self._api().hf_hub_download(
                repository, path, revision=revision, cache_dir=folder, etag_timeout=self.deadline_s
            )
            return Resolution(hashlib.sha256(Path(local).read_bytes()).hexdigest(), self._said())

    def _api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint or None, token=self.token or None, library_name="vllm-spark")

    def _said(self) -> str:
        return self._api().endpoint.rpartition("//")[2]


@contextmanager
def _refusing(what: str, endpoint: str) -> Iterator[None]:
    """Every error of the library as a reason."""
    try:
        yield
    except GatedRepoError as error:
        raise RefusedError([_login(what, "is gated")]) from error
    except RepositoryNotFoundError as error:
        raise RefusedError([_login(what, "does not exist, or is private")]) from error
    except HFValidationError as error:
        raise RefusedError([_login(what, "is no name of a repository")]) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise RefusedError([_login(what, f"may not be read (status {status})")]) from error
        raise RefusedError([_down(what, endpoint, f"status {status}")]) from error
    # The library lets its own HTTP client's errors through.
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
        expected="an answer from this machine",
        fix="ansible-playbook lock.yml again when it answers; HF_ENDPOINT names another hub.",
    )


def _no_file(what: str, path: str, shown: str) -> Refusal:
    return HUB_NO_FILE(
        what=f"{path} of {what} {shown}",
        expected=f"a file of at most {MAX_BYTES} bytes, because it is mounted into the container",
        fix="correct mounts[].path of the recipe.",
    )
