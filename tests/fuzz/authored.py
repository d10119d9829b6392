"""What `vllm-spark recipe new` and `recipe import` read: damaged checkpoints and damaged recipes of others."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hypothesis import strategies as st

from fakes import derived_hub
from fuzz import mutations
from project_files import DATA
from vllm_spark.authoring import sharing
from vllm_spark.cli.recipe import import_, new
from vllm_spark.core import documents, paths
from vllm_spark.core.types import Document
from vllm_spark.recipe import architecture, loader
from vllm_spark.sizing import forecast

# Several families, with and without experts, quantisation, vision and a drafting head; few enough tensors to be quick.
MODELS = (
    "openai/gpt-oss-20b",
    "nvidia/Gemma-4-31B-IT-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "google/gemma-4-26B-A4B",
    "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3.6-27B-NVFP4",
)
COMMIT = "7e577e577e577e577e577e577e577e577e577e57"
QUANTISATION = "hf_quant_config.json"
# Bytes of the count that begins a safetensors file.
COUNT = 8
# Its files are the same for every input.
READ_DOCUMENT = cache(architecture.read_document)
EXPORTED = ("gemma-4-31b-nvfp4", "gpt-oss-120b")

# A model of the stand-in hub, one of its files, the bytes of it, and the size of the file on the disk.
Damage = tuple[str, str, bytes, int]


@cache
def catalogue() -> tuple[Document, ...]:
    return forecast.catalogue([paths.RECIPES])


@cache
def files(name: str) -> dict[str, tuple[bytes, int]]:
    """Return the files of a model: name -> the bytes up to the weights, and the size."""
    repository = derived_hub.repository(name)
    found = {path: (content, repository.size(path)) for path, content in repository.files.items()}
    config = json.loads(repository.files["config.json"])
    if quantisation := config.pop("quantization_config", None):
        content = json.dumps({"quantization": quantisation}).encode()
        found[QUANTISATION] = (content, len(content))
        if name.startswith("nvidia/"):
            content = json.dumps(config).encode()
            found["config.json"] = (content, len(content))
    return found


def sound_checkpoints() -> list[Damage]:
    """Return each model with its own config.json."""
    return [(name, "config.json", *files(name)["config.json"]) for name in MODELS]


@st.composite
def checkpoints(draw: st.DrawFn) -> Damage:
    """A damaged file of a sound checkpoint."""
    name = draw(st.sampled_from(MODELS))
    catalogue()
    known = files(name)
    header = min(path for path in known if path.endswith(".safetensors"))
    texts = [path for path in known if path.endswith(".json") and path != "tokenizer.json"]
    path = draw(st.sampled_from(["config.json", "config.json", header, header, *texts]))
    sound, size = known[path]
    if path == header:
        return name, path, draw(headers(sound)), draw(st.sampled_from((size, size, size, size - 1, len(sound), 0)))
    content = draw(mutations.json_files([json.loads(sound)]))
    return name, path, content, len(content)


@st.composite
def headers(draw: st.DrawFn, sound: bytes) -> bytes:
    """The first bytes of a safetensors file with a damaged header, most often with the count of its bytes."""
    content = draw(mutations.json_files([json.loads(sound[COUNT:])]))
    wrong = draw(st.sampled_from((0, 0, 0, 0, 0, 1, -1, 1 << 20, 1 << 40)))
    count = max(0, len(content) + wrong)
    return draw(st.sampled_from((b"", b"", b"", b"", b"\0"))) + count.to_bytes(COUNT, "little") + content


def read_checkpoint(value: Damage, folder: Path) -> None:
    """Do what `recipe new` does with a folder of which one file is damaged."""
    name, damaged, content, size = value
    root = folder / "model"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, known in {**files(name), damaged: (content, size)}.items():
        with (root / path).open("wb") as file:
            file.write(known[0])
            file.truncate(known[1])
    words: dict[str, Any] = {"node_memory": 128, "nodes": 0, "context": 0, "streams": 1, "drafter": "auto"}
    run(new.run, Namespace(model=str(root), identity=f"{name}@{COMMIT}", **words), folder)


def sound_imports() -> list[Any]:
    """Return recipes of sparkrun, compose files, and recipes in one file as `recipe export` writes them."""
    cases = yaml.load((DATA / "sparkrun" / "cases.yml").read_text(), yaml.CSafeLoader)
    found = [case["recipe"] for case in cases if "refused" not in case]
    files = yaml.load((DATA / "imports" / "files.yml").read_text(), yaml.CSafeLoader)
    sound = [row for row in files if row["expected"]["outcome"] == "import" and not {"held", "beside"} & {*row}]
    found += [yaml.load(row["text"], yaml.CSafeLoader) for row in sound if row["name"].endswith(("yml", "yaml"))]
    for name in EXPORTED:
        file = paths.RECIPES / f"{name}.yml"
        found.append(sharing.shared(loader.read(file), documents.read_yaml(file)))
    return copy.deepcopy(found)


def read_import(content: bytes, folder: Path) -> None:
    """Do what `recipe import` does with a damaged file."""
    file = folder / "theirs.yml"
    file.write_bytes(content)
    run(import_.run, Namespace(file=file), folder)


def run(command: Any, words: Namespace, folder: Path) -> None:
    """Run a sub-command that writes into the folder. Raises what it raises."""
    words = Namespace(
        **{"name": None, "model": None, "like": None, "into": folder / "out", "replace": True, **vars(words)}
    )
    quiet, known = io.StringIO(), catalogue()
    with (
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
        mock.patch.object(forecast, "catalogue", return_value=known),
        mock.patch.object(architecture, "read_document", READ_DOCUMENT),
    ):
        command(words)
