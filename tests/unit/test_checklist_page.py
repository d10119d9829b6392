"""The checklist has every gate and recipe, and its lines name refusals and runbooks of the code."""

from __future__ import annotations

import pytest

from vllm_spark.core import paths
from vllm_spark.core.refusal import REGISTRY
from vllm_spark.docs import checklist
from vllm_spark.docs.checklist import AFTER, BEFORE
from vllm_spark.recipe import loader
from vllm_spark.verify import gates
from vllm_spark.verify.gates import runner, verdict

NAMES = sorted(loader.names([paths.RECIPES]))


@pytest.fixture(scope="module")
def page() -> str:
    return checklist.text()


def row(page: str, first: str) -> list[str]:
    """Return the cells of the only row that starts with `first`."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_gate_has_a_text_of_what_it_proves() -> None:
    named = {value for key, value in vars(verdict).items() if key.isupper() and isinstance(value, str)}
    assert {"ready", "garbage", "tools", "probe"} <= named
    assert set(gates.PROVES) == named
    assert {gate.NAME for gate in runner.OPTIONAL} <= set(gates.PROVES)


def test_gates_are_listed_in_the_order_of_their_run() -> None:
    request = {"rank": 0, "served_name": "m", "through": "", "answers": [], "gates": {}}
    request["gates"] = {gate.NAME: {"needed": 7} for gate in runner.OPTIONAL}
    later = [part.name for part in gates.rounds(request)[1:]]
    assert len(later) > 1
    assert [gate for gate in gates.PROVES if gate in later] == later


def test_every_gate_is_on_the_page(page: str) -> None:
    assert len(gates.PROVES) > 1
    assert {name: row(page, f"`{name}` |")[1] for name in gates.PROVES} == dict(gates.PROVES)


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
