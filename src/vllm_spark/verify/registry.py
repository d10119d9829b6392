"""The gates in the order in which they are judged. Each file of verify/gates is one gate."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from itertools import pairwise
from types import ModuleType

from vllm_spark.verify import gates
from vllm_spark.verify.gate import Gate


def collect(package: ModuleType) -> tuple[Gate, ...]:
    """Return the gates of a package by their order. Raises ImportError if a file is not a valid gate."""
    gates_of_package = (_gate_of(package, module.name) for module in pkgutil.iter_modules(package.__path__))
    return in_order(gates_of_package)


def in_order(unsorted: Iterable[Gate]) -> tuple[Gate, ...]:
    """Return gates sorted by their order. Raises ImportError for an order that two have, or a cheap gate too late."""
    result = tuple(sorted(unsorted, key=lambda gate: gate.order))
    for first, second in pairwise(result):
        if first.order == second.order:
            raise ImportError(f"gates {first.name} and {second.name} have order {first.order} — expected: one each")
        if second.cheap and not first.cheap:
            raise ImportError(f"gate {second.name} is cheap and comes after {first.name} — expected: cheap gates first")
    return result


def _gate_of(package: ModuleType, name: str) -> Gate:
    gate = getattr(importlib.import_module(f"{package.__name__}.{name}"), "GATE", None)
    if not isinstance(gate, Gate):
        raise ImportError(f"{package.__name__}/{name}.py has no GATE — expected: GATE = Gate(name={name!r}, …)")
    if gate.name != name:
        raise ImportError(f"{package.__name__}/{name}.py defines the gate {gate.name} — expected: the name of the file")
    return gate


GATES = collect(gates)
# The gates that a recipe switches on by naming them.
OPTIONAL = tuple(gate for gate in GATES if gate.optional)
