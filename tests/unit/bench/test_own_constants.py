"""Constants of the owner's Sparks: from cells of the bench into a site's file, and from it into a forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.bench import evidence, own_constants
from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.bench.records import PROTOCOL
from vllm_spark.recipe import loader
from vllm_spark.sizing import (
    constants,
    factors,
    forecast,
    forecast_document,
    forecast_text,
    reference_spark,
    site_constants,
)
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest
from vllm_spark.sizing.site_constants import SiteConstants

RECIPE = "gemma-4-31b-fp8"
TOOLKIT = constants.constants_of({})
# A Spark that is slower than the toolkit's.
SLOW = {"bandwidth": 0.93, "feed_forward_s": 1.5, "compute_16": 0.5}
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
            key: {"unit": units[key], "median": value, "spread": None, "values": [value]}
            for key, value in figures.items()
        },
        "faults": [],
        "phases": {},
        "samples": {},
    }


def cells_of(known: Constants, recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that a Spark with these constants would measure."""
    empty = [cell(*lengths, {"decode": 1.0, "first_token": 1000.0}) for lengths in LENGTHS]
    measured = []
    for one in empty:
        seen = {entry.metric: entry.predicted(known) for entry in own_constants.observations(recipe, [one])}  # type: ignore[list-item]
        figures = {"decode": seen["decode"]}
        if own_constants.FIRST in seen:
            figures["first_token"] = 1000 * seen[own_constants.FIRST]
        load = one["cell"]
        measured.append(cell(load["prompt"], load["output"], load["streams"], figures))
    return measured


def write_run(file: Path, cells: list[dict[str, Any]], **more: Any) -> Path:
    names = ("model", "commit", "layout", "image", "launch", "topology", "toolkit")
    key = {**dict.fromkeys(names, ""), "hosts": "spark1", "protocol": f"{PROTOCOL}-abc", **more.get("key", {})}
    run = {
        "record": "run", "schema": 1, "id": more.get("id", "0123456789ab"), "started": "2026-11-27T00:00:00Z",
        "profile": {"name": "standard"}, "key": key,
        "subject": {"deployment": "chat", "recipe": RECIPE, "served_name": "m", "url": "", "engine_version": ""},
        "host": {"spark1": {"gpu": more.get("gpu", "NVIDIA GB10")}},
    }  # fmt: skip
    end = {"record": "end", "seconds": 1.0, "measured": len(cells), "failed": 0}
    file.write_text("".join(json.dumps(line) + "\n" for line in (run, *cells, end)))
    return file


@pytest.fixture
def slow_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run.jsonl", cells_of(factors.applied(TOOLKIT, SLOW), document()))


def test_the_constants_of_a_slower_spark_come_back_from_its_cells(slow_run: Path) -> None:
    found = own_constants.of_runs([evidence.read(slow_run)], document())
    values = {name: one["value"] / one["reference"] for name, one in found.entry["constants"].items()}
    assert found.notes == []
    # A dense model of 31B says too little about the overhead of a layer.
    assert set(values) == {"bandwidth", "compute_16"}
    assert values["compute_16"] == pytest.approx(SLOW["compute_16"], rel=0.1)
    assert values["bandwidth"] < 0.97
    assert found.entry["intervals"]["speed"] <= 0.08


