"""The page that compares: one order, ratios with a band, names of what differs, and runs that do not fit together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes.bench_evidence import DENSE, MIXTURE, Bench, evidence_of, standard
from vllm_spark.bench import evidence, verdict
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import compared, names, panel, plots, table
from vllm_spark.bench.report.page import page
from vllm_spark.core import paths

LATER = "2026-03-03T08:15:00Z"
RECORDED = paths.RECIPES / "evidence"


def run(bench: Bench) -> Evidence:
    return evidence_of(standard(bench))


def recorded(*files: str) -> list[Evidence]:
    return [evidence.read(RECORDED / f"{file}.jsonl") for file in files]


def other(run: Evidence, **key: str) -> Evidence:
    """Return a later run with another key."""
    record: Any = {**run.run, "id": "f" * 12, "started": LATER, "key": {**run.run["key"], **key}}
    return replace(run, run=record)


def words(html: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL).split())


FP8, NVFP4 = (f"h200-bench/26b-a4b-{name}.standard" for name in ("fp8", "nvfp4-marlin"))


def test_the_older_run_is_first_wherever_it_stands() -> None:
    runs = recorded(NVFP4, FP8)
    html = page(runs)
    assert html == page(runs[::-1])
    assert words(html).index("experts fp8") < words(html).index("experts nvfp4")


def test_each_leading_figure_has_a_ratio_a_band_and_a_judgement() -> None:
    runs = recorded(FP8, NVFP4)
    lines = compared.lines(runs, compared.of_runs(runs), [*runs[0].cells])
    assert len(lines) == 10
    for line in lines:
        [ratio] = line.ratios
        assert ratio is not None
        assert re.fullmatch(r"[+-]\d+\.\d %", ratio.change)
        assert re.fullmatch(r"(▼ worse|▲ better|same|not judged), band ±[\d.]+ %", ratio.judgement)
    assert lines[0].values == ("261", "238")
    assert (lines[0].ratios[0].change, lines[0].ratios[0].style) == ("-9.0 %", "worse")
    assert compared.summary(runs, lines) == ["B against A, 10 figures: 7 worse, 3 the same."]


RATIOS = {1.0: "+0.0 %", 0.913: "-8.7 %", 1.999: "+99.9 %", 2.4: "2.40 times", 0.3: "0.300 times"}


@pytest.mark.parametrize(("ratio", "shown"), RATIOS.items())
def test_a_large_change_is_a_factor(ratio: float, shown: str) -> None:
    assert compared.text.change(ratio) == shown


FP8_LAYOUT, BF16 = (f"attention={width} experts=fp8 head=bf16 mlp=fp8" for width in ("fp8", "bf16"))
DIFFERENCES: dict[str, tuple[dict[str, str], list[tuple[str, tuple[str, ...]]], str]] = {
    "nothing": ({}, [], "2026-03-03 08:15"),
    "toolkit": ({"toolkit": "2"}, [], "2026-03-03 08:15"),
    "layout": ({"layout": BF16}, [("layout", (FP8_LAYOUT, BF16))], "attention bf16"),
    "launch": ({"launch": "0" * 12}, [("launch", ("ced4527a01fd", "0" * 12))], "2026-03-03 08:15"),
    "unknown launch": ({"launch": ""}, [("launch", ("ced4527a01fd", "unknown"))], "2026-03-03 08:15"),
    "hosts": ({"hosts": "spark1,spark2"}, [("hosts", ("H200", "spark1,spark2"))], "spark1,spark2"),
    "protocol": (
        {"protocol": "2-3e8f55d5667c"},
        [("protocol", ("1-d9efed8802df", "2-3e8f55d5667c"))],
        "2026-03-03 08:15",
    ),
}


@pytest.mark.parametrize(("key", "expected", "name"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_what_differs_is_told_and_a_run_is_never_named_by_a_hash(
    key: dict[str, str], expected: list[tuple[str, tuple[str, ...]]], name: str
) -> None:
    [old] = recorded(FP8)
    runs = [old, other(old, **key)]
    assert names.differences(runs) == expected
    told = names.of_runs(runs)
    assert len({*told}) == 2
    assert told[1] == name
    assert not re.search(r"[0-9a-f]{12}", " ".join(told))


CELLS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "chat, 2k in, 128 out"),
    "depth": ({"depth": 4096}, "chat, 2k in after 4k, 128 out"),
    "streams": ({"streams": 8}, "chat, 2k in, 128 out, 8 streams"),
    "server": ({"server": {"speculative_tokens": 3}}, "chat, 2k in, 128 out, speculative tokens 3"),
}


@pytest.mark.parametrize(("shape", "name"), CELLS.values(), ids=CELLS)
def test_a_cell_is_named_by_its_load(shape: dict[str, Any], name: str) -> None:
    cell = Bench(MIXTURE).cell(**shape)["cell"]
    assert names.of_cells([cell]) == {cell["id"]: name}
    assert names.of_cells([cell, cell | {"id": "again"}]) == {cell["id"]: cell["id"], "again": "again"}


def test_columns_that_say_the_same_are_folded() -> None:
    columns = table.columns(recorded(FP8, NVFP4))
    assert columns.folded == {"first chunk": "first token", "first answer": "first token"}
    bench = Bench(MIXTURE)
    slow = bench.cell()
    slow["figures"]["first_answer"]["median"] *= 9
    assert "first answer" not in table.columns([evidence_of([bench.first(), slow])]).folded


def test_a_warning_stands_once_with_its_count() -> None:
    [(fault, where, what)] = table.warnings(recorded(FP8, NVFP4))
    told = "7 of 8 cells of {} (1, 2, 3, 5, 6, 7, 8)"
    assert (fault, where) == ("garbage", f"{told.format('A')}; {told.format('B')}")
    assert what.startswith("for example ")
    assert page(recorded(FP8, NVFP4)).count("<b>garbage</b>") == 1


def test_accepted_garbage_stands_in_the_sentence() -> None:
    old, new = recorded(FP8, NVFP4)
    assert verdict.verdict(new, [old]).sentence.endswith("; garbage accepted in 7 of 8 cells.")
    assert "garbage" not in verdict.verdict(run(Bench(DENSE)), []).sentence
    runs = recorded(*(f"h100-bench/{name}.depth" for name in ("31b-fp8", "26b-a4b-fp8")))
    assert "Good: 8 better. Garbage accepted in 4 of 4 cells of A." in words(page(runs, verdict="good: 8 better."))
    assert "Garbage accepted in 4 of 4 cells of A." in words(page(runs))
    both = words(page([old, new], verdict=verdict.verdict(new, [old]).sentence))
    assert "Garbage accepted in 7 of 8 cells of A, 7 of 8 cells of B." in both
    assert both.lower().count("garbage accepted") == 1
    assert "cells of B" not in words(page(runs)).partition("What differs")[0]


def test_three_tiles_stand_above_everything_else() -> None:
    runs = recorded(FP8, NVFP4)
    found = compared.tiles(runs, compared.of_runs(runs), {("chat p512 o384 d0 s1", "decode"): "forecast 200 to 300"})
    assert [tile.title for tile in found] == ["Decode of one stream", "Time to first token", "All streams together"]
    assert [tile.values for tile in found] == [("261", "238"), ("69.4", "87.4"), ("834", "890")]
    assert found[0].note == "forecast 200 to 300"
    assert all(tile.ratio for tile in found)
    html = page(runs)
    assert html.index('class="tiles"') < html.index('class="runs"') < html.index("<section")


def test_points_of_unlike_prompts_are_never_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 32k takes another time than one of 2k behind 30k of depth, so one line never has both."""
    drawn: list[panel.Panel] = []
    monkeypatch.setattr(panel, "draw", lambda each: drawn.append(each) or "")
    [first_token] = [plot for plot in plots.ALL if plot.id == "first-token"]
    assert first_token.draw([run(Bench(MIXTURE))])
    lines = [[point.title.partition(":")[0] for point in series.points] for each in drawn for series in each.series]
    assert len(lines) == 2
    for ids in lines:
        alike = {axis: len({re.sub(rf" {axis}\d+", "", id_) for id_ in ids}) for axis in ("p", "d")}
        assert 1 in alike.values()


