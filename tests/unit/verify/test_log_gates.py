"""The shared log gates: each pattern matches the line that its versions print, and extracts only its own value."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from fakes.gate_requests import gate_request
from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader, shared_gates
from vllm_spark.verify.gates import log as log_gate

LIBRARY = shared_gates.load()
LINES = [(name, line) for name, gate in LIBRARY.items() for line in gate["lines"]]

# (gate, a log of the real engine, the expected value)
REAL = [
    ("attention", "31b-fp8.log", "TRITON_ATTN"),
    ("attention", "31b-fp8-tp2-ray.two-nodes.log", "TRITON_ATTN"),
    ("nvfp4-moe", "26b-a4b-nvfp4-marlin.log", "MARLIN"),
    ("nvfp4-linear", "31b-nvfp4-marlin.log", "Marlin"),
]


@pytest.mark.parametrize(("name", "printed"), LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_pattern_matches_its_line(name: str, printed: dict[str, Any]) -> None:
    match = re.search(LIBRARY[name]["pattern"], printed["line"])
    assert match is not None
    assert ("value" in printed) == ("value" in match.groupdict())
    assert match.groupdict().get("value") == printed.get("value")


@pytest.mark.parametrize(("name", "file", "value"), REAL)
def test_the_pattern_matches_a_real_log(name: str, file: str, value: str) -> None:
    log = (DATA / "engine-logs" / file).read_text().splitlines()
    document = shared_gates.expanded({"gates": {"use": {name: value}}})
    assert log_gate.judge_entry(document["gates"]["log"][0], log).ok is True


def test_a_name_among_the_candidates_is_not_the_choice() -> None:
    line = "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['VLLM_CUTLASS', 'MARLIN']."
    document = shared_gates.expanded({"gates": {"use": {"nvfp4-moe": "MARLIN"}}})
    verdict = log_gate.judge_entry(document["gates"]["log"][0], [line])
    assert verdict.ok is False
    assert "VLLM_CUTLASS" in str(verdict)


@pytest.mark.parametrize(
    ("used", "part"),
    [
        ({"atention": True}, "gates.use.atention: unknown — expected: attention"),
        ({"no-unknown-variable": "MARLIN"}, "expected: true, because this gate has no value"),
    ],
)
def test_a_wrong_use_is_refused(used: dict[str, Any], part: str, tmp_path: Any) -> None:
    document = yaml.load((paths.RECIPES / "gemma-4-31b-awq-mtp.yml").read_text(), yaml.CSafeLoader)
    document["gates"]["use"] = used
    (tmp_path / "gemma-4-31b-awq-mtp.yml").write_text(yaml.safe_dump(document))
    with pytest.raises(RefusedError) as refused:
        loader.read(tmp_path / "gemma-4-31b-awq-mtp.yml")
    assert part in str(refused.value)


def test_a_number_is_a_bound() -> None:
    document = shared_gates.expanded({"gates": {"use": {"kv-tokens": 200000}}})
    gate = document["gates"]["log"][0]
    assert log_gate.judge_entry(gate, ["GPU KV cache size: 146,240 tokens"]).ok is False
    assert log_gate.judge_entry(gate, ["GPU KV cache size: 714,768 tokens"]).ok is True


@pytest.mark.parametrize(
    ("logged", "holds", "part"),
    [
        ("58,240", True, "58,240 tokens of cache"),
        ("58,150", True, "58,150 tokens of cache"),
        ("45,000", False, "a neighbour took memory during the start"),
        ("67,500", False, "the server is over its budget"),
        ("", None, "does not say"),
    ],
)
def test_the_cache_of_a_shared_spark_is_held_against_the_plan(logged: str, holds: bool | None, part: str) -> None:
    request = gate_request(cache_tokens=58_240)
    line = f"(EngineCore pid=80) INFO 11-28 15:42:58 [kv_cache_utils.py:1708] GPU KV cache size: {logged} tokens"
    lines = [f"vllm-spark: launch {request.launch}", line if logged else "INFO ready"]
    (verdict,) = log_gate.judge(request, {}, lines)  # type: ignore[typeddict-item]
    assert (verdict.ok, part in verdict.observed) == (holds, True)
    assert ("`sudo systemctl restart vllm@demo.service`" in verdict.fix) == (holds is False)


def test_an_engine_alone_has_no_planned_cache() -> None:
    request = gate_request()
    assert not list(log_gate.judge(request, {}, [f"vllm-spark: launch {request.launch}"]))  # type: ignore[typeddict-item]
    assert "cache_tokens" not in request.to_json()
    assert gate_request(cache_tokens=1).to_json()["cache_tokens"] == 1
