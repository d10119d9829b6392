"""The program that times an all-reduce, with a stand-in for torch whose ranks take a known time."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_spark.inventory import link_timing
from vllm_spark.node import all_reduce


class Ranks:
    """torch and torch.distributed of one rank of three: a call takes 50 µs and 1 ns for each byte."""

    def __init__(self, *, gpu: bool, total: float = 3.0) -> None:
        self.now, self.total, self.group = 0.0, total, {}  # type: ignore[var-annotated]
        self.cuda = SimpleNamespace(is_available=lambda: gpu, synchronize=lambda: None)

    def ones(self, count: int, device: str) -> Any:
        self.group["device"] = device
        values = {"value": 1.0}
        tensor = SimpleNamespace(count=count, values=values, zero_=lambda: values.update(value=0.0))
        tensor.min = tensor.max = lambda: values["value"]
        return tensor

    def init_process_group(self, backend: str, **group: Any) -> None:
        self.group |= {"backend": backend, **group}

    def all_reduce(self, tensor: Any) -> None:
        self.now += 50e-6 + 4 * tensor.count * 1e-9
        tensor.values["value"] *= self.total

    def get_world_size(self) -> int:
        return 3

    def barrier(self) -> None:
        self.now += 1.0

    def destroy_process_group(self) -> None:
        self.group["ended"] = True


def run(monkeypatch: pytest.MonkeyPatch, ranks: Ranks, rank: int = 0) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", str(rank), "3", "192.168.177.11", "25050"])
    monkeypatch.setattr(all_reduce, "importlib", SimpleNamespace(import_module=lambda _: ranks))
    monkeypatch.setattr(all_reduce, "time", SimpleNamespace(perf_counter=lambda: ranks.now))
    all_reduce.main()


def test_the_first_rank_prints_both_times_and_the_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = Ranks(gpu=True)
    run(monkeypatch, ranks)
    printed = capsys.readouterr().out
    timing = link_timing.of_output(printed, ["a", "b", "c"], "image", "2026-11-29")
    assert timing
    assert timing.backend == "nccl"
    assert [us for _, us in timing.calls] == pytest.approx([50 + 16.384, 50 + 67108.864])
    assert {"device": "cuda", "rank": 0, "world_size": 3, "ended": True}.items() <= ranks.group.items()
    assert ranks.group["init_method"] == "tcp://192.168.177.11:25050"
    run(monkeypatch, Ranks(gpu=True), rank=2)
    assert capsys.readouterr().out == ""


def test_without_a_gpu_it_is_gloo_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = Ranks(gpu=False)
    run(monkeypatch, ranks)
    assert json.loads(capsys.readouterr().out)[all_reduce.MARK]["backend"] == "gloo"
    assert (ranks.group["backend"], ranks.group["device"]) == ("gloo", "cpu")


def test_ranks_that_do_not_get_the_sum_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the sum of 3 ranks has 2"):
        run(monkeypatch, Ranks(gpu=True, total=2.0))
