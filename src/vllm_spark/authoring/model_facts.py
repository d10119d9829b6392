"""What is settled about a model: its family, architecture, widths, own drafting head, and what stays open. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.authoring import dimensions, least_size, widths
from vllm_spark.authoring.checkpoint import Checkpoint
from vllm_spark.authoring.widths import Part
from vllm_spark.core import text
from vllm_spark.core.types import Document
from vllm_spark.recipe import architecture
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.recipe.feed_forward import Experts

# A part may differ by so much from its dimensions: norms, biases, and vectors of linear layers.
TOLERANCE = 0.02
BITS_OF_A_BYTE = 8
# Keys of config.json that name a width outside of the quantisation.
EXPERTS = ("expert_dtype",)
# Parts of a layout that are always named, and parts that follow another one or are BF16 unless they are named.
NAMED = ("attention", "mlp", "experts", "head")
DEFAULTS: Mapping[str, str] = architecture.PARTS


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator must answer. `field` is the place in the recipe."""

    field: str
    text: str

    def __str__(self) -> str:
        """Return one line that a terminal and a comment of YAML can hold: names in it come from a hub."""
        return text.printable(" ".join(f"{self.field}: {self.text}".split()))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model. `architecture` and `head` (its own drafting head) are documents of files, empty if not settled.

    `least_bytes` is the least size of its weights, 0 if its dimensions are not known. `built` has its dimensions, also
    if its widths are not known.
    """

    family: Document
    architecture: dict[str, Any]
    layout: dict[str, Any]
    head: dict[str, Any]
    vision: bool
    questions: tuple[Question, ...]
    least_bytes: int = 0
    built: Architecture | None = None

    @property
    def settled(self) -> bool:
        return bool(self.architecture and self.layout)

    def widths(self) -> dict[str, str]:
        """Return the width of each part that has only one."""
        return {part: width for part, width in self.layout.items() if isinstance(width, str)}


def read(checkpoint: Checkpoint, known: Document, name: str) -> ModelFacts:
    """Return the facts of a checkpoint of a family. `name` is the name of its architecture file."""
    found = dimensions.read(checkpoint.config, known["architecture"])
    questions = [
        Question(f"architecture {text.partition(':')[0]}", text.partition(": ")[2]) for text in found.questions
    ]
    layers = _layers(found.document)
    parts = widths.parts(checkpoint.tensors, layers)
    vision = "vision" in parts or isinstance(checkpoint.config.get("vision_config"), Mapping)
    document = {
        "schema_version": 1,
        "name": name,
        "family": known["name"].replace(".", "-"),
        "summary": _summary(checkpoint, found.document),
        **found.document,
        **({"vision": sum(parts["vision"].weights.values())} if "vision" in parts else {}),
        "sources": _sources(checkpoint, found.keys, parts),
    }
    if not questions:
        document["tied"] = document["tied"] if "head" not in parts else False
        questions += _document_questions(document)
    if questions:
        return ModelFacts(
            known, {}, {}, {}, vision, tuple(questions), _least_bytes(_known_weights(document), checkpoint)
        )
    built = architecture.from_document(document)
    questions += _doubts(built, parts)
    layout, open_widths = _layout(built, parts, checkpoint)
    questions += open_widths
    head = own_head(checkpoint, known, document, parts)
    settled = not questions
    least = _least_bytes(sum(built.stored_weights().values()), checkpoint)
    settled_parts = (document, layout) if settled else ({}, {})
    return ModelFacts(known, *settled_parts, head, vision, tuple(questions), least, built)


def least_bits(checkpoint: Checkpoint) -> float:
    """Return the fewest bits of a weight. DeepSeek V4 names the width of its experts beside the quantisation."""
    named = {**checkpoint.quantisation, **{key: checkpoint.config[key] for key in EXPERTS if key in checkpoint.config}}
    return least_size.bits_of(named, checkpoint.repository)


def _least_bytes(weights: int, checkpoint: Checkpoint) -> int:
    return int(weights * least_bits(checkpoint) / BITS_OF_A_BYTE)


def _known_weights(document: Document) -> int:
    """Return the weights of the parts that are settled although others are not: experts and vocabulary."""
    hidden, experts = document["hidden"], document.get("experts", {})
    tables: int = hidden * document["vocabulary"]
    whole = experts and all(type(value) is int for value in experts.values())
    return tables + sum(Experts(**experts).weights(hidden).values()) if whole else tables


def _layers(document: Mapping[str, Any]) -> int:
    """Return the number of layers as config.json counts them, 0 if it is not known."""
    groups = [*document.get("attention", [])]
    if document.get("single"):
        mlp = document.get("mlp", [])
        groups += [mlp] if isinstance(mlp, dict) else mlp
        groups += [document["experts"]] if "experts" in document else []
    return sum(group["layers"] for group in groups)


def _document_questions(document: Document) -> list[Question]:
    faults = architecture.document_faults(document, document["name"])
    return [Question("architecture", f"{fault.what}: what is right? Expected is {fault.expected}") for fault in faults]


def _summary(checkpoint: Checkpoint, document: Mapping[str, Any]) -> str:
    experts = document.get("experts")
    mixture = f", {experts['count']} experts of which {experts['per_token']} serve a token" if experts else ""
    return f"{(checkpoint.repository or checkpoint.name).rpartition('/')[2]}: {_layers(document)} layers{mixture}"


def _sources(checkpoint: Checkpoint, keys: Mapping[str, list[str]], parts: Mapping[str, Part]) -> dict[str, str]:
    origin = f"{checkpoint.repository}@{checkpoint.revision}" if checkpoint.revision else checkpoint.name
    sources = {place: f"{', '.join(used)} of config.json of {origin}" for place, used in keys.items() if used}
    if "vision" in parts:
        sources["vision"] = f"the safetensors headers of {origin}"
    return sources


def _counted(parts: Mapping[str, Part]) -> dict[str, int]:
    return {part: sum(found.weights.values()) for part, found in parts.items()}


def _doubts(model: Architecture, parts: Mapping[str, Part]) -> Iterator[Question]:
    """Yield a question for each part whose headers have another number of weights than its dimensions."""
    if not parts:
        return
    counted, expected = _counted(parts), model.stored_weights()
    if "head" not in counted:
        # Gemma 4 E4B has a table for each layer beside the embedding.
        counted["head"] = counted.get("embedding", 0) - expected.get("embedding", 0)
        expected["embedding"] = counted["embedding"] = 0
    for part in ("attention", "linear", "mlp", "shared", "experts", "latent", "head", "embedding"):
        found, wanted = counted.get(part, 0), expected.get(part, 0)
        if abs(found - wanted) > TOLERANCE * max(found, wanted):
            yield Question(
                f"architecture {part}",
                f"which is right? The dimensions of config.json give {wanted / 1e9:.3f} billion weights, and the "
                f"headers of the files have {found / 1e9:.3f}",
            )


def _layout(
    model: Architecture, parts: Mapping[str, Part], checkpoint: Checkpoint
) -> tuple[dict[str, Any], list[Question]]:
    """Return the layout, and a question for each part without a width."""
    needed = [part for part in NAMED if model.stored_weights()[part]]
    if not parts:
        return _plain_layout(needed, checkpoint)
    layout: dict[str, Any] = {}
    questions = []
    for part, weights in model.stored_weights().items():
        source = "embedding" if part == "head" and "head" not in parts else part
        if not (weights or part == "drafter") or source not in parts:
            continue
        width = parts[source].layout()
        if width is None:
            questions.append(Question(f"model.layout.{part}", f"which width is {parts[source].unknown[0]}?"))
        elif part in NAMED or width != layout.get(DEFAULTS[part], "bf16"):
            layout[part] = width
    questions += [
        Question(f"model.layout.{part}", "which width? No file has it") for part in needed if part not in layout
    ]
    return layout, questions


def _plain_layout(needed: list[str], checkpoint: Checkpoint) -> tuple[dict[str, Any], list[Question]]:
    """Return the layout of a config.json without files: BF16 if neither it nor the name promises fewer bits."""
    promised = least_size.fewer_bits(checkpoint.repository)
    if checkpoint.quantisation:
        said = f"The configuration {_quantised(checkpoint.quantisation)}"
    elif promised:
        # ModelOpt keeps the widths in hf_quant_config.json.
        said = f"The name of the repository says {promised}, and config.json alone names no quantisation"
    else:
        return dict.fromkeys(needed, "bf16"), []
    asked = f"which width has each part? {said}; the headers of the files tell the parts apart"
    return {}, [Question("model.layout", asked)]


def _quantised(quantisation: Mapping[str, Any]) -> str:
    """Return what a quantisation calls itself, in words. ModelOpt has its name one level down."""
    inner = quantisation.get("quantization")
    named = {**quantisation, **(inner if isinstance(inner, Mapping) else {})}
    words = [str(named[key]) for key in ("quant_method", "quant_algo") if named.get(key)]
    return f"names {text.one_line(' '.join(words))[:60]}" if words else "has a quantisation without a name"


def own_head(checkpoint: Checkpoint, known: Document, document: Document, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the architecture of the model's own drafting head, or nothing if the files have none."""
    row = next((row for row in known.get("drafters", ()) if row["method"] == "mtp" and "mixer" in row), None)
    if row is None or "drafter" not in parts:
        return {}
    reader = dimensions.Reader(checkpoint.config, known["architecture"])
    layers = reader.value(row["layers"], "attention")
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        return {}
    head = {key: document[key] for key in ("schema_version", "family", "hidden", "vocabulary", "tied", "positions")} | {
        "name": f"{document['name']}-mtp",
        "summary": f"The model's own drafting head, {layers} layer{'s' * (layers > 1)}",
        "attention": [dimensions.mixer(reader, known["architecture"]["kinds"][row["mixer"]], layers)],
        "extra": 2 * document["hidden"] ** 2,
        "drafting": {"method": "mtp", "borrows": ["head", "embedding"]},
        "sources": {"attention": f"config.json and the headers of {checkpoint.name}"},
    }
    if row.get("feed") == "experts" and "experts" in document:
        head["experts"] = document["experts"] | {"layers": layers}
    elif "mlp" in document:
        mlp = document["mlp"] if isinstance(document["mlp"], dict) else document["mlp"][0]
        head["mlp"] = mlp | {"layers": layers}
    return head


def same_model(document: Document, other: Architecture) -> bool:
    """Return True if an architecture file describes the same model.

    Its name, its family, its vision tower and what was measured of its router may differ.
    """
    own = architecture.from_document(document)
    if own.experts and other.experts:
        own = replace(own, experts=replace(own.experts, used=other.experts.used))
    return replace(own, name=other.name, family=other.family, vision=other.vision) == other
