"""Which requests the gate `anthropic` sends to which engine, and what it says of one without the paths."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.gate_requests import gate_request
from vllm_spark.recipe.engine_paths import COUNT_TOKENS, FIRST, MESSAGES
from vllm_spark.verify.gates import anthropic

BOTH = ["anthropic-message", "anthropic-message-stream"]
ALL = [*BOTH, "anthropic-tool", "anthropic-tool-stream", "anthropic-count"]


@pytest.mark.parametrize(
    ("version", "options", "sent", "lacking"),
    [
        ("0.32.0", {}, ALL, []),
        ("0.32.0", {"cases": ["message"]}, BOTH, []),
        ("0.16.0", {}, ALL[:-1], [COUNT_TOKENS]),
        ("0.11.0", {}, [], [MESSAGES, COUNT_TOKENS]),
    ],
)
def test_an_engine_without_a_path_is_not_asked(
    version: str, options: dict[str, Any], sent: list[str], lacking: list[str]
) -> None:
    request = gate_request(engine_version=version, gates={"anthropic": options})
    assert [one["id"] for one in anthropic.build_requests(request)] == sent
    probe: Any = {"responses": {}}
    skipped = [verdict for verdict in anthropic.judge(request, probe, []) if verdict.ok is None]
    assert [verdict.id for verdict in skipped] == lacking
    for verdict in skipped:
        assert verdict.observed == f"vLLM {version} does not have it: {FIRST[verdict.id]} is the first that has"
