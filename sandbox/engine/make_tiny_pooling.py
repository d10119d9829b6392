#!/usr/bin/env python3
"""Write a tiny model for embeddings and a tiny reranker: make_tiny_pooling.py EMBEDDER RERANKER

Both have the shape of Qwen3 and are served by the real engine. Their weights are constructed (tiny_pooling/weights.py):
the vector of a text is the mean of its words, and the score of a document is the share of its words that the query has.

Requires torch and safetensors, and no network. Equal versions of these write equal bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tiny_pooling import weights, words

# What sentence-transformers has beside the model for embeddings: the engine reads from it how to pool.
MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
POOLING = {
    "word_embedding_dimension": weights.HIDDEN,
    "pooling_mode_lasttoken": True,
    "pooling_mode_mean_tokens": False,
}


def main(embedder: Path, reranker: Path) -> None:
    for role, folder in (("embed", embedder), ("rerank", reranker)):
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "config.json", weights.configuration(role))
        _write(folder / "tokenizer.json", words.tokenizer())
        _write(folder / "tokenizer_config.json", words.tokenizer_config(weights.CONTEXT))
        tensors = {name: torch.tensor(values).to(torch.bfloat16) for name, values in weights.make_weights(role).items()}
        path = folder / "model.safetensors"
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes it with mode 0600
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(MODULES)
    ]
    _write(embedder / "modules.json", modules)
    (embedder / "1_Pooling").mkdir(exist_ok=True)
    _write(embedder / "1_Pooling" / "config.json", POOLING)
    (reranker / "score_template.jinja").write_text(words.TEMPLATE)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
