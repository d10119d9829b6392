"""`plan --sparks`: memory of each rank, forecast, refusals, text and document of a server on more than two Sparks."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

import printed_figures
import verb_documents
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.core.units import GIB
from vllm_spark.inventory import cabling
from vllm_spark.recipe import heads, loader
from vllm_spark.sizing import cable_plan, cable_text, constants, memory, reference_spark
from vllm_spark.sizing.cable_plan import CablePlan, Wanted
from vllm_spark.sizing.forecast import ForecastRequest

PAGE = paths.ROOT / "docs" / "operations" / "more-sparks.md"
MINIMAX, DRAFTED, UNKNOWN = "minimax-m2.7-nvfp4-tp2", "qwen3.6-35b-a3b-nvfp4-mtp", "qwen3.8-flash-next-nvfp4-tp2"


def of(name: str = MINIMAX, engine: str = "", **memory_of: Any) -> dict[str, Any]:
    document = dict(loader.load(name).document)
    document["memory"] = {**document["memory"], **memory_of}
    return {**document, "engine": {"version": engine}} if engine else document


def planned(recipe: dict[str, Any], fabric: str, sparks: int, *gbps: int, gb: int = 128) -> CablePlan:
    wanted = Wanted(recipe["name"], fabric, sparks, reference_spark.memory(gb), ForecastRequest(), gbps)
    return cable_plan.plan(recipe, wanted, constants.constants_of({}))


def ids(plan: CablePlan) -> list[str]:
    return [refusal.id for refusal in plan.forecast.refusals]


def test_the_head_has_a_budget_of_its_own() -> None:
    plan = planned(of(), "switch", 4)
    head, *others = plan.forecast.fits.values()
    assert len(others) == 3
    processes = sum(part.bytes for part in others[0].parts)
    assert head.beside == pytest.approx(5.6 * GIB, abs=2)
    assert 0 < processes < head.beside
    assert {other.weights for other in others} == {head.weights}
    # A quarter of the weights of one Spark, but for the tables, which every rank has.
    model = memory.model_of(of())
    assert model
    assert head.weights == sum(model.loaded_bytes(4).values())
    assert plan.forecast.go


def test_a_head_without_room_is_refused_where_the_others_fit() -> None:
    refusals = planned(of(utilization=0.815), "switch", 4).forecast.refusals
    assert [one.what.split()[0] for one in refusals if one.id == "too-little-memory"] == ["spark1"]


def test_sparks_of_64_gb_are_refused_for_each_rank_that_does_not_fit() -> None:
    refused = [refusal.what for refusal in planned(of(), "switch", 3, gb=64).forecast.refusals]
    assert [any(f"spark{number}" in what for what in refused) for number in (1, 2, 3)] == [True] * 3


def test_heads_that_three_cannot_share_make_a_pipeline_whose_stages_hold_the_model() -> None:
    plan = planned(of(), "switch", 3)
    assert plan.ranks == (1, 3)
    model = memory.model_of(of())
    assert model
    whole = model.loaded_bytes(1)
    stages = [fit.weights for fit in plan.forecast.fits.values()]
    # 62 layers are 21 in the largest stage; the embedding is on the first one and the output head on the last.
    layers = sum(size for part, size in whole.items() if part not in memory.NOT_IN_LAYERS) * 21 / 62
    assert stages[1] == pytest.approx(layers + whole["tables"], rel=0.001)
    assert stages[0] - stages[1] == whole["embedding"]
    assert stages[2] - stages[1] == whole["head"]
    assert any("8 heads of K and V" in note and "3 stages of a pipeline" in note for note in plan.forecast.notes)


def test_the_cache_of_a_fixed_size_stays_in_a_stage() -> None:
    plan = planned(of(kv_cache_bytes=8 * GIB), "switch", 3)
    assert {fit.room for fit in plan.forecast.fits.values()} == {8 * GIB}
    first, second, _ = plan.forecast.fits.values()
    assert first.reserved - second.reserved == first.weights - second.weights


def test_a_drafter_starts_under_tensor_parallel_and_not_under_a_pipeline() -> None:
    assert planned(of(DRAFTED), "switch", 4).forecast.go
    refused = planned(of(DRAFTED), "switch", 3)
    assert refused.rule.id == "pipeline-drafter"
    assert ids(refused) == ["cable-plan"]


def test_the_slowest_link_decides() -> None:
    fast, mixed, slow = (planned(of(), "switch", 4, *gbps) for gbps in ((), (200, 200, 100, 200), (100,)))
    speeds = [plan.forecast.prediction for plan in (fast, mixed, slow)]
    assert [plan.gbps for plan in (fast, mixed, slow)] == [200, 100, 100]
    assert speeds[0]
    assert speeds[1]
    assert speeds[1] == speeds[2]
    assert speeds[1].slow.tokens_per_s < speeds[0].slow.tokens_per_s
    assert speeds[1].first_token_s > speeds[0].first_token_s


@pytest.mark.parametrize(("fabric", "sparks"), [("triangle", 3), ("ring", 4)])
def test_an_unproven_shape_is_refused_with_its_plan(fabric: str, sparks: int) -> None:
    recipe = of(engine="0.33.0")
    plan = planned(recipe, fabric, sparks)
    assert ids(plan)[0] == "cable-plan"
    text = "\n".join(cable_text.lines(plan, recipe))
    assert f"  unproven: {plan.rule.why}" in text
    assert "spark1 port 0 (enp1s0f0np0) to spark2 port 1 (enp1s0f1np1)" in text


def test_a_refused_shape_has_no_text_but_its_refusal() -> None:
    plan = planned(of(), "ring", 4)
    (title,) = cable_text.lines(plan, of())
    assert title == f"{MINIMAX} on 4 Sparks by a ring: no-go, 1 reason; the toolkit does not deploy it"
    (refusal,) = plan.forecast.refusals
    assert refusal.command == f"vllm-spark plan {MINIMAX} --sparks 4 --fabric switch"


def test_a_recipe_without_an_architecture_is_unknown_and_has_cables() -> None:
    plan = planned(of(UNKNOWN), "switch", 4)
    assert plan.forecast.verdict == "unknown"
    assert plan.ranks == (4, 1)
    assert not plan.forecast.fits
    refused = planned(of(UNKNOWN), "switch", 4, gb=64).forecast.refusals
    assert [(one.id, one.what.partition(" has ")[0]) for one in refused] == [
        ("too-little-memory", "spark1"),
        ("too-little-memory", "spark2 to spark4"),
    ]
    assert len(plan.links[0]) == 4


def test_the_known_issues_of_a_pair_count() -> None:
    recipe = of()
    recipe["env"] = {**recipe.get("env", {}), "NCCL_NET": "Socket"}
    assert any("NCCL_NET Socket" in refusal.what for refusal in planned(recipe, "switch", 4).forecast.refusals)


@pytest.mark.parametrize(
    ("name", "ranks", "uneven"),
    [
        (MINIMAX, 8, []),
        (MINIMAX, 3, ["8 heads of K and V"]),
        ("gpt-oss-120b", 3, ["64 attention heads", "8 heads of K and V"]),
        (DRAFTED, 3, ["16 key heads", "32 value heads", "16 attention heads", "2 heads of K and V"]),
        (DRAFTED, 4, []),
    ],
)
def test_which_heads_ranks_can_share(name: str, ranks: int, uneven: list[str]) -> None:
    model = memory.model_of(of(name))
    assert model
    assert heads.uneven(model.architecture, ranks) == uneven


def test_a_peak_that_was_measured_on_one_spark_is_not_that_of_four() -> None:
    assert "loading_peak_bytes" in of("gpt-oss-120b")["memory"]
    assert planned(of("gpt-oss-120b"), "switch", 4).forecast.fits["spark2"].peak == 0


def test_the_page_shows_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^vllm-spark (plan .*--sparks.*)$", page, re.MULTILINE)
    shown = printed_figures.blocks(PAGE)[1:3]
    assert len(commands) == len(shown) == 2
    for command, block in zip(commands, shown, strict=True):
        main.main(shlex.split(command))
        printed = capsys.readouterr()
        assert printed_figures.differences(block, (printed.out + printed.err).rstrip("\n")) == []


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        ([MINIMAX, "--sparks", "4"], 0, "read"),
        ([MINIMAX, "--sparks", "8", "--fabric", "switch", "--min-speed", "900"], 1, "read"),
        ([MINIMAX, "--sparks", "3", "--fabric", "triangle"], 1, "refused"),
    ],
)
def test_the_document_of_a_cable_plan(
    words: list[str], status: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["plan", *words, "--json"]) == status
    document = verb_documents.judged(json.loads(capsys.readouterr().out))
    found = document["cabling"]
    assert (found["verdict"], found["sparks"]) == (verdict, int(words[2]))
    assert bool(found["links"]) == bool(found["variables"]) == (verdict != "refused")
    (entry,) = document["deployments"]
    assert [own["host"] for own in entry["memory"]] == entry["hosts"]
    if verdict == cabling.READ:
        of_cabling = {path for path in verb_documents.fields("plan") if path.startswith(".cabling")}
        assert of_cabling <= set(verb_documents.seen(document))


@pytest.mark.parametrize(
    ("name", "sparks", "how"),
    [
        (MINIMAX, 4, f"`vllm-spark recipe new nvidia/MiniMax-M2.7-NVFP4 --nodes 4 --like {MINIMAX}` writes one"),
        (UNKNOWN, 4, ", if so many ranks can share its heads: `vllm-spark recipe new "),
        ("qwen3.8-flash-next-bf16-tp4", 4, "the toolkit deploys it by this recipe"),
        ("bge-m3", 3, "the toolkit deploys a model of the role embed on one Spark or two"),
        ("gpt-oss-120b", 4, "one Spark holds this model: 4 servers behind one address need no switch"),
        ("gpt-oss-120b", 3, "3 ranks cannot share 64 attention heads, 8 heads of K and V evenly"),
    ],
)
def test_what_a_plan_says_of_the_way_to_it(name: str, sparks: int, how: str) -> None:
    assert how in "\n".join(planned(of(name), "switch", sparks).forecast.notes)


def test_weights_of_an_unknown_size_are_not_said_to_fit_one_spark() -> None:
    recipe = of(UNKNOWN)
    recipe["model"] = {key: value for key, value in recipe["model"].items() if key != "size_bytes"}
    assert not [note for note in planned(recipe, "switch", 4).forecast.notes if "one Spark holds" in note]


def test_only_a_split_expert_is_refused_for_its_half() -> None:
    issues = [ids(planned(of("gemma-4-26b-a4b-nvfp4-mtp"), "switch", sparks)) for sparks in (3, 4)]
    assert ["experts-split" in found for found in issues] == [False, True]


def test_a_start_that_the_head_cannot_hold_is_refused_with_the_share_that_it_can() -> None:
    (refusal,) = planned(of(DRAFTED, utilization=0.79), "switch", 4).forecast.refusals
    assert refusal.fix == "overrides.memory.utilization: 0.77."
    assert planned(of(DRAFTED, utilization=0.77), "switch", 4).forecast.go


@pytest.mark.parametrize(
    ("rates", "fix"), [(("200", "100"), "--gbps 100"), (("400",), "--gbps 200"), (("400", "300"), "--gbps 200")]
)
def test_rates_that_no_links_have_are_refused(
    rates: tuple[str, ...], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["plan", MINIMAX, "--sparks", "4", "--gbps", *rates]) == 1
    assert f"Fix: {fix}, if that is the slowest link." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--fabric", "ring"], ["--gbps", "100"], ["--sparks", "4", "--facts", "x.json"]])
def test_options_that_do_not_go_together_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", MINIMAX, *words]) == 1
    fabric = "ring" if "ring" in words else "switch"
    assert f"Fix: vllm-spark plan {MINIMAX} --sparks 4 --fabric {fabric}" in capsys.readouterr().err
