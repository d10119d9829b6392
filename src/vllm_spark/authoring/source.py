"""The files of a checkpoint: on a hub, in a snapshot folder, or a single config.json."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_spark.core import text
from vllm_spark.core.refusal import Refusal, register

NOT_A_CHECKPOINT = register("not-a-checkpoint", runbook="recipe-new")
BAD_CHECKPOINT = register("bad-checkpoint", runbook="recipe-new")

# config.json of a model with one entry per layer and quantised module; Kimi's and Nemotron's are the longest known.
MAX_TEXT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a safetensors file, as its header describes it."""

    dtype: str
    shape: tuple[int, ...]


class Source(ABC):
    """A checkpoint whose files can be read.

    - name: for messages
    - repository, revision: empty if they are not known
    - files: path -> bytes
    """

    name: str
    repository: str
    revision: str
    files: Mapping[str, int]

    @abstractmethod
    def text(self, path: str) -> str:
        """Return a text file. Raises RefusedError."""

    @abstractmethod
    def headers(self, paths: list[str]) -> Mapping[str, Mapping[str, Tensor]]:
        """Return file -> tensor name -> tensor, from the files' headers. Raises RefusedError."""


def bad_file(name: str, path: str, what: str) -> Refusal:
    """Return the refusal of a file that cannot be read as what its name says."""
    return BAD_CHECKPOINT(
        what=text.printable(" ".join(f"{name}: {path} {what}".split())),
        expected="a complete file as its publisher uploaded it",
        fix="name another commit (OWNER/NAME@COMMIT), or fetch the file again and name the folder.",
    )