def test_a_plan_names_the_constants_of_the_owner_and_has_a_narrower_interval(slow_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "constants.yml"
    assert main.main(["bench", "constants", str(slow_run), "--into", str(file)]) == 0
    before, after = (plan_of(site_constants.read(path)) for path in (None, file))
    assert before.prediction
    assert after.prediction
    assert after.prediction.slow.tokens_per_s < before.prediction.slow.tokens_per_s
    assert after.prediction.spread < before.prediction.spread
    text = "\n".join(forecast_text.lines(after, document(), ForecastRequest()))
    assert "measured on spark1: memory bandwidth" in text
    assert "the other constants are the toolkit's" in text
    other = plan_of(site_constants.read(file), "spark2")
    assert other.prediction == before.prediction
    assert any("has nothing of this recipe on these Sparks" in note for note in other.notes)


def plan_of(measured: SiteConstants, host: str = "spark1", recipe: dict[str, Any] | None = None) -> forecast.Forecast:
    facts = {host: next(iter(reference_spark.facts(1, 128).values()))}
    return forecast.forecast("chat", recipe or document(), facts, ForecastRequest(), ForecastContext(measured=measured))


def test_what_other_runs_found_stays(slow_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "constants.yml"
    started = cell(1, 1, 1, {"memory": 99.5}, server={"start": "cold"})
    start = write_run(tmp_path / "start.jsonl", [started], id="ba9876543210")
    for path in (slow_run, start):
        own_constants.write(file, [own_constants.of_runs([evidence.read(path)], document())])
    entry = yaml.safe_load(file.read_text())["servers"]["spark1"][RECIPE]
    assert entry["evidence"] == ["0123456789ab", "ba9876543210"]
    assert entry["loading_peak_bytes"] == int(99.5 * 2**30)
    assert "bandwidth" in entry["constants"]
    assert plan_of(site_constants.read(file)).fits["spark1"].peak == int(99.5 * 2**30)


def test_the_acceptance_of_a_drafter_is_that_of_the_owner(tmp_path: Path) -> None:
    recipe = document("gemma-4-26b-a4b-fp8-mtp")
    tokens = recipe["drafter"]["speculative_tokens"]
    run = write_run(tmp_path / "run.jsonl", [cell(512, 256, 1, {"decode": 40.0, "acceptance": 0.61})])
    found = own_constants.of_runs([evidence.read(run)], recipe)
    assert found.entry["acceptance"] == [{"load": "chat", "tokens": tokens, "rate": 0.61}]
    file = tmp_path / "constants.yml"
    own_constants.write(file, [found])
    plan = plan_of(site_constants.read(file), recipe=recipe)
    (line,) = [line for line in forecast_text.lines(plan, recipe, ForecastRequest()) if " accepted" in line]
    assert line.startswith("    on chat, 61% accepted ")
    assert line.endswith("  measured on spark1")
    (text,) = forecast_document.of_forecast(plan, recipe, ForecastRequest(), None)["speed"]["texts"]
    assert (text["text"], text["acceptance"], text["measured_here"]) == ("chat", 0.61, True)


# Name of the case -> changes of the run, and what the note says.
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "another protocol": ({"key": {"protocol": "1-abc"}}, f"protocol 1 — expected: {PROTOCOL}"),
    "another machine": ({"gpu": "NVIDIA H200"}, "GPU NVIDIA H200 — expected: NVIDIA GB10"),
}


@pytest.mark.parametrize(("more", "note"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_run_of_another_protocol_or_machine_is_named_and_left_out(
    more: dict[str, Any], note: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run.jsonl", cells_of(TOOLKIT, document()), **more)
    found = own_constants.of_runs([evidence.read(run)], document())
    assert not found.entry
    assert note in found.notes[0]


def test_a_constant_that_no_spark_has_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    fast = factors.applied(TOOLKIT, {"bandwidth": 1.8, "feed_forward_s": 0.3})
    run = write_run(tmp_path / "run.jsonl", cells_of(fast, document()))
    found = own_constants.of_runs([evidence.read(run)], document())
    assert "constants" not in found.entry
    assert any("bandwidth" in note and "50 GB/s to 273 GB/s" in note for note in found.notes)
    own_constants.write(tmp_path / "constants.yml", [found])
    assert not (tmp_path / "constants.yml").exists()


BANDWIDTH = {"value": 2.3e11, "unit": "B/s", "reference": TOOLKIT.bandwidth, "spread": 0.03, "cells": 9}
SOUND = {
    "schema": 1,
    "protocol": PROTOCOL,
    "servers": {
        "spark1": {
            RECIPE: {
                "evidence": ["0123456789ab"],
                "constants": {"bandwidth": BANDWIDTH},
            }
        }
    },
}  # fmt: skip
# Name of the case -> what stands in the text of a sound file, what replaces it, and what the refusal says.
BROKEN = {
    "no YAML": ("servers:", "servers: [", "not YAML"),
    "another schema": ("schema: 1", "schema: 7", "schema 7 — expected: schema 1"),
    "another protocol": (f"protocol: {PROTOCOL}", "protocol: 1", "protocol 1 — expected: protocol"),
    "a bandwidth of no Spark": ("value: 230000000000.0", "value: 310000000000.0", "bandwidth 310 GB/s — expected"),
    "another toolkit": (f"reference: {TOOLKIT.bandwidth}", "reference: 200000000000.0", "against a toolkit's 2e+11"),
    "an unknown constant": ("bandwidth:", "speed_of_light:", "speed_of_light"),
    "a value that is text": ("value: 230000000000.0", "value: fast", "servers.spark1"),
    "a list": (None, "- 1\n", "schema null"),
    "an empty file": (None, "", "schema null"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_refused_with_a_fix_and_stays(
    old: str | None, new: str, message: str, slow_run: Path, tmp_path: Path
) -> None:
    file, text = tmp_path / "constants.yml", yaml.safe_dump(SOUND)
    assert old is None or old in text
    broken = text.replace(old, new) if old else new
    file.write_text(broken)
    with pytest.raises(RefusedError) as caught:
        site_constants.read(file)
    assert message in str(caught.value)
    assert "vllm-spark bench constants" in str(caught.value)
    with pytest.raises(RefusedError):
        own_constants.write(file, [own_constants.of_runs([evidence.read(slow_run)], document())])
    assert file.read_text() == broken


def test_a_plan_of_other_sparks_refuses_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "constants.yml"
    file.write_text(yaml.safe_dump(SOUND))
    assert main.main(["plan", RECIPE, "--constants", str(file)]) == 1
    assert "has spark1 — expected: constants of the Sparks of --facts" in capsys.readouterr().err


def test_without_figures_every_constant_stays_unknown() -> None:
    assert factors.measured(TOOLKIT, []) == []
    assert site_constants.read(Path("/nonexistent/constants.yml")) == SiteConstants()
