"""The sandbox's tiny models for embeddings and for the order of documents against the gates, without an engine: their
tensors are computed here as Qwen3 does, in Python alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fakes.gate_requests import gate_request
from tiny_pooling import weights, words
from vllm_spark.authoring import task
from vllm_spark.core import paths
from vllm_spark.node.engine_api import EMBED, RERANK
from vllm_spark.recipe import loader
from vllm_spark.verify.gates import embed, rerank
from vllm_spark.verify.verdict import Verdict

RECIPES = paths.ROOT / "sandbox" / "recipes"
NAMES = {EMBED: "tiny-embedder", RERANK: "tiny-reranker"}

Vector = list[float]


def tokens(text: str) -> list[int]:
    """Return the ids of a text: the longest pieces of each word, as WordPiece takes them."""
    found = []
    for word in re.findall(r"<[a-z]+>|\w+|[^\w\s]", text.lower()):
        start, end = 0, len(word)
        while start < len(word):
            piece = "##" * (start > 0) + word[start:end]
            if piece in words.IDS:
                found.append(words.IDS[piece])
                start, end = end, len(word)
            else:
                end -= 1
                assert end > start, f"{word!r} has a character without a piece"
    return found


class Qwen3:
    """The forward pass of a checkpoint with one head."""

    def __init__(self, role: str) -> None:
        self.config, tensors = weights.configuration(role), weights.make_weights(role)
        self.table: Any = tensors["model.embed_tokens.weight"]
        self.tensors = {name: self._sparse(tensor) for name, tensor in tensors.items() if "embed_tokens" not in name}

    @staticmethod
    def _sparse(tensor: Any) -> Any:
        """Return a matrix as rows of (column, value): most of it is zero."""
        if not isinstance(tensor[0], list):
            return tensor
        return [[(column, value) for column, value in enumerate(row) if value] for row in tensor]

    def last(self, ids: Sequence[int]) -> Vector:
        """Return the last hidden state after the final norm."""
        states = [list(self.table[number]) for number in ids]
        for layer in range(int(str(self.config["num_hidden_layers"]))):
            states = self._layer(f"model.layers.{layer}.", states)
        return norm(states[-1], self.tensors["model.norm.weight"])

    def _layer(self, prefix: str, states: list[Vector]) -> list[Vector]:
        get = {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
        inputs = [norm(state, get["input_layernorm.weight"]) for state in states]
        queries, keys = (
            [rotated(norm(times(get[f"self_attn.{one}_proj.weight"], x), get[f"self_attn.{one}_norm.weight"]), at)
             for at, x in enumerate(inputs)]
            for one in "qk"
        )  # fmt: skip
        values = [times(get["self_attn.v_proj.weight"], x) for x in inputs]
        result = []
        for at, state in enumerate(states):
            logits = [dot(queries[at], keys[to]) / weights.HEAD**0.5 for to in range(at + 1)]
            shares = [math.exp(logit - max(logits)) for logit in logits]
            mixed = [
                sum(share * value[one] for share, value in zip(shares, values, strict=False)) / sum(shares)
                for one in range(weights.HEAD)
            ]
            attended = added(state, times(get["self_attn.o_proj.weight"], mixed))
            x = norm(attended, get["post_attention_layernorm.weight"])
            gate, up = (times(get[f"mlp.{one}_proj.weight"], x) for one in ("gate", "up"))
            hidden = [one / (1 + math.exp(-one)) * other for one, other in zip(gate, up, strict=True)]
            result.append(added(attended, times(get["mlp.down_proj.weight"], hidden)))
        return result


def norm(vector: Vector, weight: Vector) -> Vector:
    root = (dot(vector, vector) / len(vector) + weights.EPSILON) ** 0.5
    return [value / root * factor for value, factor in zip(vector, weight, strict=True)]


def dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def times(matrix: Sequence[Sequence[tuple[int, float]]], vector: Vector) -> Vector:
    return [sum(vector[column] * value for column, value in row) for row in matrix]


def added(one: Vector, other: Vector) -> Vector:
    return [a + b for a, b in zip(one, other, strict=True)]


def rotated(vector: Vector, at: int) -> Vector:
    half = len(vector) // 2
    result = list(vector)
    for pair in range(half):
        angle = at * weights.ROPE_THETA ** (-pair / half)
        first, second = vector[pair], vector[pair + half]
        result[pair] = first * math.cos(angle) - second * math.sin(angle)
        result[pair + half] = second * math.cos(angle) + first * math.sin(angle)
    return result


@cache
def model(role: str) -> Qwen3:
    return Qwen3(role)


@cache
def embedded(text: str) -> Vector:
    vector = model(EMBED).last([*tokens(text), words.IDS[words.END]])
    return [value / math.hypot(*vector) for value in vector]


@cache
def scored(query: str, document: str) -> float:
    ids = [*tokens(query), words.IDS[words.DOCUMENT], *tokens(document), words.IDS[words.END]]
    (row,) = model(RERANK).tensors["score.weight"]
    return 1 / (1 + math.exp(-sum(model(RERANK).last(ids)[column] * value for column, value in row)))


def reply(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine answers to a request of a gate."""
    if "input" in body:
        return {"data": [{"embedding": embedded(text)} for text in body["input"]]}
    scores = [(scored(body["query"], text), at) for at, text in enumerate(body["documents"])]
    return {"results": [{"index": at, "relevance_score": score} for score, at in sorted(scores, reverse=True)]}


