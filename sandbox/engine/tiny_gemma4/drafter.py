"""The drafter of the checkpoint: a Gemma 4 assistant that knows which word of the script follows which.

It reads the embedding of the present word alone, so it errs where the script depends on a mark: its acceptance is
neither 0 nor 1. Its layers are random and too quiet to change the word.
"""

from __future__ import annotations

import torch

from tiny_gemma4.shape import FULL_HEAD_DIM, HEAD_DIM, HEADS, HIDDEN, MLP
from tiny_gemma4.weights import QUIET

LAYERS = ("sliding_attention", "full_attention")


def configuration(model: dict[str, object]) -> dict[str, object]:
    """Return the config.json of the drafter of a model with this config.json."""
    text = model | {
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "num_kv_shared_layers": len(LAYERS),
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
    }
    del text["architectures"]
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": HIDDEN,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def make_weights(head: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return every tensor of the drafter. `head` is the output head of the model; its embeddings are shared."""
    weights = {
        "model.embed_tokens.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
        "pre_projection.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1),
        "post_projection.weight": torch.eye(HIDDEN),
    }
    for index, kind in enumerate(LAYERS):
        weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in _layer(kind).items()}
    return weights


def _layer(kind: str) -> dict[str, torch.Tensor]:
    dim = FULL_HEAD_DIM if kind == "full_attention" else HEAD_DIM
    random = {
        "self_attn.q_proj.weight": (HEADS * dim, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * dim),
        "mlp.gate_proj.weight": (MLP, HIDDEN),
        "mlp.up_proj.weight": (MLP, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, MLP),
    }
    constant = {
        "self_attn.q_norm.weight": (dim, 1.0),
        "input_layernorm.weight": (HIDDEN, 1.0),
        "pre_feedforward_layernorm.weight": (HIDDEN, 1.0),
        "post_attention_layernorm.weight": (HIDDEN, QUIET),
        "post_feedforward_layernorm.weight": (HIDDEN, QUIET),
        "layer_scalar": (1, 1.0),
    }
    weights = {name: torch.randn(*shape) * 0.05 for name, shape in random.items()}
    return weights | {name: torch.full((size,), value) for name, (size, value) in constant.items()}
