"""The checklist has every gate and recipe, and its lines name refusals and runbooks of the code."""

from __future__ import annotations

import pytest
from gate_requests import gate_request

from vllm_spark.core import paths
from vllm_spark.core.refusal import REGISTRY
from vllm_spark.docs import checklist
from vllm_spark.docs.checklist import AFTER, BEFORE
from vllm_spark.recipe import loader
from vllm_spark.verify import registry, runner
from vllm_spark.verify.gate import Gate

NAMES = sorted(loader.names([paths.RECIPES]))


@pytest.fixture(scope="module")
def page() -> str:
    return checklist.text()


def row(page: str, first: str) -> list[str]:
    """Return the cells of the only row that starts with `first`."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_gates_are_listed_in_the_order_in_which_they_are_judged(page: str) -> None:
    request = gate_request(gates={gate.name: {"needed": 7} for gate in registry.OPTIONAL})
    later = [each.name for each in runner.rounds(request)[1:]]
    assert {"garbage", "tools", "probe"} <= set(later)
    listed = [cells.split("`")[1] for cells in page.splitlines() if cells.startswith("| `")]
    assert [name for name in listed if name in later] == later


@pytest.mark.parametrize("gate", registry.GATES, ids=lambda gate: gate.name)
def test_a_gate_is_on_the_page(page: str, gate: Gate) -> None:
    assert row(page, f"`{gate.name}` |")[1:] == [gate.proves, gate.judged_where]


def gates_on_page(page: str, recipe: str) -> dict[str, object]:
    """Return the gates that the page shows for a recipe: the deadline, the log gates in order, and the others."""
    _, ready, log, others = row(page, f"[{recipe}](")
    return {
        "ready": ready,
        "log": [entry.split()[0] for entry in log.split("; ")],
        "others": set() if others == "—" else set(others.split(", ")),
    }


def gates_of_recipe(recipe: str) -> dict[str, object]:
    used = loader.load(recipe).document["gates"]
    return {
        "ready": f"{used['ready']['deadline_s']} s",
        "log": [gate["id"] for gate in used["log"]],
        "others": set(used) - {"ready", "log", "answer"},
    }


def test_every_recipe_shows_its_gates(page: str) -> None:
    assert len(NAMES) > 1
    assert {name: gates_on_page(page, name) for name in NAMES} == {name: gates_of_recipe(name) for name in NAMES}


def test_a_log_gate_shows_the_expected_value(page: str) -> None:
    log = row(page, "[gemma-4-26b-a4b-nvfp4-patched](")[2]
    assert "nvfp4-moe is MARLIN" in log
    assert "kv-tokens at least 500,000" in log
    assert "no-unknown-variable (absent)" in log


def test_lines_name_refusals_and_runbooks_of_the_code() -> None:
    used = {(line.what, id_): line for line in (*BEFORE, *AFTER) for id_ in line.refusals}
    assert len(used) > 1
    assert [key for key in used if key[1] not in REGISTRY] == []
    assert [key for key, line in used.items() if REGISTRY[key[1]].runbook not in line.runbooks] == []
