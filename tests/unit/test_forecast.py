"""Go or no-go, with its reasons, from a recipe and the facts of the boxes; the command that prints it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.inventory import spec
from vllm_spark.recipe import loader
from vllm_spark.sizing import forecast, reference_spark
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest

HUB = spec.SiteSettings().hub_dir
NVFP4 = "gemma-4-26b-a4b-nvfp4"
MTP = "gemma-4-26b-a4b-fp8-mtp"
PAIR = "gemma-4-31b-fp8-tp2"
GB = 10**9


def document(name: str, **changes: Any) -> dict[str, Any]:
    """A recipe's document; a change of a block is merged into it, and of a list or None replaces it."""
    found = copy.deepcopy(dict(loader.load(name).document))
    for block, change in changes.items():
        found[block] = {**found.get(block, {}), **change} if isinstance(change, dict) else change
    return found


def box(**more: Any) -> dict[str, Any]:
    """Facts of a Spark that nothing uses, as far as a forecast looks."""
    return {
        "memory": dict(reference_spark.MEMORY),
        "paths": {},
        "disks": {HUB: {"free": 900 * GB, "total": 1000 * GB}},
        **more,
    }


def of(
    given: dict[str, Any],
    facts: dict[str, Any] | None = None,
    asked: ForecastRequest = ForecastRequest(),  # noqa: B008  frozen
    catalogue: tuple[dict[str, Any], ...] = (),
) -> Forecast:
    boxes = {host: facts or box() for host in reference_spark.HOSTS[: given["topology"]["nodes"]]}
    return forecast.forecast(given["name"], given, boxes, asked, ForecastContext(catalogue=catalogue))


def said(found: Forecast, given: dict[str, Any], asked: ForecastRequest = ForecastRequest()) -> str:  # noqa: B008  frozen
    return "\n".join(forecast.lines(found, given, asked))


@pytest.mark.parametrize("name", loader.names([paths.RECIPES]))
def test_a_recipe_of_the_catalogue_fits_a_spark_that_nothing_uses(name: str) -> None:
    given = document(name)
    found = of(given)
    assert found.go, found.refusals
    assert found.fits.keys() == set(reference_spark.HOSTS[: given["topology"]["nodes"]])
    assert found.download_bytes >= given["model"]["size_bytes"]


# recipe, change of it, change of the facts, load -> id of the refusal
NO_GO = {
    "one request does not fit": (
        NVFP4,
        {"memory": {"utilization": 0.19}},
        {},
        ForecastRequest(),
        "no-room-for-the-cache",
    ),
    "the weights do not fit": (NVFP4, {"memory": {"utilization": 0.1}}, {}, ForecastRequest(), "no-room-for-the-cache"),
    "that many do not fit": (NVFP4, {}, {}, ForecastRequest(131072, 100), "no-room-for-the-cache"),
    "the disk is full": (
        NVFP4,
        {},
        {"disks": {HUB: {"free": 18 * GB, "total": 20 * GB}}},
        ForecastRequest(),
        "too-little-disk",
    ),
    "a file is cut off": (
        NVFP4,
        {},
        {"weights": {"/x": {"error": "/x/a has 5 bytes"}}},
        ForecastRequest(),
        "bad-weights",
    ),
}


@pytest.mark.parametrize("case", NO_GO)
def test_no_go_has_its_reason(case: str) -> None:
    name, change, facts, asked, reason = NO_GO[case]
    given = document(name, **change)
    found = of(given, box(**facts), asked)
    assert [refusal.id for refusal in found.refusals] == [reason]
    assert said(found, given, asked).startswith(f"{name} on spark1: no-go, 1 reason\n")


def test_a_load_that_is_not_asked_for_is_no_reason() -> None:
    """An engine takes more streams than its cache holds at full length, and lets some wait."""
    assert of(document(NVFP4), asked=ForecastRequest(streams=100)).go
    assert of(document(NVFP4), asked=ForecastRequest(131072, 20)).go