def test_one_stream_is_also_all_streams_together() -> None:
    html = page([run(Bench(MIXTURE))])
    described = re.findall(r'aria-label="All streams together[^"]*"[^>]*><desc>([^<]*)', html)
    assert re.match(r"[^:]+: 1 → \d", described[0])


def test_the_hosts_have_one_axis_of_time() -> None:
    html = page(recorded(FP8, NVFP4))
    assert html.count("time since the start of the run, s</text>") == html.count("<figcaption><bdi>H200 · ") == 5
    assert "GiB (axis cut)" in html
    assert 'class="axis cut"' in html
    assert "A 7.00 to 7.60, B 7.70 to 7.80" in html


def without(run: Evidence, cell: str) -> Evidence:
    return replace(run, cells={id_: record for id_, record in run.cells.items() if id_ != cell})


def failed(run: Evidence) -> Evidence:
    cells: Any = {id_: {**record, "state": "failed", "figures": {}} for id_, record in run.cells.items()}
    return replace(run, cells=cells, end=None)


ALONE = "have no cell in common, so none of their figures are compared"
# Runs that do not fit together, and what the page says.
ODD: dict[str, tuple[Callable[[], Sequence[Evidence]], str]] = {
    "one run": (lambda: recorded(FP8), "profile standard"),
    "profiles": (lambda: recorded("h100-bench/31b-fp8.standard", "h200-bench/26b-a4b-fp8-mtp.drafter"), ALONE),
    "recipes": (lambda: [run(Bench(DENSE)), run(Bench(MIXTURE, 2))], "may be the effect of what differs"),
    "protocols": (
        lambda: recorded("h200-bench/31b-fp8.standard", "h100-bench/31b-fp8.standard"),
        "by different protocols, so their figures are not defined alike",
    ),
    "three": (
        lambda: recorded(*(f"h100-bench/31b-fp8.{profile}" for profile in ("standard", "depth", "streams"))),
        "B against A, 2 figures: 2 the same. C against A, 2 figures: 2 the same.",
    ),
    "six": (lambda: [run(Bench(MIXTURE, seed)) for seed in range(6)], "F / A"),
    "missing cell": (lambda: [recorded(FP8)[0], without(recorded(NVFP4)[0], "chat p512 o384 d0 s1")], "B / A"),
    "aborted": (lambda: [recorded(FP8)[0], failed(other(recorded(FP8)[0]))], "8 cells: 8 failed; interrupted"),
    "no cells": (lambda: [recorded(FP8)[0], replace(other(recorded(FP8)[0]), cells={})], ALONE),
}


@pytest.mark.parametrize(("runs", "said"), ODD.values(), ids=ODD)
def test_runs_that_do_not_fit_together_have_a_page_that_says_so(
    runs: Callable[[], Sequence[Evidence]], said: str
) -> None:
    assert said in words(page(runs()))


def test_a_figure_that_one_run_lacks_has_no_ratio() -> None:
    runs = [recorded(FP8)[0], without(recorded(NVFP4)[0], "chat p512 o384 d0 s1")]
    lines = compared.lines(runs, compared.of_runs(runs), [*runs[0].cells])
    assert "chat p512 o384 d0 s1" not in {line.cell for line in lines}
    assert len(lines) == 9
    [tile, *_] = compared.tiles(runs, compared.of_runs(runs), {})
    assert tile.id != "chat p512 o384 d0 s1"
