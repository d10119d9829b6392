"""What a recipe needs to know of a checkpoint, read in two steps: first what is small, then the headers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_spark.authoring import sampling, task
from vllm_spark.authoring.source import MAX_TEXT_BYTES, NOT_A_CHECKPOINT, Source, Tensor, bad_file
from vllm_spark.core.refusal import RefusedError

INDEX, QUANTISATION = "model.safetensors.index.json", "hf_quant_config.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
# Headers of files that are read before the sum is tried.
BATCH = 2
# A longer index is not read: the names of its files tell the same. Experts stored one by one make it long.
MAX_INDEX_BYTES = 4 << 20
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
# Formats that vLLM's release on a Spark cannot load, or that can run code when they are read.
OTHER_FORMATS = {
    ".gguf": "GGUF",
    ".bin": "pickles",
    ".pt": "pickles",
    ".pth": "pickles",
    ".ckpt": "pickles",
    ".onnx": "ONNX",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint without its weights.

    `weights` are the safetensors files that the engine reads, path -> bytes. `tensors` is empty if there are no files:
    then only config.json is known.
    """

    name: str
    repository: str
    revision: str
    config: Mapping[str, Any]
    # The quantisation's own configuration, of config.json or of hf_quant_config.json.
    quantisation: Mapping[str, Any]
    weights: Mapping[str, int]
    template: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    task: task.Task = task.CHAT

    @property
    def size_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def alone(self) -> bool:
        """True for the configuration without weights."""
        return not self.weights


def open_checkpoint(source: Source) -> Checkpoint:
    """Return the checkpoint without its tensors. Raises RefusedError if it cannot be one that vLLM loads."""
    if "config.json" not in source.files:
        raise RefusedError([_not_a_checkpoint(source, "has no config.json")])
    config = document(source, "config.json")
    weights, notes = _weights(source)
    quantisation = _text_of(config).get("quantization_config") or config.get("quantization_config")
    if not isinstance(quantisation, Mapping) and QUANTISATION in source.files:
        quantisation = document(source, QUANTISATION)
    return Checkpoint(
        name=source.name,
        repository=source.repository,
        revision=source.revision,
        config=config,
        quantisation=quantisation if isinstance(quantisation, Mapping) else {},
        weights=weights,
        template=_template(source),
        notes=tuple(notes),
        task=task.of(source, config),
    )


def read_tensors(source: Source, checkpoint: Checkpoint, kinds: Sequence[str] = ()) -> Checkpoint:
    """Return the checkpoint with its tensors. Raises RefusedError for a header or an index that does not fit.

    With `kinds`, a name per layer, the headers of a long checkpoint are read until the rest follows from them.
    """
    tensors: dict[str, Tensor] = {}
    placed: dict[str, Mapping[str, Tensor]] = {}
    paths = sampling.order(list(checkpoint.weights))
    while paths:
        batch, paths = paths[:BATCH], paths[BATCH:]
        for path, header in source.headers(batch).items():
            placed[path] = header
            tensors |= header
        if paths and kinds and len(tensors) >= sampling.ENOUGH_TENSORS:
            inferred = sampling.completed(tensors, kinds, checkpoint.size_bytes)
            if inferred is not None:
                note = (
                    f"headers of {len(placed)} of {len(checkpoint.weights)} files read; the size of all proves the rest"
                )
                return replace(checkpoint, tensors=inferred, notes=(*checkpoint.notes, note))
    _check_index(source, placed)
    return replace(checkpoint, tensors=tensors)


def _check_index(source: Source, placed: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse an index that puts tensors where they are not."""
    if not 0 < source.files.get(INDEX, 0) <= MAX_INDEX_BYTES:
        return
    named = document(source, INDEX).get("weight_map", {})
    absent = [name for name, file in named.items() if name not in placed.get(file, {})]
    if absent:
        what = f"puts {len(absent)} tensors where they are not, of which {absent[0]} in {named[absent[0]]}"
        raise RefusedError([bad_file(source.name, INDEX, what)])


def document(source: Source, path: str) -> dict[str, Any]:
    """Return a JSON file that holds a map. Raises RefusedError."""
    try:
        # Configurations have Infinity, which JSON does not.
        found = json.loads(source.text(path))
    except (ValueError, RecursionError) as error:
        raise RefusedError([bad_file(source.name, path, f"is not JSON ({error})")]) from error
    if not isinstance(found, dict):
        raise RefusedError([bad_file(source.name, path, "is JSON, and not a map")])
    return found


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else {}


def _weights(source: Source) -> tuple[dict[str, int], list[str]]:
    """Return the safetensors files that the engine reads, and notes. The configuration alone has none."""
    found = {path: size for path, size in source.files.items() if path.endswith(".safetensors") and "/" not in path}
    if not found:
        if set(source.files) <= {"config.json", QUANTISATION}:
            there = "config.json is" if len(source.files) == 1 else f"config.json and {QUANTISATION} are"
            return {}, [f"only {there} there: widths, sizes and the drafting head are not settled by headers"]
        raise RefusedError([_not_a_checkpoint(source, f"has no safetensors files, but {_formats(source.files)}")])
    if 0 < source.files.get(INDEX, 0) <= MAX_INDEX_BYTES:
        return _indexed(source, found), []
    notes = [f"{INDEX} has {source.files[INDEX]} bytes and was not read"] if INDEX in source.files else []
    return _numbered(source, found), notes


def _indexed(source: Source, found: Mapping[str, int]) -> dict[str, int]:
    named = document(source, INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()) or not named:
        raise RefusedError([bad_file(source.name, INDEX, "has no weight_map")])
    files = sorted(set(named.values()))
    absent = [file for file in files if file not in found]
    if absent:
        what = f"names {len(files)} files, of which {len(absent)} do not exist, {absent[0]} for one"
        raise RefusedError([bad_file(source.name, INDEX, what)])
    return {file: found[file] for file in files}


def _numbered(source: Source, found: Mapping[str, int]) -> dict[str, int]:
    """Return the files of the series model-N-of-M, or all of them without a series."""
    if "model.safetensors" in found:
        return {"model.safetensors": found["model.safetensors"]}
    series = {path: match for path in found if (match := NUMBERED.fullmatch(path)) and match["stem"] == "model"}
    if not series:
        return dict(found)
    expected = max(int(match["count"]) for match in series.values())
    if len(series) != expected:
        what = f"is one of {len(series)} files, whose names say {expected}"
        raise RefusedError([bad_file(source.name, min(series), what)])
    return {path: found[path] for path in sorted(series)}


def _formats(files: Iterable[str]) -> str:
    kinds = sorted({label for path in files for ending, label in OTHER_FORMATS.items() if path.endswith(ending)})
    return " and ".join(kinds) if kinds else "no weights of another kind either"


def _template(source: Source) -> str:
    """Return the chat template, or an empty text."""
    for path in TEMPLATES:
        if path not in source.files or source.files[path] > MAX_TEXT_BYTES:
            continue
        if path.endswith(".jinja"):
            return source.text(path)
        template = document(source, path).get("chat_template")
        if isinstance(template, list):
            # One template per purpose; the engine takes the one named default.
            named = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default")
        if isinstance(template, str) and template:
            return template
    return ""


def _not_a_checkpoint(source: Source, what: str) -> Any:
    return NOT_A_CHECKPOINT(
        what=f"{source.name} {what}",
        expected="config.json and safetensors files, which the engine loads without running code of them",
        fix="name a repository of the same model with safetensors files, most often the one it was converted from.",
    )
