"""The checklist: every gate and recipe is on it, and what its lines name is what the code says."""

from __future__ import annotations

import pytest
from gate_requests import gate_request

from vllm_spark.core import paths
from vllm_spark.core.refusal import REGISTRY
from vllm_spark.docs import checklist
from vllm_spark.docs.checklist import AFTER, BEFORE, Line
from vllm_spark.recipe import loader
from vllm_spark.verify import registry, runner
from vllm_spark.verify.gate import Gate

NAMES = sorted(loader.names([paths.RECIPES]))


@pytest.fixture(scope="module")
def page() -> str:
    return checklist.text()


def row(page: str, first: str) -> list[str]:
    """The cells of the one row that begins so."""
    [found] = [line for line in page.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_gates_are_listed_in_the_order_in_which_they_are_judged(page: str) -> None:
    request = gate_request(gates={gate.name: {"needed": 7} for gate in registry.OPTIONAL})
    later = [each.name for each in runner.rounds(request)[1:]]
    assert {"garbage", "tools", "probe"} <= set(later)
    listed = [cells.split("`")[1] for cells in page.splitlines() if cells.startswith("| `")]
    assert [name for name in listed if name in later] == later


@pytest.mark.parametrize("gate", registry.GATES, ids=lambda gate: gate.name)
def test_a_gate_is_on_the_page(page: str, gate: Gate) -> None:
    assert row(page, f"`{gate.name}` |")[1:] == [gate.proves, gate.judged_where]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_shows_each_of_its_gates(page: str, name: str) -> None:
    used = loader.load(name).document["gates"]
    _, ready, log, others = row(page, f"[{name}](")
    assert ready == f"{used['ready']['deadline_s']} s"
    assert [entry.split()[0] for entry in log.split("; ")] == [gate["id"] for gate in used["log"]]
    shown = set() if others == "—" else set(others.split(", "))
    assert shown == set(used) - {"ready", "log", "answer"}


def test_a_log_gate_says_what_it_wants_to_see(page: str) -> None:
    log = row(page, "[gemma-4-26b-a4b-nvfp4-patched](")[2]
    assert "nvfp4-moe is MARLIN" in log
    assert "kv-tokens at least 500,000" in log
    assert "no-unknown-variable (absent)" in log


@pytest.mark.parametrize("line", [*BEFORE, *AFTER], ids=lambda line: line.command)
def test_a_line_names_refusals_and_runbooks_of_the_code(line: Line) -> None:
    assert [id_ for id_ in line.refusals if id_ not in REGISTRY] == []
    assert {REGISTRY[id_].runbook for id_ in line.refusals} <= set(line.runbooks)
