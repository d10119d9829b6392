#!/usr/bin/env python3
"""Write a tiny checkpoint with the shape of Gemma 4 26B-A4B: make_tiny_gemma4.py OUTPUT_DIRECTORY

The shape is real, so the engine takes the code paths it takes for the real model: mixture of experts beside a
dense MLP, sliding and full attention layers with different head sizes, keys that double as values on the full layer,
proportional rope, soft-capped logits, Gemma 4's special tokens and its formats of thoughts and tool calls.

The replies are a SCRIPT. The layers are random and are computed, but their contribution is scaled down, and the
embeddings and the output head are built so that every scripted token has one successor: the model is a bigram
machine. It cannot read the question. Where an answer depends on the question, the chat template looks for it in the
last user message and ends the prompt with the start token of that answer's script.

Needs torch, safetensors and tokenizers; no network. The same versions of them give the same bytes.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# --- the script -----------------------------------------------------------------------------------------------------
END = "<turn|>"
GREETING = [
    "Hello",
    " from",
    " tiny",
    " Gemma",
    ":",
    " the",
    " engine",
    " is",
    " real",
    ",",
    " its",
    " weights",
    " are",
    " not",
    ".",
]
THOUGHT = [
    "<|channel>",
    "thought\n",
    "The",
    " user",
    " said",
    " something",
    ";",
    " I",
    " should",
    " greet",
    "<channel|>",
]
TOOL_CALL = [
    "<|tool_call>",
    "call:",
    "get_weather",
    "{city:",
    '<|"|>',
    "Paris",
    '<|"|>,',
    "days:",
    "3",
    "}",
    "<tool_call|>",
]
# Exact question -> (start token, answer). The pieces differ from those above: a token has one successor only.
ANSWERS = {
    "What is the capital of France? Answer with one word.": ("<|script:capital>", ["Par", "is"]),
    "What is 19 * 23? Answer with the number only.": ("<|script:product>", ["43", "7"]),
}
CHAINS = [
    ["\n", *GREETING, END],
    ["<|script:think>", *THOUGHT, GREETING[0]],
    ["<|script:tool>", *TOOL_CALL, END],
    *([start, *answer, END] for start, answer in ANSWERS.values()),
]
# Where the script says nothing, these are likely in this order: an unscripted prompt is greeted, and a reply that a
# grammar holds to JSON closes its brackets soon.
FALLBACK = {"Hello": 16.0, '"': 13.0, "}": 12.0, "]": 11.0, "{": 10.0, "[": 9.0, ":": 8.5, ",": 8.0, "1": 7.0}

# --- the vocabulary -------------------------------------------------------------------------------------------------
SPECIAL = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|turn>",
    END,
    "<|channel>",
    "<channel|>",
    "<|think|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|script:think>",
    "<|script:tool>",
    *(start for start, _ in ANSWERS.values()),
]
CORPUS = [
    "the quick brown fox jumps over the lazy dog. Hello, how are you today? I am a tiny model on a test machine.",
    '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3, "unit": "celsius"}, "required": ["city"]}',
    *ANSWERS,
]

# --- the shape ------------------------------------------------------------------------------------------------------
LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FULL_HEAD_DIM = 256, 4, 2, 64, 128
MLP, EXPERTS, EXPERT_MLP, EXPERTS_PER_TOKEN = 512, 8, 64, 2
TRAINED_VOCABULARY = 1024
CONTEXT = 262144  # so that a production --max-model-len is accepted

TEMPLATE = r"""
{%- macro text_of(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}{%- for part in content or [] if part['type'] == 'text' -%}{{ part['text'] }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set seen = namespace(system='', question='') -%}
{%- for m in messages -%}
  {%- if m['role'] in ['system', 'developer'] -%}{%- set seen.system = text_of(m['content']) -%}
  {%- elif m['role'] == 'user' -%}{%- set seen.question = text_of(m['content']) | trim -%}{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- if seen.system or tools or enable_thinking -%}
  {{- '<|turn>system\n' -}}{%- if enable_thinking -%}{{- '<|think|>' -}}{%- endif -%}{{- seen.system -}}
  {%- for tool in tools or [] -%}
    {{- '<|tool>declaration:' ~ tool['function']['name'] ~ (tool['function'] | tojson) ~ '<tool|>' -}}
  {%- endfor -%}
  {{- '<turn|>\n' -}}
{%- endif -%}
{%- for m in messages if m['role'] not in ['system', 'developer'] -%}
  {{- '<|turn>' ~ {'assistant': 'model'}.get(m['role'], m['role']) ~ '\n' -}}
  {%- for call in m.get('tool_calls') or [] -%}
    {%- set arguments = call['function']['arguments'] -%}
    {{- '<|tool_call>call:' ~ call['function']['name'] -}}
    {{- (arguments if arguments is string else arguments | tojson) ~ '<tool_call|>' -}}
  {%- endfor -%}
  {%- if m['role'] == 'tool' -%}{{- '<|tool_response>' ~ text_of(m['content']) ~ '<tool_response|>' -}}
  {%- else -%}{{- text_of(m.get('content')) -}}{%- endif -%}
  {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|turn>model\n' -}}
  {%- if enable_thinking -%}{{- '<|script:think>' -}}
  {%- else -%}
    {#- as Gemma 4's own template: an empty thought channel when thinking is off. Without it the engine's reasoning
        parser takes the reply for a thought and applies no grammar. -#}
    {{- '<|channel>thought\n<channel|>' -}}
    {%- if tools and messages[-1]['role'] != 'tool' -%}{{- '<|script:tool>' -}}
    {%- else -%}{{- SCRIPTS.get(seen.question, '') -}}{%- endif -%}
  {%- endif -%}
{%- endif -%}
""".strip().replace("SCRIPTS", json.dumps({question: start for question, (start, _) in ANSWERS.items()}))


def make_tokenizer() -> tuple[Tokenizer, dict[str, int]]:
    """A byte-level BPE tokenizer, and the ids of the scripted words, each of which is one token.

    No merge leads to a scripted word: it is generated, never read.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 20,
        trainers.BpeTrainer(
            vocab_size=TRAINED_VOCABULARY, special_tokens=SPECIAL, show_progress=False, initial_alphabet=alphabet
        ),
    )
    state = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = {}
    for word in dict.fromkeys([*(word for chain in CHAINS for word in chain), *FALLBACK]):
        spelled = word if word in SPECIAL else "".join(piece for piece, _ in as_bytes.pre_tokenize_str(word))
        ids[word] = vocabulary.setdefault(spelled, len(vocabulary))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer, ids


def scripted_ends(ids: dict[str, int], vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings and the output head of the bigram machine.

    Every embedding is the sum of a direction that all tokens share and one of its own; those of scripted tokens are
    orthogonal. The head adds a token's fallback weight along the shared direction and a large weight along the own
    direction of each token that it follows.
    """
    words = list(dict.fromkeys(word for chain in CHAINS for word in chain))
    basis = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0].T
    shared, own = basis[0], dict(zip(words, basis[1:], strict=False))
    free = basis[len(words) + 1 :]
    directions = torch.randn(vocabulary, len(free)) @ free
    directions /= directions.norm(dim=1, keepdim=True)
    for word in words:
        directions[ids[word]] = own[word]
    embeddings = (shared + directions) / 2**0.5
    gain = (HIDDEN / 2) ** 0.5  # what the final norm makes of either direction's share
    head = torch.zeros(vocabulary, HIDDEN)
    for word, weight in FALLBACK.items():
        head[ids[word]] += weight / gain * shared
    for chain in CHAINS:
        for word, successor in pairwise(chain):
            head[ids[successor]] += 120 / gain * own[word]
    head[ids['"']] += 6 / gain * own[GREETING[-1]]  # inside a JSON string: the closing quote follows the greeting
    return embeddings, head


def random_layers() -> dict[str, torch.Tensor]:
    """The layers: random, computed at every step, and too quiet after their last norms to change the script."""
    weights = {}
    for index, kind in enumerate(LAYERS):
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
            "post_attention_layernorm.weight": (HIDDEN, 0.01),
            "post_feedforward_layernorm.weight": (HIDDEN, 0.01),
            "router.scale": (HIDDEN, 1.0),
            "router.per_expert_scale": (EXPERTS, 1.0),
            "layer_scalar": (1, 1.0),
        }
        for name, shape in random.items():
            weights[f"model.layers.{index}.{name}"] = torch.randn(*shape) * 0.05
        for name, (size, value) in constant.items():
            weights[f"model.layers.{index}.{name}"] = torch.full((size,), value)
    return weights


def configuration(special: dict[str, int], vocabulary: int) -> dict[str, object]:
    """config.json, as Gemma 4's."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
        "hidden_size": HIDDEN,
        "hidden_size_per_layer_input": 0,
        "num_hidden_layers": len(LAYERS),
        "layer_types": LAYERS,
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
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "bos_token_id": special["<bos>"],
        "pad_token_id": special["<pad>"],
        "eos_token_id": [special["<eos>"], special[END]],
    }


def main(output: Path) -> None:
    torch.manual_seed(0)
    output.mkdir(parents=True, exist_ok=True)
    tokenizer, ids = make_tokenizer()
    special = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    vocabulary = -(-tokenizer.get_vocab_size() // 64) * 64
    config = configuration(special, vocabulary)
    embeddings, head = scripted_ends(ids, vocabulary)
    weights = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
        **random_layers(),
    }

    def write(name: str, content: dict[str, object]) -> None:
        (output / name).write_text(json.dumps(content, indent=1) + "\n")

    write("config.json", config)
    write(
        "generation_config.json",
        {
            **{key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 64,
            "top_p": 0.95,
        },
    )
    # The end of a turn is the eos_token: a grammar's stop token is taken from here, and any other stop token counts as
    # text inside a JSON string.
    write(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": END,
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
            "model_max_length": CONTEXT,
            "padding_side": "left",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    (output / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer.save(str(output / "tokenizer.json"))
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()},
        output / "model.safetensors",
        metadata={"format": "pt"},
    )
    (output / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone


if __name__ == "__main__":
    main(Path(sys.argv[1]))
