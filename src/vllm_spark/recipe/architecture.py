"""Architectures of models, from recipes/architectures/NAME.yml. Memory and speed are predicted from them.

The files hold the dimensions of the model's config.json. The number of weights of each part follows from them. The
parts are those of a recipe's `layout` (attention, mlp, experts, head) and three whose width a recipe cannot choose:
router, embedding and vision, which stay BF16.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core import documents, paths, schema, text
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document

BAD_ARCHITECTURE = register("bad-architecture", runbook="recipe-refused")

FOLDER = paths.RECIPES / "architectures"

# A gated MLP has three matrices: gate, up and down.
MLP_MATRICES = 3


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention layers of one kind.

    - sliding: the cache is limited to `window` tokens
    - full: the cache grows with the context
    - borrowed: a drafter's layers that read the cache of its model
    - linear: a state of fixed size and no cache
    """

    kind: str
    layers: int
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    window: int = 0
    # The files have no v_proj, because V equals K. vLLM loads K's weights into both places and reads both.
    values_are_keys: bool = False
    # q_proj has a second half, the output gate.
    gated: bool = False
    # Only for linear layers, whose shape the fields above cannot describe: weights per layer, and bytes of its state.
    parameters: int = 0
    state_bytes: int = 0

    def loaded_weights(self, hidden: int) -> int:
        """Return the weights of one layer in the engine's memory."""
        if self.kind == "linear":
            return self.parameters
        queries = hidden * self.heads * self.head_size * (3 if self.gated else 2)
        return queries + 2 * hidden * self.kv_heads * self.head_size

    def copied_weights(self, hidden: int) -> int:
        """Return the weights of one layer that the engine copies and the files do not contain."""
        return hidden * self.kv_heads * self.head_size if self.values_are_keys else 0


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of `layers` layers: `count` per layer, of which each token uses `per_token`."""

    layers: int
    count: int
    per_token: int
    width: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model or one drafter. Sizes are numbers of weights."""

    name: str
    family: str
    hidden: int
    attention: tuple[Attention, ...]
    mlp_layers: int
    mlp_width: int
    experts: Experts | None
    vocabulary: int
    # The output head and the input embedding are one matrix.
    tied: bool
    # The model's longest context. The engine has a table of rotary angles with an entry for each position.
    positions: int
    vision: int = 0
    # More weights that every pass reads: a drafter's projections from and to its model.
    extra: int = 0

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.attention)

    @property
    def expert(self) -> int:
        """The number of weights of one expert of one layer."""
        return MLP_MATRICES * self.hidden * self.experts.width if self.experts else 0

    def weights(self) -> dict[str, int]:
        """Return part -> weights in the engine's memory, with all experts."""
        experts = self.experts
        return {
            "attention": sum(group.layers * group.loaded_weights(self.hidden) for group in self.attention) + self.extra,
            "mlp": self.mlp_layers * MLP_MATRICES * self.hidden * self.mlp_width,
            "experts": experts.layers * experts.count * self.expert if experts else 0,
            "router": experts.layers * experts.count * self.hidden if experts else 0,
            "head": self.vocabulary * self.hidden,
            "embedding": 0 if self.tied else self.vocabulary * self.hidden,
            "vision": self.vision,
        }

    def stored_weights(self) -> dict[str, int]:
        """Return part -> weights in the files, which do not contain the engine's copies of K."""
        copied = sum(group.layers * group.copied_weights(self.hidden) for group in self.attention)
        weights = self.weights()
        return weights | {"attention": weights["attention"] - copied}

    @property
    def active(self) -> int:
        """The number of weights that one token reads, without the copies of K, as a model's name counts them."""
        weights, experts = self.stored_weights(), self.experts
        routed = experts.layers * experts.per_token * self.expert if experts else 0
        return weights["attention"] + weights["mlp"] + routed + weights["router"] + weights["head"]

    def table_bytes(self) -> int:
        """Return the bytes of the tables of rotary angles: one table per head size, BF16, on every rank.

        For Gemma 4 they are 0.4 GB.
        """
        return 2 * self.positions * sum({group.head_size for group in self.attention if group.kv_heads})


def names() -> dict[str, Path]:
    """Return every architecture: name -> file."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yml"))}


def load(name: str) -> Architecture:
    """Read an architecture by name. Raises RefusedError with every fault of it."""
    known = names()
    if name not in known:
        close = text.close_names(name, known)
        fix = text.choice(close) if close else "correct model.architecture of the recipe."
        raise RefusedError(
            [BAD_ARCHITECTURE(what=f"unknown architecture {name}", expected=f"one of {', '.join(known)}", fix=fix)]
        )
    return read(known[name])


def read(file: Path) -> Architecture:
    """Read and check one file. Raises RefusedError with every fault of it."""
    try:
        document = documents.read_yaml(file)
    except DocumentError as error:
        raise RefusedError([_refusal(file, error.fault)]) from error
    faults = list(schema.faults(document, FOLDER / "schema.json"))
    if not faults and document["name"] != file.stem:
        faults = [Fault(f"name: {document['name']}", f"{file.stem}, the file's stem")]
    if faults:
        raise RefusedError(_refusal(file, fault) for fault in faults)
    return _from_document(document)


def _from_document(document: Document) -> Architecture:
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


def _refusal(file: Path, fault: Fault) -> Refusal:
    return BAD_ARCHITECTURE(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file}.")
