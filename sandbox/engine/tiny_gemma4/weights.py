"""The tensors with which an engine reproduces the script.

Every embedding is the sum of a direction that all tokens share and an own direction; those of scripted words are
orthogonal. The head reads both: the shared direction yields the fallback, a word's own direction its successors.

Marks need memory, which is the full layer's attention. Its query is the same at every position, and only the keys of
marks match it. The value (the key, on that layer) becomes the mark's direction in the hidden state, which the head
reads, too. Without a mark, the same amount goes into an unused direction, so that the following norms do not differ.

All other layers are random. They are computed at every step, and their outputs are too small to change the script.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tiny_gemma4 import machine as tables
from tiny_gemma4.machine import Machine
from tiny_gemma4.script import AFTER_GREETING, FALLBACK, GREETING
from tiny_gemma4.shape import (
    EXPERT_MLP,
    EXPERTS,
    FULL_HEAD_DIM,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LEAST_FREE,
    MLP,
    ROTATED,
)

# Length of a layer's output in the hidden state. The embedding has length 1.
QUIET, MEMORY = 0.01, 0.5
# The key of a mark has 1 in the dimension of every token, and this value in its own dimension.
CODE = 2.0


@dataclass(frozen=True, slots=True)
class Directions:
    """Orthogonal unit vectors of the hidden state: shared by all tokens, unread, of each scripted word, of the memory
    of each mark, and the free ones (rows)."""

    shared: torch.Tensor
    unread: torch.Tensor
    own: dict[str, torch.Tensor]
    memory: dict[str, torch.Tensor]
    free: torch.Tensor


def directions(machine: Machine) -> Directions:
    """Return the directions. Raises ValueError if the hidden state has too few dimensions for the script."""
    basis = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0].T
    words, marks = machine.words, tuple(machine.levels)
    first_mark = 2 + len(words)
    free = basis[first_mark + len(marks) :]
    if len(free) < LEAST_FREE:
        raise ValueError(f"{len(words)} words and {len(marks)} marks are too many for {HIDDEN} dimensions")
    return Directions(
        shared=basis[0],
        unread=basis[1],
        own=dict(zip(words, basis[2:], strict=False)),
        memory=dict(zip(marks, basis[first_mark:], strict=False)),
        free=free,
    )


def scripted_ends(
    machine: Machine, to: Directions, ids: dict[str, int], vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings and the output head."""
    rows = torch.randn(vocabulary, len(to.free)) @ to.free
    rows /= rows.norm(dim=1, keepdim=True)
    for word, direction in to.own.items():
        rows[ids[word]] = direction
    embeddings = (to.shared + rows) / 2**0.5
    # Length of either half of an embedding, and of a memory, after the final norm.
    length = (HIDDEN / (1 + MEMORY**2)) ** 0.5
    half, memory = length / 2**0.5, length * MEMORY * CODE / (1 + CODE**2) ** 0.5
    head = torch.zeros(vocabulary, HIDDEN)
    for word, logit in FALLBACK.items():
        head[ids[word]] += logit / half * to.shared
    for word, successors in machine.successors.items():
        for successor in successors:
            logit = tables.SHARED if machine.shared(word) else tables.SURE
            head[ids[successor]] += logit / half * to.own[word]
    for word, marks in machine.preferred.items():
        for mark in marks:
            head[ids[word]] += tables.MARKED / memory * to.memory[mark]
    word, more = AFTER_GREETING
    head[ids[word]] += more / half * to.own[GREETING[-1]]
    return embeddings, head


def remembering(machine: Machine, to: Directions) -> dict[str, torch.Tensor]:
    """Return the projections of the full layer's attention. Keys and queries use dimensions that are not rotated, so
    that the distance of a mark does not matter: `every` (all tokens), `found` (marks), and one dimension per mark."""
    first = int(FULL_HEAD_DIM / 2 * ROTATED)
    every, found, codes = first, first + 1, first + 2
    if codes + len(machine.levels) > FULL_HEAD_DIM // 2:
        raise ValueError(f"{len(machine.levels)} marks are too many for a head of {FULL_HEAD_DIM}")
    query, key = torch.zeros(FULL_HEAD_DIM, HIDDEN), torch.zeros(FULL_HEAD_DIM, HIDDEN)
    out = torch.zeros(HIDDEN, FULL_HEAD_DIM)
    query[found] = to.shared
    key[every] = to.shared
    out[:, every] = to.unread
    for index, (mark, level) in enumerate(machine.levels.items()):
        # After the norm, the keys of a higher level are longer in `found`: 52, 85 and 112 of 128.
        key[found] += 2 ** (level - 1) * to.own[mark]
        key[codes + index] = CODE * to.own[mark]
        out[:, codes + index] = to.memory[mark]
    return {
        "self_attn.q_proj.weight": query.repeat(HEADS, 1),
        "self_attn.k_proj.weight": key.repeat(KV_HEADS, 1),
        "self_attn.o_proj.weight": out.repeat(1, HEADS),
        "post_attention_layernorm.weight": torch.full((HIDDEN,), MEMORY),
    }


def random_layer(kind: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one layer by their names in it."""
    full = kind == "full_attention"
    dim = FULL_HEAD_DIM if full else HEAD_DIM
    random = {
        "self_attn.q_proj.weight": (HEADS * dim, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * dim, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * dim),
        "mlp.gate_proj.weight": (MLP, HIDDEN),
        "mlp.up_proj.weight": (MLP, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, MLP),
        "router.proj.weight": (EXPERTS, HIDDEN),
        "experts.gate_up_proj": (EXPERTS, 2 * EXPERT_MLP, HIDDEN),
        "experts.down_proj": (EXPERTS, HIDDEN, EXPERT_MLP),
    }
    if not full:  # on the full layer the keys are the values
        random["self_attn.v_proj.weight"] = (KV_HEADS * dim, HIDDEN)
    constant = {
        "self_attn.q_norm.weight": (dim, 1.0),
        "self_attn.k_norm.weight": (dim, 1.0),
        "input_layernorm.weight": (HIDDEN, 1.0),
        "pre_feedforward_layernorm.weight": (HIDDEN, 1.0),
        "pre_feedforward_layernorm_2.weight": (HIDDEN, 1.0),
        "post_feedforward_layernorm_1.weight": (HIDDEN, 1.0),
        "post_feedforward_layernorm_2.weight": (HIDDEN, 1.0),
        "post_attention_layernorm.weight": (HIDDEN, QUIET),
        "post_feedforward_layernorm.weight": (HIDDEN, QUIET),
        "router.scale": (HIDDEN, 1.0),
        "router.per_expert_scale": (EXPERTS, 1.0),
        "layer_scalar": (1, 1.0),
    }
    weights = {name: torch.randn(*shape) * 0.05 for name, shape in random.items()}
    return weights | {name: torch.full((size,), value) for name, (size, value) in constant.items()}


def make_weights(machine: Machine, ids: dict[str, int], vocabulary: int) -> dict[str, torch.Tensor]:
    """Return every tensor of the checkpoint."""
    to = directions(machine)
    embeddings, head = scripted_ends(machine, to, ids, vocabulary)
    weights = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for index, kind in enumerate(LAYERS):
        layer = random_layer(kind)
        if kind == "full_attention":
            layer |= remembering(machine, to)
        weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return weights
