"""Architectures: every file is good, says where its numbers are from, and a fault in one is a message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import architecture

# Keys without a number of their own.
WORDS = {"schema_version", "name", "family", "summary", "sources"}


@pytest.mark.parametrize("name", architecture.names())
def test_every_number_has_its_source(name: str) -> None:
    document = yaml.safe_load(architecture.names()[name].read_text())
    assert architecture.load(name).name == name
    assert set(document["sources"]) == set(document) - WORDS


# change of a good file -> a part of the message
FAULTS = {
    "hidden: 5376": ("hidden: 0", "hidden: 0"),
    "kind: sliding, layers: 50,": ("kind: sliding, layers: 50, colour: red,", "unknown key colour"),
    ", window: 1024": ("", "missing key window"),
    "name: gemma-4-31b": ("name: other", "name: other — expected: broken"),
    "tied: true": ("tied: [", "broken.yml: while parsing"),
}


@pytest.mark.parametrize("good", FAULTS)
def test_a_fault_is_a_message(good: str, tmp_path: Path) -> None:
    text = architecture.names()["gemma-4-31b"].read_text()
    bad, said = FAULTS[good]
    assert good in text
    file = tmp_path / "broken.yml"
    file.write_text(text.replace(good, bad, 1))
    with pytest.raises(RefusedError) as refused:
        architecture.read(file)
    assert said in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RefusedError, match="Fix: name 'gemma-4-31b'"):
        architecture.load("gemma-4-31")
