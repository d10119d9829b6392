"""The checklist has every gate and recipe, and its lines name refusals and runbooks of the code."""

from __future__ import annotations

import pytest

from fakes.gate_requests import gate_request
from lab.pages import checklist
from lab.pages.checklist import AFTER, BEFORE
from registered_refusals import registered
from vllm_spark.core import paths
from vllm_spark.recipe import loader
from vllm_spark.verify import registry, runner

NAMES = sorted(loader.names([paths.RECIPES]))


@pytest.fixture(scope="module")
def page() -> str:
    return checklist.text()


def row(page: str, first: str) -> list[str]:
    """Return the cells of the only row that starts with `first`."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_gates_are_listed_in_the_order_of_their_run(page: str) -> None:
    request = gate_request(gates={gate.name: {"needed": 7} for gate in registry.OPTIONAL})
    later = [each.name for each in runner.rounds(request)[1:]]
    assert {"garbage", "tools", "probe"} <= set(later)
    listed = [cells.split("`")[1] for cells in page.splitlines() if cells.startswith("| `")]
    assert [name for name in listed if name in later] == later


def test_every_gate_is_on_the_page(page: str) -> None:
    assert len(registry.GATES) > 1
    rows = {gate.name: row(page, f"`{gate.name}` |")[1:] for gate in registry.GATES}
    assert rows == {gate.name: [gate.proves, gate.judged_where] for gate in registry.GATES}


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
    runbooks = registered()
    assert [key for key in used if key[1] not in runbooks] == []
    assert [key for key, line in used.items() if runbooks[key[1]] not in line.runbooks] == []
