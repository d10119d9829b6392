"""The task of a model: what the engine serves its files for, and the refusal of what is not served here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from vllm_spark.authoring import checkpoint, task
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.new_recipe import Order, write
from vllm_spark.authoring.source import Source, Tensor
from vllm_spark.core.refusal import RefusedError

QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
POOLED = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
BERT = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]}


class Files(Source):
    """A source of JSON files in memory, without weights."""

    def __init__(self, repository: str, config: Mapping[str, Any], **beside: Any) -> None:
        named = {name.replace("_json", ".json"): content for name, content in beside.items()}
        texts = {"config.json": config, **named}
        self._texts = {name: json.dumps(content) for name, content in texts.items()}
        self.name, self.repository, self.revision = repository, repository, "0" * 40
        self.files = {name: len(content) for name, content in self._texts.items()}

    def text(self, path: str) -> str:
        return self._texts[path]

    def headers(self, paths: list[str]) -> Mapping[str, Mapping[str, Tensor]]:
        return {path: {} for path in paths}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Files("Qwen/Qwen3-8B", QWEN3), "chat"),
        (Files("Qwen/Qwen3-Embedding-0.6B", QWEN3, modules_json=POOLED), "embed"),
        (Files("example/no-word-in-the-name", QWEN3, modules_json=POOLED), "embed"),
        (Files("example/no-word-in-the-name", QWEN3, modules_json=POOLED[:1]), "chat"),
        (Files("Qwen/Qwen3-Reranker-4B", QWEN3), "rerank"),
        (Files("x/y", QWEN3, config_sentence_transformers_json={"model_type": "CrossEncoder"}), "rerank"),
        (Files("BAAI/bge-m3", {"architectures": ["XLMRobertaModel"]}), "embed"),
        (Files("BAAI/bge-reranker-v2-m3", {**BERT, "id2label": {"0": "LABEL_0"}}), "rerank"),
        (Files("x/y", {**BERT, "id2label": {"0": "no", "1": "yes"}}), "classify"),
        (Files("openai/whisper-large-v3", {"architectures": ["WhisperForConditionalGeneration"]}), "transcribe"),
        (Files("z-lab/gemma-4-31B-it-DFlash", {"architectures": ["DFlashDraftModel"]}), "draft"),
        (Files("x/y", {"architectures": "no list"}), "chat"),
        (Files("x/Embedder-free-7B", {"architectures": []}), "embed"),
        (Files("x/Membedded-7B", {"architectures": ["AnArchitectureOfTomorrow"]}), "chat"),
    ],
    ids=lambda value: value.repository if isinstance(value, Files) else value,
)
def test_the_task_is_the_one_that_the_engine_serves(source: Files, name: str) -> None:
    config = json.loads(source.text("config.json"))
    assert task.of(source, config).name == name
    assert bool(task.of(source, config).why) == (name != "chat")


def test_a_reader_keeps_the_task_as_data() -> None:
    source = Files("Qwen/Qwen3-Embedding-0.6B", QWEN3, modules_json=POOLED)
    source.files["model.safetensors"] = 1
    assert checkpoint.open_checkpoint(source).task == task.Task("embed", "modules.json has a pooling layer")


@pytest.mark.parametrize("kind", sorted(task.WORDS))
def test_another_task_than_chats_is_refused_with_what_tells_it(kind: task.Name) -> None:
    refused = task.refusal("x/y", task.Task(kind, "its name says so"))
    assert refused.id == "another-task"
    assert task.WORDS[kind] in refused.what
    assert "its name says so" in refused.what


SPEECH = {"architectures": ["WhisperForConditionalGeneration"]}


def test_recipe_new_refuses_speech_before_its_headers_and_says_what_is_missing() -> None:
    source = Files("openai/whisper-large-v3", SPEECH)
    source.files["model.safetensors"] = 1
    with pytest.raises(RefusedError) as caught:
        write(source, Order(Request("x"), node_memory_gb=128), [])
    (refusal,) = caught.value.refusals
    assert refusal.id == "another-task"
    assert "vLLM needs its packages vllm[audio]" in refusal.what


@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_a_damaged_modules_json_is_named(content: str) -> None:
    source = Files("x/y", QWEN3, modules_json=[])
    source._texts["modules.json"] = content
    with pytest.raises(RefusedError, match=r"modules\.json is not JSON"):
        task.of(source, QWEN3)
