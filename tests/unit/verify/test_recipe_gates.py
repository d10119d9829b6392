"""The gates of the catalogue's recipes: those that their flags allow, and a reason for each gate that is left out."""

from __future__ import annotations

import re

import pytest

from vllm_spark.core import paths
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe import loader, roles
from vllm_spark.verify import registry
from vllm_spark.verify.gates import anthropic, failover, garbage, reasoning, structured, tools, vision

NAMES = sorted(name for name in loader.names([paths.RECIPES]) if roles.of(loader.load(name).document) == CHAT)
# An earlier reasoning parser of Gemma 4 may drop every grammar (recipes/compatibility.yml, grammar-dropped).
GRAMMARS_SINCE = (0, 22)
# The first event of an older stream has no type (vLLM #45367).
MESSAGES_SINCE = (0, 24)
NEEDS_REASON = [gate for gate in registry.OPTIONAL if gate.needs_reason_to_omit]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_names_the_gates_that_its_flags_allow(name: str) -> None:
    document = loader.load(name).document
    args, used = document["args"], document["gates"]
    version = tuple(int(part) for part in document["engine"]["version"].split(".")[:2])
    drops_grammars = version < GRAMMARS_SINCE and args.get("reasoning-parser") == "gemma4"
    assert {failover.NAME, garbage.NAME} <= set(used)
    assert (structured.NAME in used) is not drops_grammars
    assert (tools.NAME in used) is ("tool-call-parser" in args)
    assert (anthropic.NAME in used) is (tools.NAME in used and version >= MESSAGES_SINCE)
    assert reasoning.NAME not in used or "reasoning-parser" in args
    sees = not args.get("language-model-only") and args.get("limit-mm-per-prompt", {}).get("image") != 0
    assert vision.NAME not in used or sees


@pytest.mark.parametrize("name", NAMES)
def test_a_gate_that_is_left_out_has_its_reason(name: str) -> None:
    text = (paths.RECIPES / f"{name}.yml").read_text(encoding="utf-8")
    block = re.search(r"^gates:\n((?:[ ].*\n)+)", text, re.MULTILINE)
    assert block
    comments = " ".join(re.findall(r"# (.*)", block[1])).lower()
    assert {"garbage", "vision", "probe"} <= {gate.name for gate in NEEDS_REASON}
    for gate in NEEDS_REASON:
        if gate.name not in loader.load(name).document["gates"]:
            assert f"no {gate.name}" in comments, gate.name


def test_the_catalogue_has_its_recipes() -> None:
    assert len(NAMES) >= 15
