"""Go or no-go with its reasons, and the command that prints it."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.recipe import known_issues, loader
from vllm_spark.sizing import (
    better,
    constants,
    forecast,
    forecast_text,
    host_files,
    memory,
    pairs,
    reference_spark,
)
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest

HUB = spec.SiteSettings().hub_dir
NVFP4 = "gemma-4-26b-a4b-nvfp4-patched"
MTP = "gemma-4-26b-a4b-fp8-mtp"
FEW = "gemma-4-26b-a4b-fp8"
PAIR = "gemma-4-31b-fp8-tp2"
GB = 10**9


def test_the_relatives_of_a_recipe_are_all_that_is_proposed_of_its_family() -> None:
    for own in (known := forecast.catalogue([paths.RECIPES])):
        kin = {one["name"] for one in known if better.family(one) == better.family(own)}
        assert kin <= loader.relatives(own, [paths.RECIPES]).keys()


def document(name: str, **changes: Any) -> dict[str, Any]:
    """Return the document of a recipe. A dict is merged into its block; other values replace it."""
    recipe = copy.deepcopy(dict(loader.load(name).document))
    for block, change in changes.items():
        recipe[block] = {**recipe.get(block, {}), **change} if isinstance(change, dict) else change
    return recipe


def idle_facts(**more: Any) -> dict[str, Any]:
    """Return the facts of an idle Spark that a forecast reads."""
    return {
        "memory": dict(reference_spark.MEMORY),
        "paths": {},
        "disks": {HUB: {"free": 900 * GB, "total": 1000 * GB}},
        **more,
    }


def forecast_of(
    recipe: dict[str, Any],
    facts: dict[str, Any] | None = None,
    request: ForecastRequest = ForecastRequest(),  # noqa: B008  frozen
    catalogue: tuple[dict[str, Any], ...] = (),
) -> Forecast:
    by_host = {host: facts or idle_facts() for host in reference_spark.HOSTS[: recipe["topology"]["nodes"]]}
    return forecast.forecast(recipe["name"], recipe, by_host, request, ForecastContext(catalogue=catalogue))


def text_of(result: Forecast, recipe: dict[str, Any], request: ForecastRequest = ForecastRequest()) -> str:  # noqa: B008  frozen
    return "\n".join(forecast_text.lines(result, recipe, request))


@pytest.mark.parametrize("name", loader.names([paths.RECIPES]))
def test_every_recipe_of_the_catalogue_fits_an_idle_spark(name: str) -> None:
    recipe = document(name)
    result = forecast_of(recipe)
    assert not result.refusals, result.refusals
    # The model or the drafter of some recipes has no architecture, so the speed is unknown.
    known = all("architecture" in recipe[part] for part in ("model", "drafter") if part in recipe)
    assert result.go == (known or memory.is_encoder(recipe))
    judged = recipe["topology"]["nodes"] if "architecture" in recipe["model"] else 0
    assert result.fits.keys() == set(reference_spark.HOSTS[:judged])
    # A recipe whose source names no size has that of its weights.
    assert result.download_bytes >= recipe["model"].get("size_bytes", 1)


# recipe, its changes, changes of the facts, load, id of the refusal
NO_GO = {
    "one request does not fit": (
        NVFP4,
        {"memory": {"utilization": 0.19}},
        {},
        ForecastRequest(),
        "no-room-for-the-cache",
    ),
    "it is slower than the operator accepts": (NVFP4, {}, {}, ForecastRequest(min_speed=500), "too-slow"),
    "the weights do not fit": (NVFP4, {"memory": {"utilization": 0.1}}, {}, ForecastRequest(), "no-room-for-the-cache"),
    "that many do not fit": (NVFP4, {}, {}, ForecastRequest(131072, 100), "no-room-for-the-cache"),
    "the disk is full": (
        NVFP4,
        {},
        {"disks": {HUB: {"free": 15 * GB, "total": 20 * GB}}},
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
    name, change, facts, request, reason = NO_GO[case]
    recipe = document(name, **change)
    result = forecast_of(recipe, idle_facts(**facts), request)
    assert [refusal.id for refusal in result.refusals] == [reason]
    assert text_of(result, recipe, request).startswith(f"{name} on spark1: no-go, 1 reason\n")


def test_a_least_speed_refuses_an_unknown_speed_and_names_a_faster_recipe() -> None:
    slow, fast = document("gemma-4-31b-nvfp4"), document(NVFP4)
    request = ForecastRequest(min_speed=15)
    (refusal,) = forecast_of(slow, request=request, catalogue=(fast,)).refusals
    assert f"{forecast_of(slow).prediction.slow.tokens_per_s:.1f} tok/s" in refusal.what
    assert NVFP4 in refusal.fix
    (refusal,) = forecast_of(slow, request=ForecastRequest(min_speed=500), catalogue=(fast,)).refusals
    assert refusal.fix == "lower the minimum speed."
    unknown = document(NVFP4)
    del unknown["model"]["layout"]
    assert [(no.id, no.what) for no in forecast_of(unknown, request=request).refusals] == [
        ("too-slow", f"the speed of {NVFP4} is unknown")
    ]
    assert forecast_of(fast, request=request).go


def test_streams_without_a_context_are_not_refused() -> None:
    """An engine accepts more streams than fit at full length, and queues the others."""
    assert forecast_of(document(NVFP4), request=ForecastRequest(streams=100)).go
    assert forecast_of(document(NVFP4), request=ForecastRequest(131072, 20)).go


def test_each_spark_of_a_pair_is_checked() -> None:
    recipe = document(PAIR, memory={"utilization": 0.18})
    result = forecast_of(recipe)
    assert [refusal.what.partition(":")[0] for refusal in result.refusals] == [f"{PAIR} on spark1", f"{PAIR} on spark2"]


def test_files_on_the_host_are_not_downloaded() -> None:
    recipe = document(MTP)
    both = forecast_of(recipe).download_bytes
    drafter = recipe["drafter"]["size_bytes"]
    model = host_files.folders(recipe, HUB)[0]
    there = forecast_of(recipe, idle_facts(paths={model: True}, disks={HUB: {"free": drafter, "total": GB}}))
    assert there.go
    assert (both, there.download_bytes) == (recipe["model"]["size_bytes"] + drafter, drafter)
    everything = dict.fromkeys(host_files.folders(recipe, HUB), True)
    assert "download: nothing" in text_of(forecast_of(recipe, idle_facts(paths=everything)), recipe)


def test_the_layout_of_the_files_replaces_the_recipes() -> None:
    """nvidia's checkpoint has attention and MLP in BF16; a recipe claims NVFP4 for all parts."""
    wrong = document(NVFP4)
    right = document(NVFP4, model={"layout": {"attention": "bf16", "mlp": "bf16", "experts": "nvfp4", "head": "bf16"}})
    hoped, real = forecast_of(wrong), forecast_of(right)
    filed = {
        "model.layers.*.self_attn.q_proj.weight": {"BF16": 2 * 1_110_000_000},
        "model.layers.*.mlp.up_proj.weight": {"BF16": 2 * 535_265_280},
        "model.layers.*.experts.*.up_proj.weight": {"U8": 22_837_985_280 // 2, "F8_E4M3": 22_837_985_280 // 16},
        "model.embed_tokens.weight": {"BF16": 2 * 738_197_504},
    }
    folder = host_files.folders(wrong, HUB)[0]
    answer = {"files": 4, "bytes": 18_782_360_732, "error": "", "tensors": filed}
    result = forecast_of(wrong, idle_facts(paths={folder: True}, weights={folder: answer}))
    assert result.prediction is not None
    assert hoped.prediction is not None
    assert real.prediction is not None
    assert hoped.prediction.slow.tokens_per_s > 1.4 * real.prediction.slow.tokens_per_s
    assert result.prediction.slow.tokens_per_s == pytest.approx(real.prediction.slow.tokens_per_s, rel=0.01)
    assert result.fits["spark1"].weights == pytest.approx(real.fits["spark1"].weights, rel=0.01)
    text = text_of(result, wrong)
    assert "attention is bf16 in the files and nvfp4 in the recipe" in text
    assert "layout read from 4 of its files, 18.8 GB" in text
    doubted = forecast_of(wrong, idle_facts(weights={folder: answer | {"tensors": {"lm_head.weight": {"BF16": 12}}}}))
    assert "the files are not gemma-4-26b-a4b" in text_of(doubted, wrong)
    assert doubted.prediction == hoped.prediction


def test_without_an_architecture_a_note_explains_the_missing_prediction() -> None:
    recipe = document(NVFP4)
    del recipe["model"]["layout"]
    result = forecast_of(recipe)
    assert (result.go, result.prediction, result.fits) == (False, None, {})
    assert text_of(result, recipe).startswith(f"{NVFP4} on spark1: unknown\n")
    assert f"no prediction of memory and speed: recipe {NVFP4} has no model.layout" in text_of(result, recipe)
    drafted = document(MTP)
    del drafted["drafter"]["architecture"]
    result = forecast_of(drafted)
    assert result.prediction is None
    assert result.fits
    assert not result.go
    assert text_of(result, drafted).startswith(f"{MTP} on spark1: it fits, and its speed is unknown\n")
    assert "no prediction of speed: the drafter of recipe" in text_of(result, drafted)


def test_a_drafter_without_an_acceptance_has_two_speeds() -> None:
    recipe = document(MTP)
    del recipe["drafter"]["acceptance"]
    head, code, prose, origin = speed_lines(recipe)
    assert head == "  speed: one stream, 1024 tokens of context, 4 drafted tokens a step"
    assert code.startswith("    on code, 76% accepted ")
    assert prose.startswith("    on prose, 50% accepted ")
    assert "this drafter has no measured acceptance" in origin
    recipe["drafter"]["acceptance"] = [{"load": "code", "rate": 0.87, "tokens": 2, "source": "a test"}]
    (_, code) = speed_lines(recipe)
    assert code.startswith("    on code, 76% accepted ")
    assert code.endswith("  carried over, measured with 2 tokens a step")
    recipe["drafter"]["acceptance"] = [{"load": "letters", "rate": 0.66, "tokens": 4, "source": "a test"}]
    (_, letters) = speed_lines(recipe)
    assert letters.startswith("    on letters, 66% accepted ")
    assert letters.endswith("  measured")


def speed_lines(recipe: dict[str, Any]) -> list[str]:
    lines = text_of(forecast_of(recipe), recipe).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  speed: "))
    return [lines[first], *itertools.takewhile(lambda line: line.startswith("    "), lines[first + 1 :])]


def test_without_a_drafter_the_speed_is_one_line() -> None:
    (line,) = speed_lines(document(NVFP4))
    assert re.fullmatch(r"  speed: [\d.]+ tok/s \(±\d+%: [\d.]+ to [\d.]+\), one stream, 1024 tokens of context", line)


@pytest.mark.parametrize("rate", [-0.1, 1.01])
def test_an_acceptance_that_is_no_share_is_refused(rate: float, tmp_path: Path) -> None:
    text = (paths.RECIPES / f"{MTP}.yml").read_text().replace("rate: 0.84", f"rate: {rate}")
    (tmp_path / f"{MTP}.yml").write_text(text)
    with pytest.raises(RefusedError, match=f"rate: {rate}"):
        loader.load(MTP, [tmp_path])


UNNAMED = "it names no kind of text: "
# recipe, value reported for one stream, the load and cell of the report, what the note says of it
REPORTS = [
    (MTP, 108.8, {}, f"{UNNAMED}above the forecast of all kinds, "),
    (MTP, 80.0, {}, f"{UNNAMED}inside the forecast of all kinds, "),
    (MTP, 80.0, {"load": "one stream, 512 tokens of code"}, ""),
    (MTP, 80.0, {"load": "one stream, prose", "cell": {"corpus": "code"}}, "above the forecast on prose, "),
    (MTP, 45.0, {"cell": {"corpus": "code"}}, "below the forecast on code, "),
    (MTP, 53.7, {"cell": {"corpus": "json"}}, f"{UNNAMED}inside the forecast of all kinds, "),
    (NVFP4, 70.0, {}, "above the forecast, "),
    (NVFP4, 48.0, {"cell": {"corpus": "code"}}, ""),
    (NVFP4, 10.0, {}, "below the forecast, "),
]


@pytest.mark.parametrize(("name", "value", "report", "flag"), REPORTS)
def test_a_report_is_held_against_the_forecast_of_the_text_that_it_names(
    name: str, value: float, report: dict[str, Any], flag: str
) -> None:
    entry = {"metric": "decode", "value": value, "unit": "tok/s", "load": "one stream", "source": "a test", **report}
    together = {**entry, "value": 900.0, "load": "eight streams together"}
    recipe = document(name, expected=[entry, together])
    text = text_of(forecast_of(recipe), recipe)
    assert f"reported: {value} tok/s" in text
    assert text.count("the forecast") == bool(flag)
    assert flag in text


def test_the_better_recipe_fits_and_is_faster() -> None:
    slow, fast = document("gemma-4-31b-nvfp4"), document("gemma-4-31b-awq-mtp")
    sister, pair = document(MTP), document(PAIR)
    named = [line.partition(":")[0] for line in forecast_of(slow, catalogue=(slow, fast, sister, pair)).better]
    assert named == ["gemma-4-31b-awq-mtp", MTP]
    assert forecast_of(sister, catalogue=(slow, fast, sister, pair)).better == []
    greedy = document(MTP, memory={"utilization": 0.93})
    assert [line.partition(":")[0] for line in forecast_of(slow, catalogue=(greedy,)).better] == []
    assert f"better: {MTP}: " in text_of(forecast_of(slow, catalogue=(sister,)), slow)


def better_of(name: str, *others: str) -> list[str]:
    """Return which recipes are better, each with its kinds of text."""
    lines = forecast_of(document(name), catalogue=tuple(map(document, others))).better
    return [f"{line.partition(':')[0]} {' '.join(re.findall(r' on ([a-z]+)', line))}".strip() for line in lines]


def test_the_best_recipe_of_each_kind_of_text_is_named() -> None:
    """Report 004's own answer to FP8 without a drafter is FP8 with it; on a chat NVFP4 with it is faster."""
    plain, chat, cached = "gemma-4-26b-a4b-fp8", "gemma-4-26b-a4b-nvfp4-mtp", "gemma-4-26b-a4b-fp8-mtp-fp8kv"
    assert better_of(plain, MTP, chat, cached) == [f"{MTP} code", f"{chat} chat"]
    assert better_of(plain, MTP, cached) == [f"{MTP} prose code"], (
        "of two that are as fast the one with the higher report"
    )
    assert better_of(plain, NVFP4) == [NVFP4]
    assert better_of(NVFP4, plain) == []


def test_a_recipe_that_is_slower_on_every_text_is_not_named() -> None:
    """No source has the chat of DFlash, whose slowest text is faster than the chat of MTP."""
    pair = ("gemma-4-31b-nvfp4-tp2-mtp", "gemma-4-31b-nvfp4-tp2-dflash")
    assert better_of(PAIR, *pair) == [f"{pair[1]} prose code"]


def test_a_recipe_that_lets_streams_wait_is_not_better() -> None:
    many, few = document("gemma-4-26b-a4b-nvfp4-mtp"), document("gemma-4-26b-a4b-fp8-mtp-fp8kv")
    assert few["args"]["max-num-seqs"] == 4
    assert forecast_of(many, request=ForecastRequest(streams=32), catalogue=(few,)).better == []


def test_recipes_with_a_known_issue_are_not_recommended(tmp_path: Path) -> None:
    offered = {recipe["name"] for recipe in forecast.catalogue([paths.RECIPES])}
    assert MTP in offered
    text = (paths.RECIPES / f"{MTP}.yml").read_text()
    version = loader.load(MTP).document["engine"]["version"]
    assert f"version: {version}" in text
    (tmp_path / f"{MTP}.yml").write_text(text.replace(f"version: {version}", "version: 0.20.2"))
    (tmp_path / "broken.yml").write_text("name: [")
    assert MTP not in {recipe["name"] for recipe in forecast.catalogue([tmp_path])}


def test_the_exit_status_of_the_command_is_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: dict[str, Any]
) -> None:
    assert main.main(["plan", NVFP4]) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"{NVFP4} on a reference Spark: go\n  memory of a reference Spark\n")
    assert "    available on a fresh Spark    112.0 GiB\n" in output.out
    assert f"tok/s (±{constants.spark()['held_out']['speed']['spread']:.0%}: " in output.out
    assert "first token: " in output.out
    assert output.err == ""
    assert main.main(["plan", NVFP4, "--context", "131072", "--streams", "100"]) == 1
    assert "See `vllm-spark runbook plan-no-go`" in capsys.readouterr().err
    facts["memory"]["available"] = 50 * 2**30
    small = tmp_path / "facts.json"
    small.write_text(json.dumps(facts))
    assert main.main(["plan", NVFP4, "--facts", str(small)]) == 1
    output = capsys.readouterr()
    assert "spark1 has 50.0 GiB available" in output.err
    assert f"{NVFP4} on spark1: no-go" in output.out
    assert "    available now                  50.0 GiB\n" in output.out
    facts["running_units"] = ["vllm@demo.service"]
    small.write_text(json.dumps(facts))
    assert main.main(["plan", NVFP4, "--facts", str(small)]) == 0


