"""The shape of the checkpoint: that of Gemma 4 26B-A4B, with small dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from tiny_gemma4.script import END

LAYERS = ("sliding_attention", "sliding_attention", "sliding_attention", "full_attention")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FULL_HEAD_DIM = 256, 4, 2, 64, 128
MLP, EXPERTS, EXPERT_MLP, EXPERTS_PER_TOKEN = 512, 8, 64, 2
# Least number of directions of the hidden state for the tokens that are in no script.
LEAST_FREE = 8
CONTEXT = 262144  # so that a production --max-model-len is accepted
# Rotated share of each half of a full layer's head: its first and its middle dimensions.
ROTATED = 0.25


def configuration(special: Mapping[str, int], vocabulary: int) -> dict[str, object]:
    """Return the config.json, in the format of Gemma 4."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
        "hidden_size": HIDDEN,
        "hidden_size_per_layer_input": 0,
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_global_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "global_head_dim": FULL_HEAD_DIM,
        "attention_k_eq_v": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 128,
        "num_kv_shared_layers": 0,
        "intermediate_size": MLP,
        "use_double_wide_mlp": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "enable_moe_block": True,
        "num_experts": EXPERTS,
        "top_k_experts": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_MLP,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": ROTATED, "rope_theta": 1000000.0},
        },
        "bos_token_id": special["<bos>"],
        "pad_token_id": special["<pad>"],
        "eos_token_id": [special["<eos>"], special[END]],
    }
