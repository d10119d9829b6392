"""The role of a recipe: what contradicts it, and what it decides of a launch and of liveness."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import build
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import engine_api, liveness
from vllm_spark.recipe import rules

READY = {"ready": {"deadline_s": 600}}


def document(role: str | None, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"embed": {"embed": {"dimensions": 1024}}, "rerank": {"rerank": {}}}.get(role or "", {})
    return {
        "model": {"repository": "a/b"},
        "engine": {"version": "0.33.0"},
        "memory": {"utilization": 0.05},
        "args": args or {},
        "gates": {**READY, **own},
        **({"role": role} if role else {}),
        **more,
    }


@pytest.mark.parametrize("role", [None, "chat", "embed", "rerank"])
@pytest.mark.parametrize("names_runner", [False, True])
def test_a_recipe_of_a_role_with_its_gate_has_no_fault(role: str | None, names_runner: bool) -> None:
    runner = {"runner": "generate" if role in (None, "chat") else "pooling"} if names_runner else {}
    assert list(rules.value_faults(document(role, runner))) == []


@pytest.mark.parametrize(
    ("recipe", "what", "expected"),
    [
        (document(None, {"runner": "pooling"}), "args.runner: 'pooling' beside the role chat", "role: embed or rerank"),
        (
            document("embed", {"runner": "generate"}),
            "args.runner: 'generate' beside the role embed",
            "pooling, embed",
        ),
        (document("rerank", {"convert": "embed"}), "args.convert: 'embed' beside the role rerank", "classify"),
        (document("embed", gates=READY), "gates.embed: absent", "gates.embed, which proves it"),
        (
            document("rerank", gates={**READY, "embed": {"dimensions": 8}, "rerank": {}}),
            "gates.embed: a gate",
            "rerank",
        ),
        (document("embed", gates={**READY, "embed": {}, "garbage": {}}), "gates.garbage: a gate", "or embed"),
        (document(None, gates={**READY, "rerank": {}}), "gates.rerank: a gate that the role chat has not", "log"),
        (document("rerank", drafter={"repository": "a/c", "speculative_tokens": 2}), "drafter: beside", "no drafter"),
    ],
)
def test_what_contradicts_the_role_is_a_fault(recipe: dict[str, Any], what: str, expected: str) -> None:
    (fault,) = rules.value_faults(recipe)
    assert what in fault.what
    assert expected in fault.expected


@pytest.mark.parametrize("role", ["embed", "rerank"])
def test_a_role_sets_the_runner_and_tells_liveness(
    role: str, resolve: Callable[..., Spec], facts: dict[str, Any]
) -> None:
    chat = resolve()
    spec = replace(chat, recipe={**chat.recipe, **{key: document(role)[key] for key in ("role", "gates")}})
    assert "--runner" not in launch.argv(chat)
    argv = launch.argv(spec)
    assert argv[argv.index("--runner") + 1] == "pooling"
    probes = [
        json.loads(next(file.content for file in build(each, facts).files if "liveness.json" in file.path))
        for each in (chat, spec)
    ]
    assert probes[1].items() - probes[0].items() == {("role", role)}


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("chat", '{"choices": [{"text": "a"}]}'),
        ("embed", '{"data": [{"object": "embedding", "embedding": [0.5]}]}'),
        ("rerank", '{"results": [{"index": 0, "relevance_score": 0.5}]}'),
    ],
)
def test_only_the_answer_of_its_role_proves_a_server(role: str, text: str) -> None:
    assert [name for name in engine_api.PROOFS if engine_api.is_token(200, text, name)] == [role]
    assert not engine_api.is_token(503, text, role)


def test_a_server_that_has_embedded_for_others_is_not_judged_by_the_deadline_of_its_start() -> None:
    """It generates nothing, so its counter of what it has read says that it has served."""
    read = 'vllm:prompt_tokens_total{engine="0"} 7.0\nvllm:generation_tokens_total{engine="0"} 0.0'
    late: Any = {
        **{"answered": False, "refused": False, "progress": read, "moves": False, "detail": "timed out"},
        **{"running_s": 400.0, "deadline_s": 300},
    }
    assert liveness.judge({}, late)[1] == "no token within 300 s of its start (timed out)"
    assert liveness.judge({}, {**late, "role": "embed"}) == (
        {"ready": True, "misses": 1, "progress": read, "works": False},
        "",
    )
    assert liveness.judge({}, {**late, "role": "rerank", "progress": ""})[1].startswith("no score within 300 s")