@pytest.mark.parametrize("name", [NVFP4, PAIR, "gemma-4-31b-fp8"])
@pytest.mark.parametrize("size", [64, 128])
def test_a_plan_without_a_host_names_no_host(name: str, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["plan", name, "--memory", str(size)])
    output = capsys.readouterr()
    printed = output.out + output.err
    assert "available on a fresh Spark" in printed
    assert [word for word in (*reference_spark.HOSTS, "available now", "ps axo") if word in printed] == []


def test_a_pair_without_hosts_has_two_reference_sparks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", PAIR]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{PAIR} on 2 reference Sparks: go\n")
    assert output.count("  memory of reference Spark 1 to reference Spark 2, each\n") == output.count("memory of") == 1


def test_an_unknown_peak_of_loading_is_named_where_it_may_not_fit() -> None:
    small = document(NVFP4, memory={"utilization": 0.80})
    assert any("the peak of loading is not measured" in note for note in forecast_of(small).notes)
    assert not any(
        "peak of loading" in note for note in forecast_of(document(NVFP4, memory={"utilization": 0.5})).notes
    )


def test_a_load_is_held_against_the_recipe_and_the_model() -> None:
    recipe = document(NVFP4)
    request = ForecastRequest(context=500_000)
    assert [refusal.id for refusal in forecast_of(recipe, request=request).refusals] == ["context-too-long"]
    recipe["args"] |= {"max-num-seqs": 8}
    crowded = ForecastRequest(streams=64)
    result = forecast_of(recipe, request=crowded)
    text = text_of(result, recipe, crowded)
    assert "max-num-seqs is 8: 56 of 64 streams wait" in text
    assert "for 8 requests at once, each 1024 tokens of prompt and 256 of answer" in text
    assert result.prediction == forecast_of(recipe, request=ForecastRequest(streams=8)).prediction


