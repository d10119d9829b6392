"""The architecture of a model from its config.json and the keys that its family names. Pure.

A family's `architecture` says which key of config.json holds each dimension (recipes/families/schema.json). A dimension
that config.json does not have becomes a question and is not guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.types import Document

# A number that no model has, above which the reader would only waste time.
MOST_LAYERS = 1000

# A dimension that no model has.
LARGEST = 1 << 40
SHARED_LAST = "the number of layers that share the cache of others"

# The letters of hybrid_override_pattern (Nemotron-H).
LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}

# Dimensions of a group of layers that may be absent.
OPTIONAL = {"gated", "values_are_keys", "query_rank", "index_heads", "index_size", "index_tokens", "state_width"}
# Dimensions of a group whose value is a text in config.json -> the values in an architecture file.
WORDS = {"state_width": {"float32": 4, "bfloat16": 2, "float16": 2}}


@dataclass(slots=True)
class Dimensions:
    """The architecture document without its name and sources, the keys read for each of its fields, and questions."""

    document: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)


class Reader:
    """Reads values of one config.json by the specifications of a family.

    A specification is a number or true, the name of a key, a list of them of which the first that is set counts (a
    number at its end is the default of the configuration's class), or
    {product: [...]} and {quotient: [a, b]} of specifications, and {zeros: key} of a list.
    """

    def __init__(self, config: Mapping[str, Any], rules: Document) -> None:
        self.rules = rules
        text = config.get(str(rules.get("text", "")))
        self.text: Mapping[str, Any] = text if isinstance(text, Mapping) else config
        self.config = config
        self.result = Dimensions()

    def value(self, spec: Any, place: str) -> Any:
        """Return the value of a specification, or None if config.json does not have it."""
        if isinstance(spec, bool | int):
            return spec
        if isinstance(spec, Mapping):
            return self._computed(spec, place)
        for key in [spec] if isinstance(spec, str) else spec:
            if not isinstance(key, str):
                return self.value(key, place)
            found = self.text.get(key, self.config.get(key))
            if found is not None:
                used = self.result.keys.setdefault(place, [])
                used += [key] if key not in used else []
                return found
        return None

    def _computed(self, spec: Mapping[str, Any], place: str) -> Any:
        rule, parts = next(iter(spec.items()))
        if rule == "zeros":
            listed = self.value(parts, place)
            return listed.count(0) if isinstance(listed, list) else None
        values = [self.value(part, place) for part in parts]
        if any(not isinstance(value, int) for value in values) or (rule == "quotient" and not values[1]):
            return None
        return math.prod(values) if rule == "product" else values[0] // values[1]

    def counted(self, spec: Any, place: str, what: str) -> int:
        """Return a number that a model may do without, 0 without it. A value that cannot be one adds a question."""
        value = self.value(spec, place)
        if value is None or (isinstance(value, int) and 0 <= value <= LARGEST):
            return int(value or 0)
        self.result.questions.append(f"{place}: what is {what}? config.json has {str(value)[:60]}")
        return 0

    def needed(self, spec: Any, place: str, what: str) -> int:
        """Return a number. If config.json does not have it, add a question and return 0."""
        value = self.value(spec, place)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST:
            return value
        names = spec if isinstance(spec, str) else " or ".join(map(str, spec))
        self.result.questions.append(f"{place}: what is {what}? config.json has no usable {names}")
        return 0


def read(config: Mapping[str, Any], rules: Document) -> Dimensions:
    """Return the dimensions of a model."""
    reader = Reader(config, rules)
    result, document = reader.result, reader.result.document
    hidden = document["hidden"] = reader.needed(rules["hidden"], "hidden", "the width of the model")
    kinds = layer_kinds(reader)
    document["attention"] = list(_mixers(reader, kinds))
    _feed_forward(reader, kinds)
    document["vocabulary"] = reader.needed(rules["vocabulary"], "vocabulary", "the size of the vocabulary")
    tied = reader.value(rules["tied"]["keys"], "tied")
    document["tied"] = bool(rules["tied"]["default"] if tied is None else tied)
    document["positions"] = reader.needed(rules["positions"], "positions", "the longest context")
    if rules.get("single"):
        document["single"] = True
    per_layer = {
        key: reader.value(spec, "per_layer_embedding") for key, spec in rules.get("per_layer_embedding", {}).items()
    }
    if per_layer.get("size"):
        document["per_layer_embedding"] = per_layer
    if not kinds or not hidden:
        result.questions.append("attention: which layers does the model have? config.json does not name them")
    return result


def layer_kinds(reader: Reader) -> list[str]:
    """Return the kind of each layer, in the words of the family's `kinds`."""
    pattern = reader.rules["pattern"]
    named = reader.value(pattern.get("types", []), "attention")
    if isinstance(named, Sequence) and not isinstance(named, str) and named:
        return [str(kind) for kind in named]
    letters = reader.value(pattern.get("letters", []), "attention")
    if isinstance(letters, str) and letters:
        return [LETTERS.get(letter, letter) for letter in letters]
    layers = reader.needed(reader.rules["layers"], "attention", "the number of layers")
    if layers > MOST_LAYERS:
        reader.result.questions.append(f"attention: has the model {layers} layers? None known has over {MOST_LAYERS}")
        return []
    every = pattern.get("every")
    interval = reader.value(every["key"], "attention") if every else None
    if every and isinstance(interval, int) and interval > 0:
        return [every["kind"] if (index + 1) % interval == 0 else every["others"] for index in range(layers)]
    return [pattern["all"]] * layers if "all" in pattern else []


def alike(config: Mapping[str, Any], rules: Document) -> list[str]:
    """Return a name per layer, equal for layers that are built alike; empty if config.json does not name them."""
    reader = Reader(config, rules)
    kinds = layer_kinds(reader)
    dense = _dense_layers(reader, kinds, "experts" in rules) if isinstance(rules.get("dense"), Mapping) else 0
    return [f"{kind}, dense" if number < dense else kind for number, kind in enumerate(kinds)]


def _mixers(reader: Reader, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the groups of layers that mix tokens, in the order in which their kinds first appear."""
    known = reader.rules["kinds"]
    for unknown in sorted(set(kinds) - set(known) - {"moe", "mlp"}):
        reader.result.questions.append(f"attention: what is a layer of the kind {unknown}? The family does not know it")
    shared = reader.counted(reader.rules.get("shared_last", []), "attention", SHARED_LAST)
    own, borrowed = (kinds[:-shared], kinds[-shared:]) if shared else (kinds, [])
    for part, extra in ((own, {}), (borrowed, {"shared_kv": True})):
        for kind, count in Counter(part).items():
            if kind in known:
                yield mixer(reader, known[kind], count) | extra


def mixer(reader: Reader, rules: Document, layers: int) -> dict[str, Any]:
    """Return a group of layers of one kind."""
    group: dict[str, Any] = {"kind": rules["kind"], "layers": layers}
    for name, spec in rules.items():
        if name == "kind":
            continue
        if name not in OPTIONAL:
            group[name] = reader.needed(spec, "attention", f"{name} of the {rules['kind']} layers")
            continue
        value = reader.value(spec, "attention")
        value = WORDS[name].get(str(value)) if name in WORDS else value
        if value:
            group[name] = value
    return group


def _feed_forward(reader: Reader, kinds: Sequence[str]) -> None:
    """Add the MLPs and the experts."""
    rules, document = reader.rules, reader.result.document
    count = reader.value(rules["experts"]["count"], "experts") if "experts" in rules else None
    present = rules.get("experts", {}).get("if")
    if present and not reader.value(present, "experts"):
        count = None
    single = bool(rules.get("single"))
    dense = _dense_layers(reader, kinds, bool(count))
    if dense and "mlp" in rules:
        document["mlp"] = _mlp(reader, dense)
    if not count:
        return
    layers = kinds.count("moe") if single else len(kinds) - (0 if rules.get("dense") == "all" else dense)
    document["experts"] = {"layers": layers} | expert_dimensions(reader)


def _dense_layers(reader: Reader, kinds: Sequence[str], experts: bool) -> int:
    rule = reader.rules.get("dense", "all")
    if reader.rules.get("single"):
        return kinds.count("mlp")
    if not experts or rule == "all":
        return len(kinds)
    return min(reader.counted(rule["first"], "mlp", "the number of dense layers"), len(kinds))


def _mlp(reader: Reader, layers: int) -> Any:
    """Return one group, or two if the layers that share their cache are twice as wide (Gemma 4 E2B)."""
    rules = reader.rules["mlp"]
    group: dict[str, Any] = {"layers": layers, "width": reader.needed(rules["width"], "mlp", "the width of the MLP")}
    if "matrices" in rules:
        group["matrices"] = rules["matrices"]
    shared = reader.counted(reader.rules.get("shared_last", []), "mlp", SHARED_LAST)
    if not shared or not reader.value(rules.get("double_for_shared", []), "mlp"):
        return group
    return [group | {"layers": layers - shared}, group | {"layers": shared, "width": 2 * group["width"]}]


def expert_dimensions(reader: Reader) -> dict[str, Any]:
    """Return the experts without their number of layers."""
    rules = reader.rules["experts"]
    experts: dict[str, Any] = {
        "count": reader.needed(rules["count"], "experts", "the number of experts"),
        "per_token": reader.needed(rules["per_token"], "experts", "the number of experts of a token"),
        "width": reader.needed(rules["width"], "experts", "the width of an expert"),
    }
    if "matrices" in rules:
        experts["matrices"] = rules["matrices"]
    for name in ("shared_width", "latent"):
        value = reader.value(rules[name], "experts") if name in rules else None
        if value:
            experts[name] = value
    return experts
