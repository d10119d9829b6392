"""The registry of gates: every file of verify/gates is a valid gate, and generated files follow the registry."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.verify import registry
from vllm_spark.verify.gate import Gate, no_requests
from vllm_spark.verify.gate_request import GateRequest

FOLDER = paths.ROOT / "src" / "vllm_spark" / "verify" / "gates"


def test_every_file_is_a_gate_and_every_gate_is_a_file() -> None:
    files = {file.stem for file in FOLDER.glob("*.py")} - {"__init__"}
    assert {gate.name for gate in registry.GATES} == files
    assert {"ready", "log", "fabric", "garbage", "probe"} <= files
    assert (FOLDER / "__init__.py").read_text() == ""


def test_the_gates_of_the_toolkit_have_their_order() -> None:
    order = ["ready", "identity", "log", "fabric", "failover", "answer", "garbage", "structured", "tools", "vision"]
    names = [gate.name for gate in registry.GATES]
    assert [name for name in names if name in order] == order
    assert {gate.name for gate in registry.GATES if not gate.optional} >= {"ready", "identity", "log", "answer"}


def judge(*_: object) -> Any:
    return iter(())


def gate(name: str = "extra", order: int = 200, **fields: Any) -> Gate:
    required = {"proves": "a proof", "schema": {}, "requests": no_requests, "judge": judge}
    return Gate(**{"name": name, "order": order, **required, **fields})


@pytest.mark.parametrize("missing", ["name", "proves", "order", "schema", "requests", "judge"])
def test_a_gate_without_a_field_fails_at_import(missing: str) -> None:
    fields = {each.name: getattr(gate(), each.name) for each in dataclasses.fields(Gate) if each.name != missing}
    with pytest.raises(TypeError, match=missing):
        Gate(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"name": ""}, "name is empty"), ({"proves": ""}, "proves is empty"), ({"schema": None}, "schema is None")],
)
def test_an_empty_field_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gate(**fields)


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ([gate("a", 1), gate("b", 1)], "gates a and b have order 1"),
        ([gate("a", 1), gate("b", 2, cheap=True)], "gate b is cheap and comes after a"),
    ],
)
def test_an_impossible_order_is_refused(gates: list[Gate], message: str) -> None:
    with pytest.raises(ImportError, match=message):
        registry.in_order(gates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "extra.py has no GATE"),
        ("from vllm_spark.verify.gates.log import GATE\n", "extra.py defines the gate log"),
    ],
)
def test_a_file_that_is_not_a_gate_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"gates_{len(text)}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "extra.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ImportError, match=message):
        registry.collect(importlib.import_module(package.name))


def test_a_stored_request_of_another_toolkit_is_read() -> None:
    """gates.json on a host may be older or newer than this toolkit."""
    names = [each.name for each in dataclasses.fields(GateRequest) if each.default is dataclasses.MISSING]
    document = dict.fromkeys(name for name in names if name not in ("gates", "through", "edge"))
    request = GateRequest.from_json({**document, "of-another-version": 1})
    assert (request.gates, request.through) == ({}, {})
    assert GateRequest.from_json(request.to_json()) == request
