"""The history of a host as facts: the last judged launch, and all that once passed their gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_units

GOOD, BAD = {"launch": "a", "holds": True}, {"launch": "b", "holds": False}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (None, {"launch": "", "holds": False, "held": []}),
        ([json.dumps(GOOD)], {"launch": "a", "holds": True, "held": ["a"]}),
        ([json.dumps(GOOD), json.dumps(BAD)], {"launch": "b", "holds": False, "held": ["a"]}),
        ([json.dumps(GOOD), '{"launch": "b", "ho'], {"launch": "a", "holds": True, "held": ["a"]}),
    ],
)
def test_judged(lines: list[str] | None, expected: dict[str, Any], tmp_path: Path) -> None:
    if lines is not None:
        (tmp_path / "demo.jsonl").write_text("\n".join(lines))
    assert spark_units.judged("demo", str(tmp_path)) == expected
