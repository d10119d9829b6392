"""What the bench measured here: from the evidence of a folder into the forecast of the same recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.bench import key
from vllm_spark.bench.measured_here import Measurements
from vllm_spark.cli import main
from vllm_spark.core import paths, removed
from vllm_spark.node.bench.records import PROTOCOL
from vllm_spark.recipe import loader
from vllm_spark.sizing import constants, forecast, forecast_document, forecast_text, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest
from vllm_spark.sizing.measured import Measured

RECIPE = "gemma-4-31b-fp8"
WITH_DRAFTER = "gemma-4-26b-a4b-fp8-mtp"
TOOLKIT = constants.constants_of({})
LENGTHS = [(512, 256, 1), (2048, 128, 1), (8192, 128, 1), (512, 256, 2), (512, 256, 4), (16384, 128, 1)]


def document(name: str = RECIPE) -> dict[str, Any]:
    return loader.load(name).document


def cell(prompt: int, output: int, streams: int, figures: dict[str, float], **more: Any) -> dict[str, Any]:
    name = f"chat p{prompt} o{output} d0 s{streams}{more.get('server', '')}"
    load = {"id": name, "corpus": "chat", "prompt": prompt, "output": output, "depth": 0, "streams": streams}
    units = {"decode": "tok/s", "first_token": "ms", "acceptance": "1", "memory": "GiB"}
    return {
        "record": "cell",
        "cell": {**load, "sampling": {"temperature": 0}, "server": {}, **more},
        "state": "measured",
        "started": 0.0,
        "seconds": 1.0,
        "runs": 1,
        "figures": {
            name: {"unit": units[name], "median": value, "spread": None, "values": [value]}
            for name, value in figures.items()
        },
        "faults": [],
        "phases": {},
        "samples": {},
    }


def cells_of(speed: float, first_token: float, recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a Spark that is so many times as fast as forecast, and as late with its first token."""
    cells = []
    for prompt, output, streams in LENGTHS:
        decode, first = (
            forecast.predicted(recipe, ForecastRequest(context, streams)) for context in (prompt + output // 2, prompt)
        )
        assert decode
        assert first
        figures = {
            "decode": speed * decode.slow.tokens_per_s,
            "first_token": 1000 * first_token * first.first_token_s,
        }
        cells.append(cell(prompt, output, streams, figures))
    return cells


def write_run(file: Path, cells: list[dict[str, Any]], recipe: str = RECIPE, **more: Any) -> Path:
    model = document(recipe)["model"]
    names = dict.fromkeys(("model", "image", "launch", "toolkit"), "")
    parts = {"commit": model["revision"], "layout": key.layout(model), "topology": key.topology(document(recipe))}
    subject = {"deployment": "chat", "recipe": recipe, "served_name": "m", "url": "", "engine_version": ""}
    run = {
        "record": "run",
        "schema": 1,
        "id": more.get("id", "0123456789ab"),
        "started": more.get("started", "2026-11-28T00:00:00Z"),
        "profile": {"name": "standard"},
        "key": {**names, **parts, "hosts": "spark1", "protocol": f"{PROTOCOL}-abc", **more.get("key", {})},
        "subject": subject,
        "host": {"spark1": {"gpu": more.get("gpu", "NVIDIA GB10")}},
    }
    end = {"record": "end", "seconds": 1.0, "measured": len(cells), "failed": 0}
    file.write_text("".join(json.dumps(line) + "\n" for line in (run, *cells, end)))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the evidence of a Spark that decodes at 0.9 times its forecast."""
    write_run(tmp_path / "run.jsonl", cells_of(0.9, 1.2, document()))
    return tmp_path


def measured(folder: Path, recipe: dict[str, Any] | None = None, host: str = "spark1") -> Measured | None:
    return Measurements(folder, TOOLKIT).of([host], recipe or document())


def plan_of(folder: Path, recipe: dict[str, Any] | None = None, host: str = "spark1") -> forecast.Forecast:
    facts = {host: next(iter(reference_spark.facts(1, 128).values()))}
    context = ForecastContext(measured=Measurements(folder, TOOLKIT).of)
    return forecast.forecast("chat", recipe or document(), facts, ForecastRequest(4096, 2), context)


def test_the_factors_are_the_medians_and_hold_for_another_load(folder: Path) -> None:
    found = measured(folder)
    assert found
    assert (found.speed, found.first_token) == pytest.approx((0.9, 1.2))
    before, after = plan_of(folder / "nothing").prediction, plan_of(folder).prediction
    assert before
    assert after
    assert after.slow.tokens_per_s == pytest.approx(0.9 * before.slow.tokens_per_s)
    assert after.slow.served.total == pytest.approx(0.9 * before.slow.served.total)
    assert after.first_token_s == pytest.approx(1.2 * before.first_token_s)
    assert after.slow.step.bound() == before.slow.step.bound()


def test_a_plan_has_what_was_measured_with_its_day(folder: Path) -> None:
    text = "\n".join(forecast_text.lines(plan_of(folder), document(), ForecastRequest(4096, 2)))
    speed = forecast.predicted(document(), ForecastRequest(512 + 128))
    assert speed
    shown = f"measured here: {0.9 * speed.slow.tokens_per_s:.1f} tok/s on chat (bench of 28 November 2026); "
    assert f"{shown}the forecast has its factors: speed x 0.90, first token x 1.20" in text
    assert "measured here" not in str(plan_of(folder, host="spark2").notes)


def test_other_recipes_are_compared_without_factors(folder: Path) -> None:
    catalogue = tuple(document(name) for name in ("gemma-4-31b-nvfp4", "gemma-4-31b-fp8"))
    facts = {"spark1": next(iter(reference_spark.facts(1, 128).values()))}
    plans = [
        forecast.forecast(
            "chat", document(), facts, ForecastRequest(), ForecastContext(measured=own, catalogue=catalogue)
        )
        for own in (Measurements(folder, TOOLKIT).of, Measurements(folder / "nothing", TOOLKIT).of)
    ]
    assert plans[0].better == plans[1].better


def test_the_peak_of_loading_and_the_acceptance_are_those_of_the_owner(tmp_path: Path) -> None:
    recipe = document(WITH_DRAFTER)
    cells = [
        cell(512, 256, 1, {"decode": 40.0, "acceptance": 0.61}),
        cell(1, 1, 1, {"memory": 99.5}, server={"start": "cold"}),
    ]
    write_run(tmp_path / "run.jsonl", cells, recipe=WITH_DRAFTER)
    plan = plan_of(tmp_path, recipe)
    assert plan.fits["spark1"].peak == int(99.5 * 2**30)
    assert "measured here: the peak of loading (bench of 28 November 2026)" in plan.notes
    (line,) = [line for line in forecast_text.lines(plan, recipe, ForecastRequest()) if " accepted" in line]
    assert line.startswith("    on chat, 61% accepted ")
    assert line.endswith("  measured on spark1")
    (text,) = forecast_document.of_forecast(plan, recipe, ForecastRequest(), None)["speed"]["texts"]
    assert (text["text"], text["acceptance"], text["measured_here"]) == ("chat", 0.61, True)


# Why a run says nothing about the recipe on this Spark -> what differs in it.
OTHERS: dict[str, dict[str, Any]] = {
    "another protocol": {"key": {"protocol": "1-abc"}},
    "another machine": {"gpu": "NVIDIA H200"},
    "another Spark": {"key": {"hosts": "spark2"}},
    "another commit": {"key": {"commit": "f" * 40}},
    "another layout": {"key": {"layout": "mlp=mxfp4"}},
    "another recipe": {"recipe": WITH_DRAFTER},
}


@pytest.mark.parametrize("more", OTHERS.values(), ids=list(OTHERS))
def test_a_run_of_something_else_does_not_count(more: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", cells_of(0.9, 1.2, document()), **more)
    assert measured(tmp_path) is None


def test_a_broken_file_does_not_count_and_the_newest_launch_does(folder: Path) -> None:
    (folder / "broken.jsonl").write_text("{")
    old = {"key": {"launch": "1" * 12}, "started": "2026-11-01T00:00:00Z", "id": "a" * 12}
    write_run(folder / "old.jsonl", cells_of(0.5, 1.0, document()), **old)
    found = measured(folder)
    assert found
    assert found.speed == pytest.approx(0.9)


@pytest.mark.parametrize("times", [0.01, 5.0])
def test_a_figure_of_no_spark_gives_no_factor(times: float, tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", cells_of(times, 1.0, document()))
    found = measured(tmp_path)
    assert found
    assert found.speed is None


def test_what_wrote_constants_is_refused_and_a_file_of_them_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["bench", "constants", "reports/bench/one.jsonl"])
    assert "bench constants was removed after release 0.1.0" in capsys.readouterr().err
    file = tmp_path / "constants.yml"
    file.write_text("schema: 7")
    assert main.main(["plan", RECIPE, "--constants", str(file)]) == 0
    assert removed.CONSTANTS.format(file=file) in capsys.readouterr().err
    assert file.read_text() == "schema: 7"


def test_a_plan_of_facts_reads_the_reports(
    folder: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "REPORTS", folder)
    (folder / "bench").mkdir()
    shutil.move(folder / "run.jsonl", folder / "bench" / "run.jsonl")
    (folder / "facts.json").write_text(json.dumps({**facts, "hostname": "spark1"}))
    main.main(["plan", RECIPE, "--facts", str(folder / "facts.json")])
    assert "speed x 0.90, first token x 1.20" in capsys.readouterr().out
