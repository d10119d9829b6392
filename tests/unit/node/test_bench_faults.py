"""Faults of a cell: each is found where it is, and not in a sound cell."""

from __future__ import annotations

import subprocess
import sys
import zlib
from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.node.bench import corpora, faults
from vllm_spark.node.bench.observation import Answer, Observation

CASES: dict[str, Any] = yaml.load((DATA / "bench_faults.yml").read_text(), yaml.CSafeLoader)

STREAMS, REQUESTS, OUTPUT = 2, 4, 64
START = 1795190313.0
BEFORE = {
    "process_start_time_seconds": START,
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:request_success_total": 10.0,
    "vllm:generation_tokens_total": 1000.0,
    "vllm:prompt_tokens_cached_total": 0.0,
}
AFTER = BEFORE | {"vllm:request_success_total": 14.0, "vllm:generation_tokens_total": 1256.0}
SEEN = ("first_tokens_s", "one_chunk_runs", "short_runs", "joined_runs", "lags_ms", "waited", "noisy")
ANSWER = {
    "ids": [700, 60, OUTPUT],
    "text": "Bread rises because yeast turns sugar into gas, and the dough holds that gas in a net of gluten.",
    "completion_tokens": OUTPUT,
    "prompt_tokens": 128,
    "cached_tokens": None,
}


def token_ids(first: int, different: int, length: int) -> list[int]:
    return [first + number % different for number in range(length)]


def answer(changes: dict[str, Any]) -> Answer:
    values = ANSWER | changes
    ids = values.pop("ids")
    then = values.pop("then", None)
    found = None if ids is None else token_ids(*ids) + (token_ids(*then) if then else [])
    return Answer(token_ids=found, **values)


def counters(usual: dict[str, float], changes: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in (usual | changes).items() if value is not None}


def observation(changes: dict[str, Any]) -> Observation:
    samples = [{"t": float(at), **sample} for at, sample in enumerate(changes.get("samples", []))]
    return Observation(
        before=counters(BEFORE, changes.get("before", {})),
        after=counters(AFTER, changes.get("after", {})),
        during=[counters(BEFORE, reading) for reading in changes.get("during", [])],
        requests=REQUESTS,
        streams=STREAMS,
        output=changes.get("output", OUTPUT),
        answers=[answer({})] * (REQUESTS - 1) + [answer(changes.get("answer", {}))],
        samples={"spark1": samples},  # type: ignore[dict-item]
        gpus={"spark1": changes.get("gpu", "NVIDIA GB10")},
        seconds=changes.get("seconds", 0.0),
        uncounted=changes.get("uncounted", ""),
        **{name: changes.get(name, []) for name in SEEN},
    )


def ids(changes: dict[str, Any]) -> set[str]:
    return {fault["id"] for fault in faults.find(observation(changes))}


def test_every_fault_has_cases() -> None:
    assert set(CASES) == set(faults.KINDS)
    assert all(case["has"] and case["has_not"] for case in CASES.values())


def test_the_job_on_a_spark_knows_every_fault() -> None:
    program = "from vllm_spark.node.bench import job, fault_registry; print(*fault_registry.KINDS)"
    known = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert known.stdout.split() == list(faults.KINDS)


def test_a_sound_cell_has_no_fault() -> None:
    assert faults.find(observation({})) == []


@pytest.mark.parametrize(
    ("name", "changes"), [(name, changes) for name, case in CASES.items() for changes in case["has"]]
)
def test_a_fault_is_found(name: str, changes: dict[str, Any]) -> None:
    found = [fault for fault in faults.find(observation(changes)) if fault["id"] == name]
    assert len(found) == 1
    assert found[0]["what"]


@pytest.mark.parametrize(
    ("name", "changes"), [(name, changes) for name, case in CASES.items() for changes in case["has_not"]]
)
def test_a_similar_cell_does_not_have_the_fault(name: str, changes: dict[str, Any]) -> None:
    assert name not in ids(changes)


def test_an_engine_without_counters_and_a_place_without_a_host_are_a_warning() -> None:
    [fault] = faults.find(Observation({}, {}, REQUESTS, STREAMS, OUTPUT, answers=[answer({})]))
    assert fault["id"] == "unobserved"
    assert not faults.worthless([fault])
    assert "no counters" in fault["what"]
    assert "no host" in fault["what"]


def test_an_accepted_fault_and_a_warning_do_not_spoil_a_cell() -> None:
    found = faults.find(observation({"answer": {"ids": [0, 1, OUTPUT]}}))
    assert faults.worthless(found)
    assert not faults.worthless(found, accepted={"garbage"})
    capped = faults.find(observation({"samples": [{"throttle": "sw_power_cap"}] * 2}))
    assert [fault["id"] for fault in capped] == ["power-cap"]
    assert not faults.worthless(capped)


def test_many_samples_with_few_throttled_ones_have_no_fault() -> None:
    hot = [{"throttle": "sw_thermal_slowdown"}] * 4
    assert ids({"samples": hot + [{"throttle": ""}] * 96}) == set()
    assert ids({"samples": hot + [{"throttle": ""}] * 60}) == {"thermal-throttling"}


def test_sound_texts_of_any_length_are_no_garbage() -> None:
    words = " ".join(corpora.lines("long")).split()
    for length in (64, 512, 4096, len(words)):
        ids_ = [zlib.crc32(word.encode()) for word in words[:length]]
        sound = Answer(" ".join(words[:length]), ids_, length)
        found = faults.find(Observation({}, {}, 1, 1, length, answers=[sound]))
        assert {fault["id"] for fault in found} == {"unobserved"}