def test_each_spark_of_a_pair_is_judged() -> None:
    given = document(PAIR, memory={"utilization": 0.18})
    found = of(given)
    assert [refusal.what.partition(":")[0] for refusal in found.refusals] == [f"{PAIR} on spark1", f"{PAIR} on spark2"]


def test_what_is_here_is_not_downloaded() -> None:
    given = document(MTP)
    both = of(given).download_bytes
    drafter = given["drafter"]["size_bytes"]
    model = forecast.folders(given, HUB)[0]
    there = of(given, box(paths={model: True}, disks={HUB: {"free": drafter, "total": GB}}))
    assert there.go
    assert (both, there.download_bytes) == (given["model"]["size_bytes"] + drafter, drafter)
    everything = dict.fromkeys(forecast.folders(given, HUB), True)
    assert "download: nothing" in said(of(given, box(paths=everything)), given)


def test_the_files_decide_where_they_are_here() -> None:
    """nvidia's checkpoint keeps attention and MLP in BF16; this recipe takes it for one that is NVFP4 throughout."""
    layout = {"attention": "nvfp4", "mlp": "nvfp4", "experts": "nvfp4", "head": "bf16"}
    wrong = document(NVFP4, model={"layout": layout})
    right = document(NVFP4)
    hoped, real = of(wrong), of(right)
    filed = {
        "model.layers.*.self_attn.q_proj.weight": {"BF16": 2 * 1_110_000_000},
        "model.layers.*.mlp.up_proj.weight": {"BF16": 2 * 535_265_280},
        "model.layers.*.experts.*.up_proj.weight": {"U8": 22_837_985_280 // 2, "F8_E4M3": 22_837_985_280 // 16},
        "model.embed_tokens.weight": {"BF16": 2 * 738_197_504},
    }
    folder = forecast.folders(wrong, HUB)[0]
    answer = {"files": 4, "bytes": 18_782_360_732, "error": "", "tensors": filed}
    found = of(wrong, box(paths={folder: True}, weights={folder: answer}))
    assert found.prediction is not None
    assert hoped.prediction is not None
    assert real.prediction is not None
    assert hoped.prediction.slow.tokens_per_s > 1.4 * real.prediction.slow.tokens_per_s
    assert found.prediction.slow.tokens_per_s == pytest.approx(real.prediction.slow.tokens_per_s, rel=0.01)
    assert found.fits["spark1"].weights == pytest.approx(real.fits["spark1"].weights, rel=0.01)
    text = said(found, wrong)
    assert "attention is bf16 in the files and nvfp4 in the recipe" in text
    assert "layout read from 4 of its files, 18.8 GB" in text
    doubted = of(wrong, box(weights={folder: answer | {"tensors": {"lm_head.weight": {"BF16": 12}}}}))
    assert "the files are not gemma-4-26b-a4b" in said(doubted, wrong)
    assert doubted.prediction == hoped.prediction


def test_without_an_architecture_it_says_why_there_is_no_prediction() -> None:
    given = document(NVFP4)
    del given["model"]["layout"]
    found = of(given)
    assert (found.go, found.prediction, found.fits) == (True, None, {})
    assert said(found, given).startswith(f"{NVFP4} on spark1: go\n")
    assert f"no prediction of memory and speed: recipe {NVFP4} has no model.layout" in said(found, given)
    drafted = document(MTP)
    del drafted["drafter"]["architecture"]
    found = of(drafted)
    assert found.prediction is None
    assert found.fits
    assert "no prediction of speed: the drafter of recipe" in said(found, drafted)


def test_a_drafter_without_an_acceptance_gives_a_band() -> None:
    given = document(MTP)
    del given["drafter"]["acceptance"]
    assert "acceptance 50% and 76% (of prose and of code; this drafter has no figure)" in said(of(given), given)
    given["drafter"]["acceptance"] = [{"load": "code", "rate": 0.66, "source": "a test"}]
    assert "acceptance 66% (measured)" in said(of(given), given)


# recipe, value reported for one stream -> is it flagged
REPORTS = [(MTP, 108.8, True), (MTP, 80.0, False), (NVFP4, 52.0, True), (NVFP4, 30.3, False)]


@pytest.mark.parametrize(("name", "value", "flagged"), REPORTS)
def test_a_report_above_what_can_be_is_flagged(name: str, value: float, flagged: bool) -> None:
    entry = {"metric": "decode", "value": value, "unit": "tok/s", "load": "one stream", "source": "a test"}
    together = {**entry, "value": 900.0, "load": "eight streams together"}
    given = document(name, expected=[entry, together])
    text = said(of(given), given)
    assert f"reported: {value} tok/s" in text
    assert text.count("it measures something else") == flagged


def test_the_better_recipe_fits_and_is_faster() -> None:
    slow, fast = document("gemma-4-31b-nvfp4"), document("gemma-4-31b-awq")
    sister, pair = document(MTP), document(PAIR)
    named = [line.partition(":")[0] for line in of(slow, catalogue=(slow, fast, sister, pair)).better]
    assert named == ["gemma-4-31b-awq", MTP]
    assert of(sister, catalogue=(slow, fast, sister, pair)).better == []
    greedy = document(MTP, memory={"utilization": 0.93})
    assert [line.partition(":")[0] for line in of(slow, catalogue=(greedy,)).better] == []
    assert f"better: {MTP}: " in said(of(slow, catalogue=(sister,)), slow)


def test_recipes_that_something_is_known_against_are_not_recommended(tmp_path: Path) -> None:
    offered = {given["name"] for given in forecast.catalogue([paths.RECIPES])}
    assert MTP in offered
    text = (paths.RECIPES / f"{MTP}.yml").read_text()
    version = loader.load(MTP).document["engine"]["version"]
    assert f"version: {version}" in text
    (tmp_path / f"{MTP}.yml").write_text(text.replace(f"version: {version}", "version: 0.20.2"))
    (tmp_path / "broken.yml").write_text("name: [")
    assert MTP not in {given["name"] for given in forecast.catalogue([tmp_path])}


def test_the_command_prints_and_its_status_is_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: dict[str, Any]
) -> None:
    assert main.main(["plan", NVFP4]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{NVFP4} on spark1: go\n")
    assert "tok/s (±12%: " in shown.out
    assert shown.err == ""
    assert main.main(["plan", NVFP4, "--context", "131072", "--streams", "100"]) == 1
    assert "See docs/runbooks/plan-no-go.md" in capsys.readouterr().err
    facts["memory"]["available"] = 50 * 2**30
    small = tmp_path / "facts.json"
    small.write_text(json.dumps(facts))
    assert main.main(["plan", NVFP4, "--facts", str(small)]) == 1
    assert "spark1 has 50.0 GiB available" in capsys.readouterr().err
    facts["running_units"] = ["vllm@demo.service"]
    small.write_text(json.dumps(facts))
    assert main.main(["plan", NVFP4, "--facts", str(small)]) == 0


@pytest.mark.parametrize("words", [["--streams", "0"], ["--context", "none"]])
def test_a_wrong_load_is_a_wrong_call(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["plan", NVFP4, *words])
    assert ended.value.code == 2


def test_a_pair_needs_the_facts_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", PAIR, "--facts", "one.json"]) == 1
    assert "Fix: --facts spark1.json spark2.json." in capsys.readouterr().err


def test_a_known_issue_is_a_no_go_until_it_is_accepted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (paths.RECIPES / f"{MTP}.yml").read_text()
    version = loader.load(MTP).document["engine"]["version"]
    file = tmp_path / f"{MTP}.yml"
    file.write_text(text.replace(f"version: {version}", "version: 0.20.2"))
    assert main.main(["plan", str(file)]) == 1
    refused = capsys.readouterr().err
    ids = [line.partition("accept_known_issue=")[2].split()[0].strip(".)") for line in refused.splitlines()]
    assert all(ids), refused
    assert main.main(["plan", str(file), "--accept-known-issue", *ids]) == 0