def test_a_site_names_its_constants_and_its_least_speed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "vllm.yml"
    site.write_text("vllm_roofline: {bandwidth: 60.0e+9}\nvllm_least_tok_s: 25\n")
    assert main.main(["plan", NVFP4]) == 0
    assert main.main(["plan", NVFP4, "--site", str(site)]) == 1
    assert "expected: at least 25 tok/s" in capsys.readouterr().err
    assert main.main(["plan", NVFP4, "--site", str(site), "--min-speed", "0"]) == 0
    site.write_text("vllm_roofline: {speed_of_light: 1}\n")
    assert main.main(["plan", NVFP4, "--site", str(site)]) == 1
    assert "vllm_roofline: unknown speed_of_light" in capsys.readouterr().err


def test_a_constant_of_the_last_release_is_ignored_with_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The owner's inventory has constants that release 0.1.0 knew, beside one that counts still."""
    site = tmp_path / "vllm.yml"
    site.write_text("vllm_roofline: {bandwidth: 200.0e+9}\n")
    assert main.main(["plan", NVFP4, "--site", str(site)]) == 0
    wanted = capsys.readouterr().out
    site.write_text("vllm_roofline: {bandwidth: 200.0e+9, step_s: 1.0e-3, attention_s: 99}\n")
    assert main.main(["plan", NVFP4, "--site", str(site)]) == 0
    said = capsys.readouterr()
    assert said.out == wanted
    assert said.err.startswith("vllm_roofline: attention_s, step_s: read no more since release 0.1.0")


