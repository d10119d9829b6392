"""Architectures of models, from recipes/architectures/NAME.yml. Memory and speed are predicted from them.

The files hold the dimensions of the model's config.json. The number of weights of each part follows from them.
`PARTS` are the parts whose width a recipe's `layout` may name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vllm_spark.core import documents, near_names, paths, schema
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import mixers
from vllm_spark.recipe.feed_forward import Experts, Mlp, PerLayerEmbedding
from vllm_spark.recipe.mixer import Mixer

BAD_ARCHITECTURE = register("bad-architecture", runbook="recipe-refused")

FOLDER = paths.RECIPES / "architectures"

# Part -> the part whose width it has if a layout does not name it; empty for BF16.
PARTS: Mapping[str, str] = {
    "attention": "",
    "linear": "attention",
    "mlp": "",
    "shared": "mlp",
    "experts": "",
    "latent": "",
    "router": "",
    "head": "",
    "embedding": "",
    "per_layer": "",
    "vision": "",
    "drafter": "",
}

# Parts that a decoding step does not read whole: it looks up rows of the first, and the second works on pictures.
NOT_READ = ("embedding", "vision")


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a drafter works.

    - method: assistant (Gemma 4), mtp (a model's own head), eagle, eagle3, dflash, or dspark
    - block: one pass drafts all tokens; otherwise each token takes one pass
    - borrows: head and embedding that are the model's own
    """

    method: str
    block: bool = False
    borrows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model or one drafter. Sizes are numbers of weights."""

    name: str
    family: str
    hidden: int
    attention: tuple[Mixer, ...]
    mlp: tuple[Mlp, ...]
    experts: Experts | None
    vocabulary: int
    # The output head and the input embedding are one matrix.
    tied: bool
    # The model's longest context. The engine has a table of rotary angles with an entry for each position.
    positions: int
    vision: int = 0
    # More weights that every pass reads: a drafter's projections from and to its model.
    extra: int = 0
    # More weights of tables, of which a step looks up a few rows.
    tables: int = 0
    per_layer: PerLayerEmbedding | None = None
    # Each layer is one mixer, one MLP or one set of experts, and no layer has two of them (Nemotron-H and later).
    single: bool = False
    drafting: Drafting | None = None

    @property
    def mixers(self) -> int:
        """The number of layers that mix tokens."""
        return sum(group.layers for group in self.attention)

    @property
    def layers(self) -> int:
        """The number of layers, as config.json counts them."""
        return self.sublayers if self.single else self.mixers

    @property
    def feed_forwards(self) -> int:
        """The number of MLPs and sets of experts."""
        return sum(group.layers for group in self.mlp) + (self.experts.layers if self.experts else 0)

    @property
    def sublayers(self) -> int:
        """The number of layers that mix tokens, of MLPs and of sets of experts."""
        return self.mixers + self.feed_forwards

    @property
    def expert_reads(self) -> int:
        """The number of experts that one token uses in all layers."""
        return self.experts.layers * self.experts.per_token if self.experts else 0

    @property
    def reductions(self) -> int:
        """The number of all-reduces of one pass over several ranks: after each sublayer, and after the embedding."""
        return self.layers * (1 if self.single else 2) + 1

    @property
    def expert(self) -> int:
        """The number of weights of one expert of one layer."""
        return self.experts.expert(self.hidden) if self.experts else 0

    def weights(self) -> dict[str, int]:
        """Return part -> weights in the engine's memory, with all experts."""
        experts, table = self.experts, self.vocabulary * self.hidden
        borrows = self.drafting.borrows if self.drafting else ()
        counts = dict.fromkeys(PARTS, 0) | {
            "attention": self._mixing("attention") + self.extra,
            "linear": self._mixing("linear"),
            "mlp": sum(group.weights(self.hidden) for group in self.mlp),
            "head": 0 if "head" in borrows else table,
            "embedding": (0 if self.tied or "embedding" in borrows else table) + self.tables,
            "vision": self.vision,
        }
        if experts:
            counts |= experts.weights(self.hidden)
        if self.per_layer:
            counts["per_layer"] = self.per_layer.read_weights(self.hidden, self.layers)
            counts["embedding"] += self.per_layer.table_weights(self.layers)
        return counts

    def stored_weights(self) -> dict[str, int]:
        """Return part -> weights in the files, which do not contain the engine's copies of K."""
        copied = sum(group.layers * group.copied_weights(self.hidden) for group in self.attention)
        weights = self.weights()
        return weights | {"attention": weights["attention"] - copied}

    def read_weights(self) -> dict[str, int]:
        """Return part -> weights that one token reads, with the engine's copies of K."""
        read = {part: count for part, count in self.weights().items() if part not in NOT_READ}
        return read | {"experts": self.expert_reads * self.expert}

    @property
    def active(self) -> int:
        """The number of weights that one token reads, without the copies of K, as a model's name counts them."""
        copied = sum(self.weights().values()) - sum(self.stored_weights().values())
        return sum(self.read_weights().values()) - copied

    def adapter_weights(self) -> int:
        """Return the weights of a LoRA adapter of rank 1 on every matrix of the layers: its inputs and outputs.

        Three matrices of a mixer have the model's width as input, and one as output.
        """
        mixing = sum(
            group.layers * (4 * self.hidden + group.loaded_weights(self.hidden) // self.hidden)
            for group in self.attention
        )
        experts = self.experts.adapter(self.hidden) if self.experts else 0
        return mixing + sum(group.adapter(self.hidden) for group in self.mlp) + experts

    def table_bytes(self) -> int:
        """Return the bytes of the tables of rotary angles: one table per head size, BF16, on every rank.

        For Gemma 4 they are 0.4 GB.
        """
        return 2 * self.positions * sum({group.rotary_size for group in self.attention})

    def _mixing(self, part: str) -> int:
        return sum(group.layers * group.loaded_weights(self.hidden) for group in self.attention if group.part == part)


def names() -> dict[str, Path]:
    """Return every architecture: name -> file."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yml"))}


def load(name: str) -> Architecture:
    """Read an architecture by name. Raises RefusedError with every fault of it."""
    file = FOLDER / f"{name}.yml"
    if file.name != f"{name}.yml" or not file.is_file():
        known = names()
        close = near_names.close_names(name, known)
        fix = near_names.choice(close) if close else "correct model.architecture of the recipe."
        raise BAD_ARCHITECTURE.error(
            what=f"unknown architecture {name}", expected=f"one of {', '.join(known)}", fix=fix
        )
    return _read_once(file, file.stat().st_mtime_ns)


@lru_cache
def _read_once(file: Path, changed: int) -> Architecture:
    """Read a file again only if it has changed: recipes of one model name the same one, and YAML is slow."""
    return read(file)


def read(file: Path) -> Architecture:
    """Read and check one file. Raises RefusedError with every fault of it."""
    return from_document(read_document(file))


def read_document(file: Path) -> Document:
    """Return the checked document of one file. Raises RefusedError with every fault of it."""
    try:
        document: Document = documents.read_yaml(file)
    except DocumentError as error:
        raise RefusedError([_refusal(file, error.fault)]) from error
    faults = list(document_faults(document, file.stem))
    if faults:
        raise RefusedError(_refusal(file, fault) for fault in faults)
    return document


def document_faults(document: Document, name: str) -> Iterator[Fault]:
    """Yield the faults of an architecture that must have this name."""
    faults = list(schema.faults(document, FOLDER / "schema.json"))
    yield from faults
    if not faults and document["name"] != name:
        yield Fault(f"name: {document['name']}", f"{name}, the file's stem")


def of_recipe(recipe: Document, name: str) -> Architecture:
    """Return an architecture that a recipe names: one that comes with it, or one of the toolkit's."""
    own = recipe.get("architectures", {})
    return from_document(own[name]) if name in own else load(name)


def from_document(document: Document) -> Architecture:
    """Return the architecture of a document that passed the schema."""
    mlp = document.get("mlp", [])
    per_layer, drafting = document.get("per_layer_embedding"), document.get("drafting")
    return Architecture(
        name=document["name"],
        family=document["family"],
        hidden=document["hidden"],
        attention=tuple(mixers.of_document(group) for group in document["attention"]),
        mlp=tuple(Mlp(**group) for group in ([mlp] if isinstance(mlp, dict) else mlp)),
        experts=Experts(**document["experts"]) if "experts" in document else None,
        vocabulary=document["vocabulary"],
        tied=document["tied"],
        positions=document["positions"],
        vision=document.get("vision", 0),
        extra=document.get("extra", 0),
        tables=document.get("tables", 0),
        per_layer=PerLayerEmbedding(**per_layer) if per_layer else None,
        single=document.get("single", False),
        drafting=Drafting(**{**drafting, "borrows": tuple(drafting.get("borrows", ()))}) if drafting else None,
    )


def _refusal(file: Path, fault: Fault) -> Refusal:
    return BAD_ARCHITECTURE(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file}.")
