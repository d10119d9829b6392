"""Cases in tests/cases/*.json: an inventory and facts, and the expected argv, plan or refusals.

A case has `deployments` (default: one, `demo`, of recipe `everything` on spark1), `host`, `limit`, `secrets`, `lock`
(images of a lock file), `lock_models` (its models), `edge` (vllm_edge), `fabric` (for a pair: a folder of
tests/data/fabric), `facts` (merged over tests/data/facts/spark.json), `host_facts` (for one host), and `expect`:
`argv`, `plan` (fields of the plan), `files` (paths), `summary` or `refusals` (id -> a part of the message).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import CASES, filled, hosts_of, intents, resolved
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch, plan, ranks


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_case(file: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    case = json.loads(file.read_text())
    expected = case["expect"]
    assert expected, "the case expects nothing"
    host = case.get("host", "spark1")
    try:
        lock = tmp_path / "lock.yml"
        lock.write_text(json.dumps({"images": case.get("lock", {}), "models": case.get("lock_models", {})}))
        specs = resolved(case, host, lock)
        hosts = hosts_of(case, specs, facts, tmp_path)
        planned, summary = plan.of_host(intents(specs), hosts, host, "test")
    except RefusedError as error:
        messages = {refusal.id: str(refusal) for refusal in error.refusals}
        assert messages.keys() == expected.get("refusals", {}).keys(), messages
        for name, part in expected["refusals"].items():
            assert part in messages[name]
        return
    assert "refusals" not in expected, "nothing was refused"
    ranked = ranks.join(specs, hosts)[host]
    if "argv" in expected:
        assert launch.argv(ranked) == filled(expected["argv"], launch.fingerprint(ranked))
    if "summary" in expected:
        assert summary == expected["summary"]
    if "files" in expected:
        assert [file_.path for file_ in planned.files] == expected["files"]
    for name, value in expected.get("plan", {}).items():
        assert planned.to_json()[name] == value, name
