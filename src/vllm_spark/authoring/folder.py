"""A checkpoint in a folder of this machine, or its configuration alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vllm_spark.authoring import headers
from vllm_spark.authoring.checkpoint import QUANTISATION
from vllm_spark.authoring.source import MAX_TEXT_BYTES, Source, Tensor, bad_file
from vllm_spark.core import documents
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError

# models--OWNER--NAME/snapshots/COMMIT, as the hub's cache names a snapshot.
SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})")


class Folder(Source):
    """A snapshot folder. Of a single config.json, only that file and the quantisation beside it are read."""

    def __init__(self, path: Path, repository: str = "", revision: str = "") -> None:
        self._root = path.parent if path.is_file() else path
        alone = path.is_file()
        beside = self._root / QUANTISATION
        found = (
            {"config.json": path, **({QUANTISATION: beside} if beside.is_file() and path.name == "config.json" else {})}
            if alone
            else {file.name: file for file in sorted(self._root.iterdir())}
        )
        self.files = {name: file.stat().st_size for name, file in found.items() if file.is_file()}
        self._config = path if alone else self._root / "config.json"
        self.name = str(path)
        match = SNAPSHOT.search(self._root.resolve().as_posix())
        self.repository = repository or (f"{match['owner']}/{match['name']}" if match else "")
        self.revision = revision or (match["revision"] if match and not repository else "")

    def text(self, path: str) -> str:
        file = self._config if path == "config.json" else self._root / path
        try:
            return documents.read_text(file, MAX_TEXT_BYTES)
        except DocumentError as error:
            raise RefusedError([bad_file(self.name, path, error.fault.what)]) from error

    def headers(self, paths: list[str]) -> Mapping[str, Mapping[str, Tensor]]:
        return {path: self._header(path) for path in paths}

    def _header(self, path: str) -> Mapping[str, Tensor]:
        try:
            with (self._root / path).open("rb") as file:
                size = headers.length(file.read(headers.COUNT))
                return headers.tensors(file.read(size), size, self.files[path])
        except headers.HeaderError as error:
            raise RefusedError([bad_file(self.name, path, str(error))]) from error
        except OSError as error:
            raise RefusedError([bad_file(self.name, path, f"cannot be read ({error.strerror})")]) from error
