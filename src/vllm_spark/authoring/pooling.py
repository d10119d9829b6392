"""A new recipe of a model for embeddings or of a reranker. It needs no family: the engine itself reads how such a model
pools, and it has neither parsers nor gates of chats. Pure, but for what it reads of the source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_spark.authoring import composing
from vllm_spark.authoring.checkpoint import Checkpoint, document
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.model_facts import Question
from vllm_spark.authoring.source import Source
from vllm_spark.authoring.task import MODULES, layers
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB
from vllm_spark.node.engine_api import EMBED, RERANK
from vllm_spark.sizing import budget, memory, tensor_parallel

# Each has a recipe; other tasks have none.
ROLES = (EMBED, RERANK)
# What engine_choice reads of a family. From 0.19.1 on the flags of these roles are the same.
ANY_FAMILY: Document = {"name": "of any model", "engine": {"since": "0.19.1"}}
# A document is one request. Longer ones are rare, and each needs its cache.
MOST_TOKENS, REQUESTS = 8192, 2
SEQUENCES = 64
# What an engine takes beside weights and cache with so many batched tokens.
BESIDE_BYTES = budget.IDLE_BYTES + budget.GROWTH_BYTES
DIMENSIONS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim")
# The bounds of gates.embed in recipes/schema.json.
MOST_DIMENSIONS = 65536
POSITIONS = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Sparks:
    """The Sparks of the recipe: how many, and the memory of each in bytes."""

    nodes: int
    total: int


def compose(
    source: Source, opened: Checkpoint, base: Document, request: Request, sparks: Sparks
) -> tuple[dict[str, Any], list[Question]]:
    """Return the recipe of a checkpoint whose task is one of ROLES, and the questions that it leaves open. Raises
    RefusedError for a broken file beside config.json."""
    role, config = str(opened.task.name), opened.config
    tokens = request.context or _tokens(config)
    questions = [] if tokens else [Question("args.max-model-len", f"how long? config.json has no {POSITIONS}")]
    args = {"max-num-seqs": max(SEQUENCES, request.streams)}
    if tokens:
        args |= {"max-model-len": tokens, "max-num-batched-tokens": max(tokens, MOST_TOKENS)}
    gate: dict[str, Any] = {}
    if role == EMBED:
        gate, more = _gate(source, config)
        questions += more
    elif "ForCausalLM" in str(config.get("architectures")):
        text = "what makes scores of this chat model? Without it they mean nothing; qwen3-reranker-0.6b has an example"
        questions += [Question("args.hf-overrides", text), Question("args.chat-template", "which prompt? See there")]
    recipe = {
        "schema_version": 1,
        "name": request.name,
        "summary": f"{opened.repository} as a server of the role {role}, written by recipe new",
        "role": role,
        "sources": [f"config.json and the files beside it of {opened.name}"],
        "image": base["image"],
        "engine": base["engine"],
        "model": {
            "repository": opened.repository,
            **({"revision": opened.revision} if opened.revision else {}),
            "served_name": composing.recipe_name(opened.repository),
            **({"size_bytes": opened.size_bytes} if opened.size_bytes else {}),
        },
        "args": dict(sorted(args.items())),
        "topology": tensor_parallel.topology(sparks.nodes, sparks.nodes),
        "memory": base.get("memory") or _memory(opened, tokens or MOST_TOKENS, sparks),
        "runtime": base.get("runtime", {"shm_size": "1g"}),
        "gates": gates(role, sparks.nodes, gate),
    }
    return recipe, questions


def gates(role: str, nodes: int, gate: Document) -> dict[str, Any]:
    """Return the gates of a recipe of a role. `gate` is what the gate of the role is told."""
    return {
        "ready": {"deadline_s": composing.DEADLINES_S[min(nodes, 2)]},
        "use": {"no-unknown-variable": True},
        **({"fabric": {"network": "IB"}} if nodes > 1 else {}),
        role: dict(gate),
    }


def _tokens(config: Mapping[str, Any]) -> int:
    """Return the context: what the model has, at most MOST_TOKENS; 0 if config.json does not say it."""
    # Roberta's first two positions are no tokens.
    own = count(config.get(POSITIONS)) - 2 * ("roberta" in str(config.get("model_type")))
    return min(max(own, 0), MOST_TOKENS)


def count(value: object) -> int:
    """Return a count of a file of the model, 0 if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _gate(source: Source, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Question]]:
    """Return the options of the gate `embed`: the length that the last layer of modules.json gives a vector."""
    found = config.get("hidden_size")
    kinds = layers(source)
    for kind, path in kinds:
        file = f"{path}/config.json"
        if kind.endswith((".Dense", ".Pooling")) and file in source.files:
            own = document(source, file)
            found = own.get("out_features", own.get("word_embedding_dimension", found))
    normalized = not kinds or any(kind.endswith(".Normalize") for kind, _ in kinds)
    if not 0 < count(found) <= MOST_DIMENSIONS:
        return {"dimensions": 1}, [Question("gates.embed.dimensions", f"how long is a vector? {MODULES} does not say")]
    return {"dimensions": found, **({} if normalized else {"normalized": False})}, []


def _memory(opened: Checkpoint, tokens: int, sparks: Sparks) -> dict[str, Any]:
    """Return the memory: a cache of whole GiB for a decoder, and what the engine asks for at its start. An encoder has
    no heads of its own for what is kept of a token."""
    hidden, heads, kept, layers_, own = (count(opened.config.get(key)) for key in DIMENSIONS)
    token = layers_ * 2 * kept * (own or hidden // max(heads, 1)) * 2 // sparks.nodes  # keys and values of two bytes
    cache = -(-REQUESTS * tokens * token // GIB) * GIB
    share = min((opened.size_bytes // sparks.nodes + cache + BESIDE_BYTES) / sparks.total, composing.UTILIZATION)
    # The engine compares its share with the free memory, so beside bytes of a cache it is rounded down.
    asked = (math.floor if cache else math.ceil)(share * 100) / 100
    return {
        **({"kv_cache_bytes": cache} if cache else {}),
        "utilization": max(asked, 0.01),
        "free_floor_bytes": memory.DEFAULT_FLOOR_BYTES,
    }
