"""The inventory of a change of the server: the deployment's own overrides stay, and no other deployment changes."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.bench import variants

OTHER = {"name": "other", "recipe": "b", "hosts": ["spark2"]}


@pytest.mark.parametrize(
    ("own", "server", "overrides"),
    [
        ({}, {"mode": "eager"}, {"args": {"enforce-eager": True}}),
        (
            {"args": {"enforce-eager": True, "max-num-seqs": 4}},
            {"mode": "compiled"},
            {"args": {"enforce-eager": None, "max-num-seqs": 4}},
        ),
        (
            {"memory": {"utilization": 0.5}},
            {"speculative_tokens": 3},
            {"memory": {"utilization": 0.5}, "drafter": {"speculative_tokens": 3}},
        ),
        ({"drafter": None}, {"mode": "eager"}, {"drafter": None, "args": {"enforce-eager": True}}),
    ],
)
def test_a_change_is_an_override(own: dict[str, Any], server: dict[str, Any], overrides: dict[str, Any]) -> None:
    deployment = {"name": "demo", "recipe": "a", "hosts": ["spark1"], **({"overrides": own} if own else {})}
    inventory = [deployment, OTHER]
    changed = variants.inventory(inventory, "demo", server)
    assert changed == [{**deployment, "overrides": overrides}, OTHER]
    assert deployment.get("overrides", {}) == own
