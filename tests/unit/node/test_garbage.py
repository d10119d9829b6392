"""One judgement of garbage: the gate and the bench give the same answer, and the right one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.node.bench import faults
from vllm_spark.node.bench.observation import Answer, Observation
from vllm_spark.verify import responses
from vllm_spark.verify.gates import garbage

CASES: dict[str, list[dict[str, Any]]] = yaml.load((DATA / "garbage.yml").read_text(), yaml.CSafeLoader)
SOUND_IDS = [700, 60, 64]


def text_and_ids(case: dict[str, Any]) -> tuple[str, list[int]]:
    first, different, length = case.get("ids", SOUND_IDS)
    return case["text"] * case.get("times", 1), [first + number % different for number in range(length)]


def gate_finds(case: dict[str, Any]) -> list[str]:
    text, ids = text_and_ids(case)
    return list(garbage.faults(responses.Message(content=text, token_ids=tuple(ids))))


def bench_finds(case: dict[str, Any]) -> list[str]:
    text, ids = text_and_ids(case)
    seen = Observation({}, {}, 1, 1, len(ids), answers=[Answer(text, ids, len(ids))])
    return [fault["what"] for fault in faults.find(seen) if fault["id"] == "garbage"]


@pytest.mark.parametrize("case", CASES["sound"], ids=repr)
def test_a_sound_answer_is_sound_for_the_gate_and_for_the_bench(case: dict[str, Any]) -> None:
    assert gate_finds(case) == []
    assert bench_finds(case) == []


@pytest.mark.parametrize("case", CASES["garbage"], ids=repr)
def test_garbage_is_garbage_for_the_gate_and_for_the_bench(case: dict[str, Any]) -> None:
    first = gate_finds(case)[0]
    assert bench_finds(case) == [f"1 of 1 answers: {first}"]


def test_the_bench_judges_the_start_of_an_answer_and_says_so() -> None:
    ids = list(range(700, 1100))
    long: dict[str, Any] = {"text": "!" * 1000 + "and so on", "ids": [0, 1, 400]}
    assert bench_finds(long) == ["1 of 1 answers: in the first 256 tokens, all 256 tokens are id 0"]
    seen = Observation({}, {}, 1, 1, len(ids), answers=[Answer(long["text"], ids, len(ids))])
    assert [fault["what"] for fault in faults.find(seen) if fault["id"] != "unobserved"] == [
        "1 of 1 answers: in the first 1000 characters, '!' stands 1000 times in a row"
    ]
