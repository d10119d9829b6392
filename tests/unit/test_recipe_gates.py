"""Gates of the catalogue's recipes: each recipe has the gates that its flags allow, and a reason for omitting one."""

from __future__ import annotations

import re

import pytest

from vllm_spark.core import paths
from vllm_spark.recipe import loader
from vllm_spark.verify.gates import failover, garbage, reasoning, runner, structured, tools, vision

NAMES = sorted(path.stem for path in paths.RECIPES.glob("*.yml") if path.stem not in ("compatibility", "gates"))
# Earlier reasoning parsers of Gemma 4 may drop every grammar (recipes/compatibility.yml, grammar-dropped).
GRAMMARS_SINCE = (0, 22)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_the_gates_that_its_flags_allow(name: str) -> None:
    document = loader.load(name).document
    args, gates = document["args"], document["gates"]
    version = tuple(int(part) for part in document["engine"]["version"].split(".")[:2])
    drops_grammars = version < GRAMMARS_SINCE and args.get("reasoning-parser") == "gemma4"
    assert {failover.NAME, garbage.NAME} <= set(gates)
    assert (structured.NAME in gates) is not drops_grammars
    assert (tools.NAME in gates) is ("tool-call-parser" in args)
    assert reasoning.NAME not in gates or "reasoning-parser" in args
    accepts_images = not args.get("language-model-only") and args.get("limit-mm-per-prompt", {}).get("image") != 0
    assert vision.NAME not in gates or accepts_images


@pytest.mark.parametrize("name", NAMES)
def test_an_omitted_gate_has_a_reason_in_a_comment(name: str) -> None:
    text = (paths.RECIPES / f"{name}.yml").read_text(encoding="utf-8")
    block = re.search(r"^gates:\n((?:[ ].*\n)+)", text, re.MULTILINE)
    assert block
    comments = " ".join(re.findall(r"# (.*)", block[1])).lower()
    for gate in runner.OPTIONAL:
        if gate.NAME not in loader.load(name).document["gates"]:
            assert f"no {gate.NAME}" in comments, gate.NAME


def test_the_catalogue_has_at_least_15_recipes() -> None:
    assert len(NAMES) >= 15
