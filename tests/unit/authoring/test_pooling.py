"""`recipe new` of a model for embeddings or of a reranker: role, length of a vector, memory, and what stays open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_task import QWEN3, Files

from vllm_spark.authoring import recipe_file
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.new_recipe import NewRecipe, Order, write
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.units import GIB
from vllm_spark.recipe import loader
from vllm_spark.sizing import forecast

# The published configurations of Qwen3-Embedding-0.6B and bge-m3, as far as they are read.
SMALL = {
    **QWEN3,
    **{"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    **{"num_hidden_layers": 28, "max_position_embeddings": 32768},
}
BGE = {
    **{"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "hidden_size": 1024},
    **{"num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 8194},
}
POOLING = {"word_embedding_dimension": 1024, "pooling_mode_cls_token": True}


def modules(*kinds: str) -> list[dict[str, str]]:
    return [
        {"path": f"{at}_{kind}" if at else "", "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(("Transformer", *kinds))
    ]


def made(source: Files, size: int = 0, **more: Any) -> NewRecipe:
    if size:
        source.files["model.safetensors"] = size
    catalogue = forecast.catalogue([paths.RECIPES])
    return write(source, Order(Request("x", **more), node_memory_gb=128), catalogue)


def files(name: str, config: Mapping[str, Any], *kinds: str, **beside: Any) -> Files:
    source = Files(name, config, modules_json=modules(*kinds))
    for path, content in {"1_Pooling/config.json": POOLING, **beside}.items():
        text = json.dumps(content)
        source._texts[path], source.files[path] = text, len(text)
    return source


def test_a_model_of_a_role_takes_no_switch() -> None:
    order = Order(Request("x"), node_memory_gb=128, nodes=3)
    source = files("Qwen/Qwen3-Embedding-0.6B", SMALL, "Pooling")
    source.files["model.safetensors"] = 1191586416
    with pytest.raises(RefusedError, match="a model of the role embed") as refused:
        write(source, order, ())
    assert "Fix: vllm-spark recipe new Qwen/Qwen3-Embedding-0.6B --nodes 1" in str(refused.value)


def test_a_decoder_gets_a_cache_and_its_gate(tmp_path: Path) -> None:
    new = made(files("Qwen/Qwen3-Embedding-0.6B", SMALL, "Pooling", "Normalize"), 1191586416)
    assert new.questions == []
    assert new.recipe["role"] == "embed"
    assert new.recipe["args"] == {"max-model-len": 8192, "max-num-batched-tokens": 8192, "max-num-seqs": 64}
    # Two requests of 8192 tokens with 28 layers of 8 heads of 128 numbers are 1.75 GiB.
    assert new.recipe["memory"]["kv_cache_bytes"] == 2 * GIB
    assert new.recipe["memory"]["utilization"] == 0.04
    assert new.recipe["gates"]["embed"] == {"dimensions": 1024}
    written = recipe_file.write(new, tmp_path, replace=False)
    ours, theirs = loader.read(written[0]).document, loader.load("qwen3-embedding-0.6b").document
    assert {key: ours[key] for key in ("args", "memory", "role")} == {
        key: theirs[key] for key in ("args", "memory", "role")
    }


def test_an_encoder_gets_no_cache_and_a_small_share() -> None:
    new = made(files("BAAI/bge-m3", BGE, "Pooling", "Normalize"), 2271145830)
    memory = new.recipe["memory"]
    assert "kv_cache_bytes" not in memory
    assert memory["utilization"] == 0.04
    assert new.recipe["args"]["max-model-len"] == 8192
    assert new.recipe["gates"]["embed"] == {"dimensions": 1024}


def test_the_last_layer_decides_the_length_and_the_norm() -> None:
    dense = {"in_features": 1024, "out_features": 256}
    new = made(files("x/embed", BGE, "Pooling", "Dense", **{"2_Dense/config.json": dense}), 1 << 20)
    assert new.recipe["gates"]["embed"] == {"dimensions": 256, "normalized": False}


@pytest.mark.parametrize(
    ("source", "role", "asked"),
    [
        (Files("Qwen/Qwen3-Reranker-0.6B", SMALL), "rerank", ["args.hf-overrides", "args.chat-template"]),
        (Files("x/y-reranker", {**BGE, "architectures": ["XLMRobertaForSequenceClassification"]}), "rerank", []),
        (Files("x/embedder", {"architectures": ["XLMRobertaModel"]}), "embed", ["max-model-len", "embed.dimensions"]),
        (Files("x/embedder", {**BGE, "hidden_size": 10**30}), "embed", ["gates.embed.dimensions"]),
        (Files("x/embedder", {**SMALL, "head_dim": "a", "num_hidden_layers": True}), "embed", []),
    ],
)
def test_what_no_file_says_stays_open(source: Files, role: str, asked: list[str], tmp_path: Path) -> None:
    new = made(source)
    assert new.recipe["role"] == role
    assert len(new.questions) == len(asked)
    assert all(word in question.field for word, question in zip(asked, new.questions, strict=True))
    assert loader.read(recipe_file.write(new, tmp_path, replace=False)[0]).document["gates"].keys() >= {role}


def test_code_of_the_model_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        made(Files("x/embedder", {**BGE, "auto_map": {"AutoModel": "modeling.Model"}}))
    assert [refusal.id for refusal in caught.value.refusals] == ["needs-remote-code"]


def test_the_command_prints_role_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BGE))
    status = main.main(
        ["recipe", "new", str(tmp_path / "config.json"), "--as", "BAAI/bge-m3", "--into", str(tmp_path / "recipes")]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "bge-m3: role embed, vLLM " in printed
    assert "memory: 0.0 GiB of cache, 0.02 of the Spark asked for at the start" in printed
