"""What of a profile a deployment can measure, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_spark.bench.profiles import Profile
from vllm_spark.node.bench.records import Cell
from vllm_spark.node.engine_api import CHAT

# The tokens that a chat template puts around one turn of the user; Gemma 4 has about 10, with a system prompt more.
TEMPLATE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A cell that the deployment cannot measure, and the reason with both numbers."""

    cell: Cell
    why: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The cells that the deployment can measure, and the others."""

    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...]


def fit(cells: Iterable[Cell], max_model_len: int | None, max_num_seqs: int | None, role: str | None = None) -> Fit:
    """Return the cells that fit into a deployment. None: the limit or the role is unknown and leaves no cell out."""
    all_ = [(cell, _of_role(cell, role) or _reason(cell, max_model_len, max_num_seqs)) for cell in cells]
    return Fit(tuple(cell for cell, why in all_ if not why), tuple(LeftOut(cell, why) for cell, why in all_ if why))


def seconds(profile: Profile, cells: Iterable[Cell], decode: float, prefill: float) -> float:
    """Return the least time of the cells, for a stream of `decode` tok/s and a prompt of `prefill` tok/s.

    Streams share the prefill and not the decode. A restart of the server is not counted. A profile with `hours` takes
    these hours.
    """
    if profile.rules.hours is not None:
        return profile.rules.hours * 3600
    runs = profile.rules.warm_up + profile.rules.least_runs
    return sum(runs * _run_s(cell, decode, prefill) for cell in cells)


def _run_s(cell: Cell, decode: float, prefill: float) -> float:
    texts = cell["streams"] * cell.get("documents", 1)
    return texts * (cell["depth"] + cell["prompt"]) / prefill + cell["output"] / decode


def _of_role(cell: Cell, role: str | None) -> str:
    asked = cell.get("role", CHAT)
    return f"is for a server of the role {asked}; this one has the role {role}" if role not in (None, asked) else ""


def _reason(cell: Cell, max_model_len: int | None, max_num_seqs: int | None) -> str:
    needed = cell["depth"] + cell["prompt"] + cell["output"] + TEMPLATE_TOKENS
    if max_model_len is not None and needed > max_model_len:
        return f"needs {needed} tokens with the chat template; max-model-len is {max_model_len}"
    if max_num_seqs is not None and cell["streams"] > max_num_seqs and "documents" not in cell:
        return f"needs {cell['streams']} streams; max-num-seqs is {max_num_seqs}"
    return ""
