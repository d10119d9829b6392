"""A checkpoint on a hub. Of its weights only the headers are read, by ranges."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # in its docs

from vllm_spark.authoring import headers
from vllm_spark.authoring.source import MAX_TEXT_BYTES, Source, Tensor, bad_file
from vllm_spark.core.refusal import RefusedError
from vllm_spark.pinning import hub_errors
from vllm_spark.pinning.hub import BRANCH, Hub
from vllm_spark.pinning.hub_errors import Wording, refusing
from vllm_spark.recipe.lockfile import COMMIT

# What is read of a safetensors file first. Most headers are shorter.
FIRST_BYTES = 100_000
# Requests at a time. A hub limits them by address.
PARALLEL = 8


class HubSource(Source):
    """A repository of a hub at one commit. `revision` may be a branch; empty is the branch `main`."""

    def __init__(self, hub: Hub, repository: str, revision: str = "") -> None:
        self._hub, self._api, self.repository = hub, hub.api(), repository
        asked = f"{repository}@{revision}" if revision else repository
        self._wording = Wording(
            correct="name a repository as OWNER/NAME or OWNER/NAME@COMMIT", again=f"vllm-spark recipe new {asked}"
        )
        with refusing(asked, self._api.endpoint, self._wording):
            info = self._api.model_info(
                repository, revision=revision or BRANCH, files_metadata=True, timeout=hub.deadline_s
            )
            self.revision = str(info.sha)
            self.files = {file.rfilename: int(file.size or 0) for file in info.siblings or []}
        self.name = f"{repository}@{self.revision[:12]}"
        if not COMMIT.fullmatch(self.revision):
            reason = f"its answer has the commit {self.revision[:60]}"
            raise RefusedError([hub_errors.reply(asked, self._api.endpoint, reason, self._wording)])

    def text(self, path: str) -> str:
        if self.files[path] > MAX_TEXT_BYTES:
            raise RefusedError([bad_file(self.name, path, f"has {self.files[path]} bytes")])
        with refusing(self.name, self._api.endpoint, self._wording):
            return self._get(path).decode("utf-8-sig")

    def headers(self, paths: list[str]) -> Mapping[str, Mapping[str, Tensor]]:
        with ThreadPoolExecutor(PARALLEL) as pool:
            return dict(zip(paths, pool.map(self._header, paths), strict=True))

    def _header(self, path: str) -> Mapping[str, Tensor]:
        try:
            with refusing(self.name, self._api.endpoint, self._wording):
                first = self._get(path, (0, FIRST_BYTES))
                size = headers.length(first)
                end = headers.COUNT + size
                rest = self._get(path, (len(first), end)) if len(first) < end else b""
            return headers.tensors((first + rest)[headers.COUNT : end], size, self.files[path])
        except headers.HeaderError as error:
            raise RefusedError([bad_file(self.name, path, str(error))]) from error

    def _get(self, path: str, part: tuple[int, int] | None = None) -> bytes:
        """Return a file, or its bytes from the first number to before the second."""
        url = hf_hub_url(self.repository, path, revision=self.revision, endpoint=self._api.endpoint)
        # A file without a token: the library then takes HF_TOKEN, or the login that it stored.
        asked = build_hf_headers(token=self._hub.token or None, library_name="vllm-spark")
        if part:
            asked["range"] = f"bytes={part[0]}-{part[1] - 1}"
        reply = get_session().get(url, headers=asked, timeout=self._hub.deadline_s)
        hf_raise_for_status(reply)
        content: bytes = reply.content
        return content
