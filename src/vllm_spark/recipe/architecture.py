"""What a model's weights are: recipes/architectures/NAME.yml, from which memory and speed are predicted.

The files hold the dimensions of the model's config.json; how many weights each part has follows from them. Parts are
those of a recipe's `layout` (attention, mlp, experts, head), and three whose width no recipe chooses: router, embedding
and vision, which stay BF16.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import paths, schema
from vllm_spark.core.refusal import Refusal, RefusedError, register

BAD_ARCHITECTURE = register("bad-architecture", runbook="recipe-refused")

FOLDER = paths.RECIPES / "architectures"

# A gated MLP has three matrices: gate, up and down.
MLP_MATRICES = 3


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers of one kind. sliding: the cache ends at `window` tokens. full: it grows with the context. borrowed: it
    reads the cache of the model that it drafts for. linear: a state of fixed size and no cache."""

    kind: str
    layers: int
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    window: int = 0
    # The files hold no v_proj, because V is K; vLLM loads K's weights into both places and reads both.
    values_are_keys: bool = False
    # q_proj has a second half, the output gate.
    gated: bool = False
    # Of a linear layer, which has no such simple shape: its weights, and its state in bytes.
    parameters: int = 0
    state_bytes: int = 0

    def loaded(self, hidden: int) -> int:
        """Weights of one layer as the engine holds them."""
        if self.kind == "linear":
            return self.parameters
        queries = hidden * self.heads * self.head_size * (3 if self.gated else 2)
        return queries + 2 * hidden * self.kv_heads * self.head_size

    def copied(self, hidden: int) -> int:
        """Those of them that the files do not hold."""
        return hidden * self.kv_heads * self.head_size if self.values_are_keys else 0


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture's experts, in `layers` layers: of `count` each token asks `per_token`."""

    layers: int
    count: int
    per_token: int
    width: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model, or one drafter. Sizes are numbers of weights."""

    name: str
    family: str
    hidden: int
    attention: tuple[Attention, ...]
    mlp_layers: int
    mlp_width: int
    experts: Experts | None
    vocabulary: int
    # The output head is the input embedding, which exists once.
    tied: bool
    # Longest context the model is made for: the engine holds a table of angles for each position.
    positions: int
    vision: int = 0
    # Further weights that every pass reads: a drafter's projections from and to its model.
    extra: int = 0

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.attention)

    @property
    def expert(self) -> int:
        """Weights of one expert of one layer."""
        return MLP_MATRICES * self.hidden * self.experts.width if self.experts else 0

    def weights(self) -> dict[str, int]:
        """Part -> weights that the engine holds, all experts among them."""
        experts = self.experts
        return {
            "attention": sum(group.layers * group.loaded(self.hidden) for group in self.attention) + self.extra,
            "mlp": self.mlp_layers * MLP_MATRICES * self.hidden * self.mlp_width,
            "experts": experts.layers * experts.count * self.expert if experts else 0,
            "router": experts.layers * experts.count * self.hidden if experts else 0,
            "head": self.vocabulary * self.hidden,
            "embedding": 0 if self.tied else self.vocabulary * self.hidden,
            "vision": self.vision,
        }

    def filed(self) -> dict[str, int]:
        """Part -> weights that the files hold."""
        copied = sum(group.layers * group.copied(self.hidden) for group in self.attention)
        weights = self.weights()
        return weights | {"attention": weights["attention"] - copied}

    @property
    def active(self) -> int:
        """Weights that one token reads, as the model's name counts them: without the copies of K."""
        held, experts = self.filed(), self.experts
        asked = experts.layers * experts.per_token * self.expert if experts else 0
        return held["attention"] + held["mlp"] + asked + held["router"] + held["head"]

    def table_bytes(self) -> int:
        """The tables of rotary angles, one per head size, BF16: 0.4 GB for Gemma 4, on every rank."""
        return 2 * self.positions * sum({group.head_size for group in self.attention if group.kv_heads})


def names() -> dict[str, Path]:
    """Every architecture: name -> file."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yml"))}


def load(name: str) -> Architecture:
    """Read an architecture by name. Raises RefusedError with every fault found."""
    known = names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        fix = f"name {close[0]!r}." if close else "correct model.architecture of the recipe."
        raise RefusedError([_fault(f"unknown architecture {name}", f"one of {', '.join(known)}", fix)])
    return read(known[name])


def read(file: Path) -> Architecture:
    """Read and check one file. Raises RefusedError with every fault found."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        what = f"{file.name}: {' '.join(str(error).split())}"
        raise RefusedError([_fault(what, "YAML", f"correct {file}.")]) from error
    faults = list(schema.faults(document, FOLDER / "schema.json"))
    if not faults and document["name"] != file.stem:
        faults = [f"name: {document['name']} — expected: {file.stem}, the file's stem"]
    if faults:
        parted = [text.partition(" — expected: ") for text in faults]
        raise RefusedError(_fault(f"{file.name}: {what}", expected, f"correct {file}.") for what, _, expected in parted)
    return _built(document)


def _built(document: Mapping[str, Any]) -> Architecture:
    mlp = document.get("mlp", {"layers": 0, "width": 0})
    return Architecture(
        name=document["name"],
        family=document["family"],
        hidden=document["hidden"],
        attention=tuple(Attention(**group) for group in document["attention"]),
        mlp_layers=mlp["layers"],
        mlp_width=mlp["width"],
        experts=Experts(**document["experts"]) if "experts" in document else None,
        vocabulary=document["vocabulary"],
        tied=document["tied"],
        positions=document["positions"],
        vision=document.get("vision", 0),
        extra=document.get("extra", 0),
    )


def _fault(what: str, expected: str, fix: str) -> Refusal:
    return BAD_ARCHITECTURE(
        what=what,
        expected=expected,
        fix=fix,
    )