def verdicts(role: str) -> Iterator[Verdict]:
    gates = loader.load(NAMES[role], (RECIPES,)).document["gates"]
    request = gate_request(role=role, gates={role: gates[role]})
    gate = embed.GATE if role == EMBED else rerank.GATE
    sent = gate.requests(request)
    probe: Any = {"responses": {one["id"]: {"status": 200, "json": reply(one["body"])} for one in sent}}
    yield from gate.judge(request, probe, [])


@pytest.mark.parametrize("role", NAMES)
def test_the_model_passes_the_gate_of_its_role(role: str) -> None:
    judged = list(verdicts(role))
    print("\n".join(verdict.line() for verdict in judged))
    assert judged
    assert [verdict.line() for verdict in judged if verdict.ok is not True] == []


def test_the_order_is_not_close() -> None:
    """So that the engine's BF16 does not change it."""
    near, far = (embed.cosine(embedded(embed.QUESTION), embedded(text)) for text in (embed.NEAR, embed.FAR))
    assert near > far + 0.1
    for right, question in enumerate(rerank.QUESTIONS):
        scores = [scored(question, document) for document in rerank.DOCUMENTS]
        assert sorted(scores)[-1] == scores[right] > sorted(scores)[-2] + 0.01


def test_a_text_without_known_words_has_a_vector_too() -> None:
    assert math.hypot(*embedded("Zürich xyzzy 42!".replace("ü", "u"))) == pytest.approx(1)
    assert math.isfinite(scored("xyzzy", "plugh"))


@pytest.mark.parametrize("role", NAMES)
def test_the_files_have_the_form_of_the_published_ones(role: str) -> None:
    """The keys of config.json of Qwen/Qwen3-Embedding-0.6B that the engine reads, and the task that they give."""
    config, tensors = weights.configuration(role), weights.make_weights(role)
    assert task.of_architecture(str(config["architectures"][0])) == ("classify" if role == RERANK else "chat")  # type: ignore[index]
    published = yaml.load((paths.ROOT / "tests/data/imports/configs.yml").read_text(), yaml.CSafeLoader)
    rows = published if isinstance(published, list) else next(iter(published.values()))
    (theirs,) = [row["config"] for row in rows if row["model"] == "Qwen/Qwen3-Embedding-0.6B"]
    assert set(theirs) - {"torch_dtype"} <= set(config)
    shapes = {name: (len(one), len(one[0]) if isinstance(one[0], list) else 0) for name, one in tensors.items()}
    assert shapes["model.embed_tokens.weight"] == (config["vocab_size"], config["hidden_size"])
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (config["hidden_size"], config["head_dim"])
    assert ("score.weight" in shapes) == (role == RERANK)


def test_the_template_of_scores_is_the_prompt_of_a_pair() -> None:
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(words.TEMPLATE)
    messages = [{"role": "query", "content": "a law"}, {"role": "document", "content": "bread"}]
    written = tokens(template.render(messages=messages))
    assert written == [*tokens("a law"), words.IDS[words.DOCUMENT], *tokens("bread"), words.IDS[words.END]]
