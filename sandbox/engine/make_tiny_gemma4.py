#!/usr/bin/env python3
"""Write a tiny checkpoint with the shape of Gemma 4 26B-A4B and its drafter: make_tiny_gemma4.py MODEL DRAFTER

MODEL and DRAFTER are the directories to write.

The shape is real, so the engine uses the code paths of the real model: mixture of experts beside a dense MLP, sliding
and full attention layers with different head sizes, keys that are also the values on the full layer, proportional
rope, soft-capped logits, Gemma 4's special tokens and its formats of thoughts and tool calls.

The replies are a SCRIPT (tiny_gemma4/script.py). The model cannot read the question: the chat template searches for it
in the last user message and ends the prompt with the start of the script that answers it.

Requires torch, safetensors and tokenizers, and no network. Equal versions of these write equal bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tiny_gemma4 import drafter, machine, vocabulary, weights
from tiny_gemma4.script import END, SPECIAL
from tiny_gemma4.shape import CONTEXT, configuration
from tiny_gemma4.template import TEMPLATE


def main(output: Path, drafter_output: Path) -> None:
    torch.manual_seed(0)
    output.mkdir(parents=True, exist_ok=True)
    tables = machine.build()
    tokenizer, ids = vocabulary.make_tokenizer(tables)
    special = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    size = -(-tokenizer.get_vocab_size() // 64) * 64
    config = configuration(special, size)
    tensors = weights.make_weights(tables, ids, size)

    def write(name: str, content: dict[str, object]) -> None:
        _write(output / name, content)

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
    # The end of a turn is the eos_token: a grammar reads its stop token here, and treats any other stop token as text
    # inside a JSON string.
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
    _save(output, tensors)
    drafter_output.mkdir(parents=True, exist_ok=True)
    _write(drafter_output / "config.json", drafter.configuration(config))
    _save(drafter_output, drafter.make_weights(tensors["lm_head.weight"]))


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    saved = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(saved, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes it with mode 0600


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
