"""Architectures: every file loads and names the source of each number, and a fault is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import architecture

# Keys that need no source.
WITHOUT_SOURCE = {"schema_version", "name", "family", "summary", "sources"}


@pytest.mark.parametrize("name", architecture.names())
def test_every_number_has_its_source(name: str) -> None:
    document = yaml.safe_load(architecture.names()[name].read_text())
    assert architecture.load(name).name == name
    assert set(document["sources"]) == set(document) - WITHOUT_SOURCE


# text of a good file -> (its replacement, a part of the message)
FAULTS = {
    "hidden: 5376": ("hidden: 0", "hidden: 0"),
    "kind: sliding, layers: 50,": ("kind: sliding, layers: 50, colour: red,", "unknown key colour"),
    ", window: 1024": ("", "missing key window"),
    "name: gemma-4-31b": ("name: other", "name: other — expected: broken"),
    "tied: true": ("tied: [", "broken.yml: line 15, column 7: not YAML"),
}


@pytest.mark.parametrize("good", FAULTS)
def test_a_fault_is_refused(good: str, tmp_path: Path) -> None:
    text = architecture.names()["gemma-4-31b"].read_text()
    bad, message = FAULTS[good]
    assert good in text
    file = tmp_path / "broken.yml"
    file.write_text(text.replace(good, bad, 1))
    with pytest.raises(RefusedError) as refused:
        architecture.read(file)
    assert message in str(refused.value)


def test_the_refusal_of_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(RefusedError, match="Fix: name 'gemma-4-31b'"):
        architecture.load("gemma-4-31")
