"""The tensors of both models, as lists. Each row of the hidden state has the word of a token, and control dimensions.

A layer of one head does one thing, because queries and keys use few dimensions, which hardly rotate (ROPE_THETA):

- `gather`: the last token gets the mean of all words. That is the vector of the model for embeddings.
- `mark`: each token behind the mark <document> learns that it is of the document.
- `match`: each word of the document looks at its likes; one of the query says that there is one.
- `score`: the last token gets the share of the document's words that the query has. That is the score.

The MLPs are random and small. They are computed, and change nothing that the gates see.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tiny_pooling.words import DOCUMENT, END, IDS, SPECIAL, WORDS

Matrix = list[list[float]]

HIDDEN, HEAD, MLP, WORD = 256, 256, 32, 128
# Control dimensions of the hidden state.
ALL, IS_WORD, IS_MARK, IS_END, OF_DOCUMENT, MATCHED, SCORE = range(WORD, WORD + 7)
# Dimensions of a head that hardly rotate: the second half of either half.
STILL = [*range(HEAD // 4, HEAD // 2), *range(3 * HEAD // 4, HEAD)]
ONE = STILL[-1]
# Least dimensions for letters.
LEAST_FREE = 16
ROPE_THETA, EPSILON, CONTEXT = 1e12, 1e-6, 8192
# Length of the gathered words beside the control dimensions of the last token, of a mark of punctuation, which says
# nothing about a text, and of the row that reads the score.
LOUD, COMMA, READ = 8.0, 0.1, 1.0
# Of queries: how far the logit of a key that is found is above the others.
SHARP = 4.0


def configuration(role: str) -> dict[str, object]:
    """Return config.json of a role, in the format of Qwen3."""
    scores = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "use_sep_token": True}
    return {
        "architectures": ["Qwen3ForSequenceClassification" if role == "rerank" else "Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": vocabulary(),
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": len(LAYERS[role]),
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": len(LAYERS[role]),
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "eos_token_id": IDS[END],
        "pad_token_id": 0,
        **(scores if role == "rerank" else {}),
    }


def vocabulary() -> int:
    """Return the number of rows of the table of tokens."""
    return -(-len(IDS) // 64) * 64


def zeros(rows: int, columns: int) -> Matrix:
    """Return a matrix of zeros."""
    return [[0.0] * columns for _ in range(rows)]


def embeddings() -> Matrix:
    """Return the table of tokens: a dimension for each word, a direction beside them for each letter, and the control
    dimensions. Raises ValueError for more words than there are dimensions."""
    if len(WORDS) > WORD - LEAST_FREE:
        raise ValueError(f"{len(WORDS)} words are too many for {WORD} dimensions")
    table, dice = zeros(vocabulary(), HIDDEN), random.Random(0)  # noqa: S311  no secret
    for piece, number in IDS.items():
        row = table[number]
        row[ALL] = 1.0
        if piece in SPECIAL:
            row[IS_MARK], row[IS_END] = float(piece == DOCUMENT), float(piece == END)
            continue
        row[IS_WORD] = 1.0
        if piece in WORDS:
            row[WORDS.index(piece)] = 1.0
            continue
        free = [dice.gauss(0, 1) for _ in range(WORD - len(WORDS))]
        length = sum(value * value for value in free) ** 0.5 / (1 if piece[-1].isalnum() else COMMA)
        row[len(WORDS) : WORD] = [value / length for value in free]
    return table


def gather() -> dict[str, Matrix]:
    """Every token reads the words of all tokens before it."""
    value, out = zeros(HEAD, HIDDEN), zeros(HIDDEN, HEAD)
    for number in range(WORD):
        value[number][number], out[number][number] = 1.0, LOUD
    return _head({ALL: 1.0}, {IS_WORD: 1.0}, value, out)


def mark() -> dict[str, Matrix]:
    """Every token reads <document>, if it is before it."""
    # What the norm makes of 1 there: the row of <document> has two ones.
    return _head({ALL: 1.0}, {IS_MARK: 1.0}, *_through({IS_MARK: 1.0}, OF_DOCUMENT, (2 / HIDDEN) ** 0.5))


def match() -> dict[str, Matrix]:
    """Every word reads its likes. Those of the document, itself among them, say nothing."""
    head = _head({}, {}, *_through({IS_WORD: 1.0, OF_DOCUMENT: -1.0}, MATCHED, (3 / HIDDEN) ** 0.5))
    for number in range(WORD):
        head["self_attn.q_proj.weight"][STILL[number]][number] = 1.0
        head["self_attn.k_proj.weight"][STILL[number]][number] = 1.0
    return head


def score() -> dict[str, Matrix]:
    """Every token reads what the words of the document have found."""
    key = {IS_WORD: 1.0, OF_DOCUMENT: 1.0, ALL: -1.5}
    return _head({ALL: 1.0}, key, *_through({MATCHED: 1.0}, SCORE, (4 / HIDDEN) ** 0.5))


LAYERS = {"embed": (gather,), "rerank": (mark, match, score)}


def _through(reads: Mapping[int, float], writes: int, strength: float) -> tuple[Matrix, Matrix]:
    """Return the projections of a value of one number."""
    value, out = zeros(HEAD, HIDDEN), zeros(HIDDEN, HEAD)
    for dimension, factor in reads.items():
        value[0][dimension] = factor
    out[writes][0] = strength
    return value, out


def _head(query: Mapping[int, float], key: Mapping[int, float], value: Matrix, out: Matrix) -> dict[str, Matrix]:
    queries, keys = zeros(HEAD, HIDDEN), zeros(HEAD, HIDDEN)
    for matrix, read in ((queries, query), (keys, key)):
        for dimension, factor in read.items():
            matrix[ONE][dimension] = factor
    return {
        "self_attn.q_proj.weight": queries,
        "self_attn.k_proj.weight": keys,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": out,
    }


def layer(made: Mapping[str, Matrix], dice: random.Random) -> dict[str, Matrix | list[float]]:
    """Return all tensors of a layer by their names in it."""

    def rows(count: int, columns: int) -> Matrix:
        return [[dice.gauss(0, 0.001) for _ in range(columns)] for _ in range(count)]

    return {
        **made,
        "self_attn.q_norm.weight": [SHARP] * HEAD,
        "self_attn.k_norm.weight": [1.0] * HEAD,
        "input_layernorm.weight": [1.0] * HIDDEN,
        "post_attention_layernorm.weight": [1.0] * HIDDEN,
        "mlp.gate_proj.weight": rows(MLP, HIDDEN),
        "mlp.up_proj.weight": rows(MLP, HIDDEN),
        "mlp.down_proj.weight": rows(HIDDEN, MLP),
    }


def make_weights(role: str) -> dict[str, Matrix | list[float]]:
    """Return every tensor of the checkpoint of a role."""
    dice = random.Random(1)  # noqa: S311  no secret
    tensors: dict[str, Matrix | list[float]] = {
        "model.embed_tokens.weight": embeddings(),
        "model.norm.weight": [1.0] * HIDDEN,
    }
    for number, make in enumerate(LAYERS[role]):
        tensors |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer(make(), dice).items()}
    if role == "rerank":
        tensors["score.weight"] = [[READ * (dimension == SCORE) for dimension in range(HIDDEN)]]
    return tensors
