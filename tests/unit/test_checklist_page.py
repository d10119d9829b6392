"""The checklist: every gate and recipe is on it, and what its lines name is what the code says."""

from __future__ import annotations

import pytest

from vllm_spark.core import paths
from vllm_spark.core.refusal import REGISTRY
from vllm_spark.docs import checklist
from vllm_spark.docs.checklist import AFTER, BEFORE, Line
from vllm_spark.recipe import loader
from vllm_spark.verify import gates
from vllm_spark.verify.gates import runner, verdict

NAMES = sorted(loader.names([paths.RECIPES]))


@pytest.fixture(scope="module")
def page() -> str:
    return checklist.text()


def row(page: str, first: str) -> list[str]:
    """The cells of the one row that begins so."""
    [found] = [line for line in page.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_every_name_of_a_gate_has_what_it_proves() -> None:
    named = {value for key, value in vars(verdict).items() if key.isupper() and isinstance(value, str)}
    assert {"ready", "garbage", "tools", "probe"} <= named
    assert set(gates.PROVES) == named
    assert {gate.NAME for gate in runner.OPTIONAL} <= set(gates.PROVES)


def test_gates_are_listed_in_the_order_in_which_they_are_judged() -> None:
    wanted = {"rank": 0, "served_name": "m", "through": "", "answers": [], "gates": {}}
    wanted["gates"] = {gate.NAME: {"needed": 7} for gate in runner.OPTIONAL}
    later = [part.name for part in gates.rounds(wanted)[1:]]
    assert len(later) > 1
    assert [gate for gate in gates.PROVES if gate in later] == later


@pytest.mark.parametrize("name", list(gates.PROVES))
def test_a_gate_is_on_the_page(page: str, name: str) -> None:
    assert row(page, f"`{name}` |")[1] == gates.PROVES[name]


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