def test_an_unknown_size_is_not_a_model_on_the_host() -> None:
    recipe = document(NVFP4)
    for key in ("size_bytes", "architecture", "layout"):
        recipe["model"].pop(key, None)
    text = text_of(forecast_of(recipe), recipe)
    assert "download: unknown, the recipe has no size_bytes" in text
    assert "on the host" not in text


@pytest.mark.parametrize("options", [["--streams", "0"], ["--context", "none"]])
def test_a_wrong_load_is_a_usage_error(options: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_error:
        main.main(["plan", NVFP4, *options])
    assert exit_error.value.code == 2


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


@pytest.mark.parametrize(
    ("budget", "key"), [({"utilization": 0.3}, "utilization"), ({"kv_cache_bytes": 1 << 20}, "kv_cache_bytes")]
)
def test_a_cache_that_is_too_small_names_a_size_that_suffices(budget: dict[str, Any], key: str) -> None:
    recipe = loader.load("gemma-4-31b-nvfp4")
    changed = loader.merged(recipe, {"memory": {"utilization": None, **budget}})
    facts = {"spark1": {"memory": reference_spark.MEMORY}}
    [refusal] = forecast.forecast("demo", changed, facts, ForecastRequest(), ForecastContext()).refusals
    advised, figure, less = re.match(r"overrides\.memory\.(\w+): ([\d.]+)(.*)", refusal.fix).groups()  # type: ignore[union-attr]
    assert (advised, "a shorter context" in less) == (key, True)
    fixed = loader.merged(recipe, {"memory": {**budget, key: float(figure) if "." in figure else int(figure)}})
    assert not forecast.forecast("demo", fixed, facts, ForecastRequest(), ForecastContext()).refusals
    assert not list(known_issues.refusals(known_issues.of_closed(fixed), ()))


def test_no_larger_share_is_advised_than_a_known_issue_allows() -> None:
    """An owner's Spark rebooted after its share was raised."""
    overrides = {"memory": {"utilization": 0.79}, "args": {"max-model-len": 262144, "kv-cache-dtype": "bfloat16"}}
    recipe = loader.merged(loader.load("gemma-4-31b-nvfp4"), overrides)
    facts = {"spark1": {"memory": reference_spark.MEMORY}}
    result = forecast.forecast("demo", recipe, facts, ForecastRequest(262144, 4), ForecastContext())
    assert result.refusals[0].fix == (
        "a shorter context: lower overrides.args.max-model-len, --context or --streams; or a recipe with smaller "
        "weights, or one for two Sparks (`vllm-spark recipes`)."
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_sparks_are_proposed_to_one(nodes: int) -> None:
    recipe = loader.load("gpt-oss-120b").document
    recipe = {**recipe, "topology": {**recipe["topology"], "nodes": nodes, "tensor_parallel": nodes}}
    facts = {host: {"memory": reference_spark.memory(64 // nodes)} for host in reference_spark.HOSTS[:nodes]}
    result = forecast.forecast("demo", recipe, facts, ForecastRequest(), ForecastContext())
    assert "a recipe with smaller weights" in result.refusals[0].fix
    assert ("or one for two Sparks" in result.refusals[0].fix) == (nodes == 1)


def test_what_is_better_for_many_streams_is_a_total_like_that_of_the_recipe() -> None:
    """The recipe serves four at once: raising that is the first advice, and others are compared with it."""
    recipe = document(FEW)
    assert recipe["args"]["max-num-seqs"] == 4
    request = ForecastRequest(streams=64)
    context = ForecastContext(catalogue=forecast.catalogue([paths.RECIPES]))
    facts = {"spark1": {"memory": reference_spark.MEMORY}}
    first, *others = forecast.forecast("demo", recipe, facts, request, context).better
    found = re.fullmatch(
        r"raise overrides.args.max-num-seqs from 4 to 64: (\d+) tok/s together, 64 streams at once "
        r"in place of (\d+) tok/s together, 4 streams at once",
        first,
    )
    assert found
    assert others
    for line in others:
        total, times = re.search(r": (\d+)(?: to \d+)? tok/s together, \d+ streams at once, ([\d.]+)", line).groups()  # type: ignore[union-attr]
        assert float(times) == pytest.approx(int(total) / int(found[1]), abs=0.06)
    alone = forecast.forecast("demo", recipe, facts, ForecastRequest(), context).better
    assert alone
    assert not any("together" in line or "raise" in line for line in alone)


def test_of_a_recipe_without_architecture_the_weights_are_known() -> None:
    recipe = document("qwen3.8-flash-next-nvfp4-tp2")
    facts = {host: {"memory": reference_spark.MEMORY} for host in ("spark1", "spark2")}
    result = forecast.forecast("demo", recipe, facts, ForecastRequest(), ForecastContext())
    assert result.verdict == "unknown"
    (line,) = [note for note in result.notes if note.startswith("weights take ")]
    assert line.startswith(
        "weights take 61.8 GiB a rank of the 94.9 GiB that the engine reserves, which leaves 33.1 GiB"
    )
    small = {host: {"memory": reference_spark.memory(64)} for host in facts}
    refused = forecast.forecast("demo", recipe, small, ForecastRequest(), ForecastContext())
    assert {refusal.id for refusal in refused.refusals} == {"no-room-for-the-cache"}
    assert refused.verdict == "no-go, 2 reasons"


@pytest.mark.parametrize(
    ("name", "site", "expected"),
    [
        ("qwen3.6-35b-a3b-fp8", {}, True),
        ("qwen3.6-35b-a3b-fp8", {"all_reduce_s": 4.0e-5, "link": 1.1e10}, False),
        ("qwen3.6-35b-a3b-fp8", {"all_reduce_s": 4.0e-5}, True),
        ("gemma-4-31b-fp8", {}, False),
        ("minimax-m2.7-nvfp4-tp2", {}, False),
    ],
)
def test_a_pair_of_experts_is_not_ranked_before_all_reduces_are_timed(
    name: str, site: dict[str, float], expected: bool
) -> None:
    """A dense model is, and one that a Spark does not hold."""
    recipe = document(name)
    recipe["topology"] = {**recipe["topology"], "nodes": 2, "tensor_parallel": 2}
    known = constants.constants_of(site)
    facts = {host: {"memory": reference_spark.MEMORY} for host in ("spark1", "spark2")}
    assert pairs.unranked(recipe, known) == expected
    notes = forecast.forecast("demo", recipe, facts, ForecastRequest(), ForecastContext(constants=known)).notes
    assert any("time_all_reduce=true" in note for note in notes) == expected


def test_an_encoder_is_a_go_by_its_weights_and_unknown_without_their_size() -> None:
    recipe = document("bge-m3")
    text = text_of(forecast_of(recipe), recipe)
    assert text.startswith("bge-m3 on spark1: go\n")
    assert "weights take 2.1 GiB, and an encoder has no cache; the engine asks for 3.7 GiB at its start" in text
    assert forecast_of(document("bge-m3", memory={"utilization": 0.01})).go
    recipe["model"].pop("size_bytes")
    assert text_of(forecast_of(recipe), recipe).startswith("bge-m3 on spark1: unknown\n")
    decoder = document("bge-m3", memory={"kv_cache_bytes": 2 << 30})
    assert "no prediction of memory and speed: recipe bge-m3 has no model.architecture" in text_of(
        forecast_of(decoder), decoder
    )
