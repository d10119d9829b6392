"""Verdicts: no false alarm for an unchanged server, and the named cause of a slower one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fakes.bench_history import Server, history
from fakes.bench_runs import KEY, SUBJECT, cell_record, figure, measured, parsed, run_record
from vllm_spark.bench import cause, evidence, references, reported, verdict
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.node.bench import bands, leading
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.recipe import loader
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

DENSE = {"run": {"subject": SUBJECT | {"recipe": "gemma-4-31b-nvfp4"}}}
TP2 = {"run": {"key": KEY | {"topology": "2 nodes, tp 2, ray"}}}

# Relative noise, number of values, and the run.
UNCHANGED: dict[str, tuple[float, int, dict[str, Any]]] = {
    "dense": (0.005, 3, DENSE),
    "dense, noisy": (0.02, 3, DENSE),
    "experts": (0.02, 5, {}),
    "tp 2": (0.06, 7, TP2),
    "tp 2, three values": (0.06, 3, TP2),
}


@pytest.mark.parametrize(("sigma", "values", "run"), UNCHANGED.values(), ids=UNCHANGED)
def test_twenty_unchanged_runs_give_no_alarm(sigma: float, values: int, run: dict[str, Any]) -> None:
    baseline = measured(1000, sigma, values=values, **run)
    for seed in range(20):
        result = verdict.compare.compare([baseline], measured(seed, sigma, values=values, **run))
        assert {row.judgement for row in result.rows} <= {"same", "not measured", "shown"}


H200 = paths.RECIPES / "evidence" / "h200-bench"
SERVERS = ["26b-a4b-fp8", "26b-a4b-nvfp4-marlin", "31b-fp8-tp2", "31b-fp8", "31b-nvfp4-marlin"]
# Files of one server whose cells are also in its file of `standard`.
AGAIN = [file.name for name in SERVERS for file in sorted(H200.glob(f"{name}.[ds]*.jsonl"))]


@pytest.mark.parametrize("name", [name for name in AGAIN if ".standard." not in name])
def test_two_runs_of_a_real_server_give_no_alarm(name: str) -> None:
    old = evidence.read(H200 / f"{name.split('.', maxsplit=1)[0]}.standard.jsonl")
    rows = verdict.compare.compare([old], evidence.read(H200 / name)).rows
    assert [row for row in rows if row.judgement == "worse"] == []
    assert "same" in {row.judgement for row in rows if row.leading and row.metric in ("decode", "total")}


def test_late_first_chunks_of_an_unchanged_server_give_no_alarm() -> None:
    # The engine compiles while it serves: one first chunk in ten comes twelve times as late.
    baseline = late(measured(1000, 0.01), 1000)
    for seed in range(20):
        rows = verdict.compare.compare([baseline], late(measured(seed, 0.01), seed)).rows
        assert [row for row in rows if row.judgement == "worse"] == []


def late(run: Evidence, seed: int) -> Evidence:
    """Return a run some of whose first tokens are late."""
    source = random.Random(seed)  # noqa: S311  noise of a test
    cells = {}
    for name, cell in run.cells.items():
        values = [value * (12 if source.random() < 0.1 else 1) for value in cell["figures"]["first_token"]["values"]]
        figures = {**cell["figures"], "first_token": figure("first_token", values)}
        cells[name] = {**cell, "figures": figures}
    return replace(run, cells=cells)  # type: ignore[arg-type]


@pytest.mark.parametrize("server", SERVERS)
def test_a_real_server_whose_prompts_take_twice_as_long_is_worse(server: str) -> None:
    old = evidence.read(H200 / f"{server}.standard.jsonl")
    new = replace(old, cells={name: slower_prompt(cell) for name, cell in old.cells.items()})
    judged = verdict.verdict(new, [old])
    assert judged.state == "worse"
    assert "first_token of long" in judged.sentence
    assert cause.RULES["prefill"][0] in judged.sentence
    assert {row.judgement for row in judged.compared.rows if row.metric == "decode"} <= {"same", "shown"}


def slower_prompt(cell: CellRecord) -> CellRecord:
    """Return a cell whose prompts took twice as long."""
    factors = {"first_chunk": 2.0, "first_token": 2.0, "first_answer": 2.0, "prefill": 0.5}
    figures = {
        name: figure(name, [value * factors[name] for value in known["values"]]) if name in factors else known
        for name, known in cell["figures"].items()
    }
    return {**cell, "figures": figures}  # type: ignore[typeddict-item]


# Changes of a cell of code with 512 tokens of prompt and 128 of output, and what it is measured for.
LEADING: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("decode",)),
    ({"streams": 4}, ("total",)),
    ({"output": 1}, ("first_token",)),
    ({"prompt": 5, "output": 1}, ("first_token",)),
    ({"prompt": 5, "output": 8}, ("decode",)),
    ({"prompt": 2048, "output": 16, "streams": 2}, ("first_token",)),
    ({"prompt": 2048}, ("decode", "first_token")),
    ({"depth": 4096, "streams": 5}, ("total", "first_token")),
    ({"server": {"start": "cold"}}, ("start",)),
    ({"server": {"mode": "eager"}}, ("decode",)),
]


@pytest.mark.parametrize(("changes", "metrics"), LEADING)
def test_a_cell_is_judged_by_what_it_is_measured_for(changes: dict[str, Any], metrics: tuple[str, ...]) -> None:
    values = {"decode": [60.0], "total": [200.0], "first_token": [350.0], "start": [90.0]}
    record = cell_record(values)
    run = parsed(run_record(), record | {"cell": record["cell"] | changes})
    rows = verdict.compare.compare([run], run).rows
    assert {row.metric for row in rows if row.leading} == set(metrics)
    assert leading.leading_metrics(run.cells["code s1"]["cell"]) == metrics


def test_a_run_without_its_leading_figure_is_not_good() -> None:
    run = parsed(run_record(), cell_record({"first_token": [350.0] * 3}))
    judged = verdict.verdict(run, [run])
    assert judged.state == "unknown"
    assert "decode of code s1, in neither run" in judged.sentence


def test_a_lost_figure_is_named() -> None:
    old = parsed(run_record(), cell_record({"decode": [60.0] * 3}), cell_record({"total": [200.0] * 3}, 4))
    new = parsed(run_record(), cell_record({"first_token": [350.0] * 3}), cell_record({"total": [200.0] * 3}, 4))
    judged = verdict.verdict(new, [old])
    assert judged.state == "unknown"
    assert judged.sentence == (
        "unknown: 1 of 2 leading figures could not be judged; decode of code s1, in one run only."
    )


def test_noise_that_hides_a_change_is_not_called_the_same() -> None:
    run = {"run": {"key": KEY | {"topology": "2 nodes, tp 2, ray"}}}
    rows = verdict.compare.compare([measured(1, 0.06, values=3, **run)], measured(2, 0.06, values=3, **run)).rows
    assert all("too noisy" in row.note for row in rows if row.judgement == "not measured")
    assert "not measured" in {row.judgement for row in rows}


def samples(**values: object) -> dict[str, Any]:
    first = {"t": 1.0, "sm_mhz": 2500.0, "swap_gib": 0.0, "throttle": ""}
    return {"cell": {"samples": {"spark-1": [first | {"sm_mhz": values.get("sm_mhz", 2500.0)}, first | values]}}}


# Noise, factors of the figures, other changes, and the id of the cause.
SLOWER: dict[str, tuple[float, dict[str, float], dict[str, Any], str]] = {
    "dense step": (0.005, {"step": 1.08, "decode": 0.92}, DENSE, "eager"),
    "experts": (0.02, {"step": 1.18, "decode": 0.85}, {}, "eager"),
    "drafter": (0.01, {"acceptance": 0.5, "decode": 0.7}, {}, "drafter"),
    "eager": (0.01, {"step": 1.3, "decode": 0.77}, {}, "eager"),
    "clocks": (0.01, {"step": 1.2, "decode": 0.83, "prefill": 0.8}, samples(sm_mhz=2200.0), "clocks"),
    "swap": (0.01, {"step": 1.2, "decode": 0.83}, samples(swap_gib=3.0), "swap"),
    "thermal": (0.01, {"step": 1.2, "decode": 0.83}, samples(throttle="sw_thermal"), "thermal"),
    "prefill": (0.02, {"prefill": 0.5, "first_token": 2.0}, {}, "prefill"),
    "first token": (0.02, {"first_token": 1.5}, {}, "prefill"),
    "engine": (0.01, {"step": 1.2, "decode": 0.83, "prefill": 0.8}, {}, "engine"),
}


@pytest.mark.parametrize(("sigma", "factors", "changes", "id_"), SLOWER.values(), ids=SLOWER)
def test_a_slower_server_is_found_and_named(
    sigma: float, factors: dict[str, float], changes: dict[str, Any], id_: str
) -> None:
    common = {"run": changes["run"]} if "run" in changes else {}
    old, new = measured(1, sigma, **common), measured(2, sigma, factors, **changes)
    judged = verdict.verdict(new, [old])
    assert judged.state == "worse"
    host = "spark-1: " if id_ in ("swap", "thermal", "clocks") else ""
    # A short prompt is not judged by its first token, so it names no cause.
    cell = "long s1" if id_ in ("prefill", "engine") else "code s1"
    assert judged.compared.causes[cell].startswith(f"{host}{cause.RULES[id_][0]}")


def test_every_rule_has_a_case() -> None:
    assert {id_ for *_, id_ in SLOWER.values()} == set(cause.RULES)


def test_student_quantiles() -> None:
    # Tables of Student's distribution, two-sided.
    table = {(0.05, 4): 2.776, (0.01, 2): 9.925, (0.05, 30): 2.042, (0.001, 10): 4.587}
    for (probability, freedom), value in table.items():
        assert bands.quantile(probability, freedom) == pytest.approx(value, abs=1e-3)


def test_nothing_is_good_without_data() -> None:
    assert verdict.verdict(parsed(run_record(), cell_record({"decode": [60.0]}))).state == "unknown"


def test_a_worthless_cell_is_named() -> None:
    fault = {"id": "other-clients", "what": "2 requests of others"}
    spoiled = cell_record({}, state="worthless", faults=[fault])
    judged = verdict.verdict(parsed(run_record(), spoiled))
    assert judged.state == "worthless"
    assert judged.sentence == (
        "worthless: 1 of 1 cells has no figures that count; code s1: other-clients: 2 requests of others."
    )


def test_every_expected_figure_is_shown() -> None:
    recipe = loader.load("gemma-4-31b-fp8").document
    cell = cell_record({"total": [27.0, 27.2]}, 4, prompt=128)
    rows = list(references.expected_rows(recipe, parsed(run_record(), cell)))
    assert [row.judgement for row in rows] == ["not measured", "same", "not measured"]


def test_decode_is_judged_against_the_forecast() -> None:
    recipe = loader.load("gemma-4-31b-nvfp4").document
    judgements = {
        speed: next(references.forecast_rows(recipe, parsed(run_record(), cell_record({"decode": [speed]})))).judgement
        for speed in (1.0, 6.8, 30.0)
    }
    assert judgements == {1.0: "worse", 6.8: "same", 30.0: "better"}


@pytest.mark.parametrize(("corpus", "texts"), {"code": ["code"], "chat": ["prose", "code"]}.items())
def test_decode_with_a_drafter_is_judged_against_the_forecast_of_its_text(corpus: str, texts: list[str]) -> None:
    """The recipe has the acceptance of prose and of code: a chat may be either."""
    recipe = loader.load("gemma-4-26b-a4b-fp8-mtp").document
    record = cell_record({"decode": [1.0]})
    record["cell"]["corpus"] = corpus
    row = next(references.forecast_rows(recipe, parsed(run_record(), record)))
    load = record["cell"]
    known = forecast.predicted(recipe, ForecastRequest(load["depth"] + load["prompt"] + load["output"] // 2))
    assert known
    slow, fast = known.on(texts[0]), known.on(texts[-1])
    assert row.note == f"forecast {known.interval(slow)[0]:.4g} to {known.interval(fast)[1]:.4g}"


def test_the_sentence_says_what_was_compared_with_what() -> None:
    before = measured(1, 0.001)
    assert verdict.verdict(measured(2, 0.001), [before]).sentence == "good: 4 figures are as before, within 9 %."
    faster = measured(2, 0.001, {"decode": 1.2, "total": 1.2})
    assert verdict.verdict(faster, [before]).sentence == "good: 1 figure is as before and 3 better, within 9 %."
    other = measured(2, 0.001, run={"key": KEY | {"topology": "2 nodes, tp 2, ray", "launch": "bb"}})
    assert verdict.verdict(other, [before]).sentence == (
        "good: 4 figures are as before, within 9 %; since then launch aa → bb, topology 1 node → 2 nodes, tp 2, ray."
    )
    # A figure of the forecast or of the recipe is not called one of the run before.
    recipe = {"subject": SUBJECT | {"recipe": "gemma-4-31b-nvfp4"}}
    alone = parsed(run_record(**recipe), cell_record({"decode": [6.8, 6.8]}))
    assert verdict.verdict(alone).sentence == "good: 1 figure is as forecast; 1 figure is as the recipe expects."
    slower = verdict.verdict(parsed(run_record(**recipe), cell_record({"decode": [1.0]})))
    assert "against the forecast); cause unknown." in slower.sentence


def test_the_sentence_says_that_figures_are_too_noisy() -> None:
    run = {"run": {"key": KEY | {"topology": "2 nodes, tp 2, ray"}}}
    before, after = measured(1, 0.06, values=3, **run), measured(2, 0.06, values=3, **run)
    judged = verdict.verdict(after, [before])
    assert judged.state == "unknown"
    assert "leading figures could not be judged" in judged.sentence
    assert "too noisy: a change below" in judged.sentence


# Simulated histories of real servers (fakes.bench_history). Their files name no recipe, so the floor of one stream is
# that of a mixture of experts.
HISTORIES = {
    "one stream": Server("31b-fp8.standard"),
    "streams": Server("26b-a4b-fp8.streams", several=True),
    "pair": Server("31b-fp8-tp2.standard"),
}


def state_of(server: Server, seed: int, sigma: float, slowness: list[float]) -> str:
    *earlier, last = history(server.template(), seed, sigma, slowness)
    return verdict.compared_state(verdict.compare.compare(earlier, last))


@pytest.mark.parametrize("server", HISTORIES.values(), ids=HISTORIES)
def test_after_five_runs_ten_percent_is_seen_and_an_unchanged_server_is_good(server: Server) -> None:
    # `make bench-verdict` has the shares of 200 seeds; a verdict in fifty may be a false alarm.
    assert [state_of(server, seed, 0.005, [1.0] * 6) for seed in range(6)].count("good") >= 5
    assert [state_of(server, seed, 0.005, [1.0] * 5 + [1.1]) for seed in range(6)] == ["worse"] * 6


# The server, how much slower each run is than the one before, and the run that is judged worse at the latest.
RATCHETS = {"one stream": ("one stream", 0.018, 7), "pair": ("pair", 0.08, 3), "slow": ("one stream", 0.004, 12)}


@pytest.mark.parametrize(("name", "step", "latest"), RATCHETS.values(), ids=RATCHETS)
def test_slow_drift_is_seen(name: str, step: float, latest: int) -> None:
    slowness = [(1 + step) ** number for number in range(latest)]
    states = [state_of(HISTORIES[name], 1, 0.0, slowness[:number]) for number in range(2, latest + 1)]
    assert states[0] != "worse"
    assert "worse" in states


def table_003(recipe: str, factors: dict[str, float]) -> Evidence:
    """Return a run that has measured what field report 003 has of a recipe. `factors` change its figures."""
    cells = {cell["id"]: cell for cell in reported.load().cells}
    found: dict[str, dict[str, list[float]]] = {}
    for (cell, metric), figures in reported.of_recipe(recipe).items():
        values = [one.value for one in figures if one.report.startswith("003")]
        if values:
            found.setdefault(cell, {})[metric] = [value * factors.get(metric, 1.0) for value in values]
    records = [cell_record(figures, cell=cells[cell]) for cell, figures in found.items()]
    return parsed(run_record(subject=SUBJECT | {"recipe": recipe}), *records)


OF_003 = sorted({one.recipe for one in reported.load().figures if one.report.startswith("003") and one.recipe})


@pytest.mark.parametrize("recipe", OF_003)
def test_the_table_of_report_003_is_as_reported_in_every_cell(recipe: str) -> None:
    judged = verdict.verdict(table_003(recipe, {}))
    assert {row.judgement for row in judged.others["reported"]} == {"same"}
    assert judged.state in ("good", "unknown")


def test_prompts_three_times_as_slow_as_in_report_003_are_worse() -> None:
    slower = {"first_chunk": 3.0, "first_token": 3.0, "first_answer": 3.0, "prefill": 1 / 3}
    states = {recipe: verdict.verdict(table_003(recipe, slower)) for recipe in OF_003}
    with_prompts = [
        recipe for recipe, judged in states.items() if any(row.metric in slower for row in judged.others["reported"])
    ]
    assert with_prompts
    assert {states[recipe].state for recipe in with_prompts} == {"worse"}
