"""Speeds that the public measured on Sparks (measured/*.yml), each beside its prediction.

A configuration is a model with its layout, ranks and drafter under one protocol. Its rows are loads with what was
measured: the decode of each stream, the output of all streams over the wall time, and the time to the first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.recipe import architecture
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import burst, layout
from vllm_spark.sizing import constants as hardware
from vllm_spark.sizing.burst import Requests, Served
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import Width
from vllm_spark.sizing.load import Drafter, Load

FOLDER = Path(__file__).with_name("measured")
# A third of the public configurations, chosen by the sha256 of their names. No constant may be fitted to them.
HELD_BACK = FOLDER / "held-back"
# Rows that became public, or known here, after the fit and its judgement. No constant is fitted to them either.
LATER = FOLDER / "later"
# Rows of operators that the fit before this one had not met, in two halves by the sha256 of the operator's name. Both
# are in the fit.
GATHERED = FOLDER / "gathered"
GATHERED_HALVES = {"first half, fitted": GATHERED / "fit", "second half, fitted": GATHERED / "held-back"}
# Rows of other operators, which were gathered while an earlier fit was made and judged when it had ended. They are in
# the fit since the operators of UNMET have taken their place.
UNSEEN = FOLDER / "unseen"
# Rows of operators that no other folder has, gathered before any forecast of them was made (judge.py). No constant may
# be fitted to them.
UNMET = FOLDER / "unmet"
# Rows of the same search that need a judgement of their own: a drafter's acceptance is not stated, or a fact that a
# forecast rests on is assumed, estimated or rounded.
WITHOUT_ACCEPTANCE = UNMET / "without-acceptance"
DOUBTFUL = UNMET / "doubtful"
TO_JUDGE = (UNMET, WITHOUT_ACCEPTANCE, DOUBTFUL)
# All folders with rows: those whose rows are in the fit, and the others.
FITTED = (FOLDER, *GATHERED_HALVES.values(), UNSEEN)
NOT_FITTED = (HELD_BACK, LATER)

# Hosts of pages of many owners, whose name comes next.
HOSTS_OF_MANY = ("github.com", "huggingface.co")

# The columns of a row in the files. None is a figure that was not measured.
COLUMNS = ("prompt", "depth", "output", "streams", "decode", "total", "first_token_ms")

# Rounds that represent a closed loop: a stream asks again as soon as it is answered.
CLOSED_ROUNDS = 3

# How often streams of one text use other experts, fitted to the rows of such streams (fit.py).
APART_ALIKE = 0.14

# A shorter prompt's time to the first token is mostly network and start of the request.
LEAST_PROMPT = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One load and what was measured. Speeds are in tok/s; `decode` is of each stream."""

    prompt: int
    depth: int
    output: int
    streams: int
    decode: float | None
    total: float | None
    first_token_ms: float | None


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model under one protocol. `layout` is part -> width."""

    id: str
    model: str
    architecture: str
    layout: Mapping[str, Width]
    source: str
    protocol: str
    rows: Sequence[Row]
    kv: str = "bf16"
    tensor_parallel: int = 1
    drafted: int = 0
    accepted: float = 0.0
    drafter: str = ""
    marlin: bool = False
    eager: bool = False
    closed: bool = False
    # The streams have the same prompt and sample greedily, so their tokens go to the same experts.
    alike: bool = False
    # The totals are those of llama-benchy: over the time since the first token of the first stream.
    after_first: bool = False
    batched: int = burst.BATCHED
    sequences: int = burst.SEQUENCES

    @property
    def shape(self) -> Architecture:
        return shape(self.architecture)

    @property
    def family(self) -> str:
        return self.shape.family

    @property
    def group(self) -> str:
        """The family, and whether the rows are those of two Sparks."""
        return self.family + (", two Sparks" if self.tensor_parallel > 1 else "")

    @property
    def operator(self) -> str:
        """Who measured: the owner of a repository, or the host of a page."""
        place = self.source.removeprefix("https://").removeprefix("www.").split("/")
        return place[1] if place[0] in HOSTS_OF_MANY else place[0].partition("@")[0]

    @property
    def key(self) -> str:
        """What is left out together: the architecture, its layout, the ranks, and the drafter."""
        widths = ",".join(f"{part}={width}" for part, width in sorted(self.layout.items()))
        return f"{self.architecture}|{widths}|tp{self.tensor_parallel}|{self.drafter}{self.drafted or ''}"

    def load(self) -> Load:
        drafter = Drafter(shape(self.drafter), self.drafted, self.accepted) if self.drafter else None
        return Load(
            tensor_parallel=self.tensor_parallel,
            kv_width=layout.WIDTHS[self.kv],
            drafter=drafter,
            eager=self.eager,
            marlin=self.marlin,
            marlin_8=self.marlin and "fp8-block" in self.layout.values(),
            apart=APART_ALIKE if self.alike else 1.0,
        )

    def served(
        self,
        row: Row,
        constants: Constants | None = None,
        shape: Architecture | None = None,
        load: Load | None = None,
    ) -> Served:
        """Return what the requests of a row are predicted to see; a fit gives constants, shape and load of its own."""
        requests = Requests(
            streams=row.streams,
            prompt=row.prompt,
            output=row.output,
            depth=row.depth,
            rounds=CLOSED_ROUNDS if self.closed and row.streams > 1 else 1,
            batched=self.batched,
            sequences=self.sequences,
        )
        known = constants or hardware.constants_of({})
        served = burst.serve(shape or self.shape, layout.widths(self.layout), load or self.load(), requests, known)
        return replace(served, total=served.after_first) if self.after_first else served


@dataclass(slots=True)
class Errors:
    """Signed errors of rows, predicted / measured - 1."""

    speed: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)

    def add(self, entry: Configuration, row: Row, served: Served) -> None:
        """Add the errors of one row: the decode of a stream, or else the total; and of a first token."""
        speed, first = speed_error(row, served), first_token_error(entry, row, served)
        if speed is not None:
            self.speed.append(speed)
        if first is not None:
            self.first_token.append(first)


def speed_error(row: Row, served: Served) -> float | None:
    """Return the error of the decode of a stream, or else of the total, or None if neither was measured."""
    if row.decode:
        return served.decode / row.decode - 1
    return served.total / row.total - 1 if row.total else None


def judges_first_token(entry: Configuration, row: Row) -> bool:
    """Return whether the time to the first token of a row is judged.

    It is not judged for a short prompt, nor where layers with a state had the context in the prefix cache: a state is
    kept only at the end of a block of 1,568 to 8,320 tokens, so an unknown part is computed again.
    """
    cached_state = row.depth > 0 and any(group.state() for group in entry.shape.attention)
    return bool(row.first_token_ms) and row.prompt >= LEAST_PROMPT and not cached_state


def first_token_error(entry: Configuration, row: Row, served: Served) -> float | None:
    """Return the error of the time to the first token, or None if it is not judged."""
    if not row.first_token_ms or not judges_first_token(entry, row):
        return None
    return served.first_token_s * 1e3 / row.first_token_ms - 1


@cache
def shape(name: str) -> Architecture:
    """Return an architecture, read once."""
    return architecture.load(name)


def errors(configurations: Sequence[Configuration], constants: Constants | None = None) -> dict[str, Errors]:
    """Return family -> the errors of all its rows; those of two Sparks are under `FAMILY, two Sparks`."""
    found: dict[str, Errors] = {}
    for configuration in configurations:
        for row in configuration.rows:
            found.setdefault(configuration.group, Errors()).add(
                configuration, row, configuration.served(row, constants)
            )
    return found


def configurations(*folders: Path) -> list[Configuration]:
    """Return every configuration of the files of some folders; without any, of FOLDER."""
    files = [file for folder in folders or (FOLDER,) for file in sorted(folder.glob("*.yml"))]
    return [of_entry(entry) for file in files for entry in _entries(file)]


def of_entry(entry: Mapping[str, Any]) -> Configuration:
    """Return a configuration from its form in the files."""
    rows = tuple(Row(**dict(zip(COLUMNS, row, strict=True))) for row in entry["rows"])
    return Configuration(**{**entry, "rows": rows})


@cache
def dropped() -> Sequence[Mapping[str, Any]]:
    """Return the public rows that are not predicted, in groups with a reason."""
    groups: Sequence[Mapping[str, Any]] = strict_yaml.load_own((FOLDER / "dropped.yaml").read_text(encoding="utf-8"))
    return groups


@dataclass(frozen=True, slots=True)
class Cause:
    """Why rows that were held back miss. `change` is the fact that the rows have wrong, or is empty."""

    family: str
    what: str
    evidence: str
    models: Sequence[str] = ()
    protocols: Sequence[str] = ()
    ids: Sequence[str] = ()
    ranks: int = 0
    change: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, entry: Configuration) -> bool:
        """Return whether a configuration is one of the entry's."""
        return (
            entry.group == self.family
            and (not self.models or entry.model in self.models)
            and (not self.protocols or entry.protocol in self.protocols)
            and (not self.ids or any(part in entry.id for part in self.ids))
            and (not self.ranks or entry.tensor_parallel == self.ranks)
        )


@cache
def causes() -> Sequence[Cause]:
    """Return the causes of causes.yaml."""
    entries = strict_yaml.load_own((FOLDER / "causes.yaml").read_text(encoding="utf-8"))
    return [Cause(**entry) for entry in entries]


@cache
def protocols(folder: Path = FOLDER) -> Mapping[str, str]:
    """Return every protocol of the rows of a folder: key -> how it measures."""
    content: Mapping[str, str] = strict_yaml.load_own((folder / "protocols.yaml").read_text(encoding="utf-8"))
    return content


def _entries(file: Path) -> Iterator[Mapping[str, Any]]:
    yield from strict_yaml.load_own(file.read_text(encoding="utf-8"))["configurations"]
