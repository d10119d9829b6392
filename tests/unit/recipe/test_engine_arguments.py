"""Flags and variables that the engine would refuse. tests/engine compares the data with the real parsers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch
from vllm_spark.inventory import spec
from vllm_spark.recipe import conditions, engine_arguments, engine_flags, flag_names, known_issues, loader, rules
from vllm_spark.sizing import forecast, forecast_text, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest
from vllm_spark.verify import runner

ENGINE = engine_flags.load("0.21.0")
RECIPE = "gemma-4-26b-a4b-fp8-mtp"


def changed(block: str, changes: Mapping[str, Any], version: str = "0.21.0") -> dict[str, Any]:
    document = copy.deepcopy(dict(loader.load(RECIPE).document))
    document["engine"]["version"] = version
    return {**document, block: {**document.get(block, {}), **changes}}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (("max_model_len", 2048), ("max-model-len", 2048)),
        (("--max-model-len", 2048), ("max-model-len", 2048)),
        (("max-model-l", 2048), ("max-model-len", 2048)),
        (("max-model-len", "4k"), ("max-model-len", 4000)),
        (("max-model-len", "lots"), ("max-model-len", "lots")),
        (("-tp", 2), ("tensor-parallel-size", 2)),
        (("no-enable-prefix-caching", True), ("enable-prefix-caching", False)),
        (("no_enable_prefix_caching", False), ("enable-prefix-caching", True)),
        (("no-enable-prefix-caching", None), ("enable-prefix-caching", None)),
        (("enable-auto", True), ("enable-auto-tool-choice", True)),
        (("compilation_config.cudagraph_mode", "NONE"), ("compilation-config.cudagraph_mode", "NONE")),
        (("-cc.use_inductor_graph_partition", False), ("compilation-config.use_inductor_graph_partition", "false")),
        (("max_modle_len", 1), ("max-modle-len", 1)),
        (("max-num", 1), ("max-num", 1)),
    ],
)
def test_a_flag_has_one_spelling(given: tuple[str, Any], seen: tuple[str, Any]) -> None:
    assert flag_names.canonical_item(*given, ENGINE) == seen


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (("disable-prefix-caching", True), ("enable-prefix-caching", False)),
        (("disable_prefix_caching", False), ("enable-prefix-caching", True)),
        (("--disable-pref", True), ("enable-prefix-caching", False)),
        (("disable-prefix-caching", None), ("enable-prefix-caching", None)),
        (("enable-custom-all-reduce", True), ("disable-custom-all-reduce", False)),
        # It begins two names, one of them of an opposite.
        (("enable-chunked", True), ("enable-chunked", True)),
        (("no-disable-prefix-caching", True), ("no-disable-prefix-caching", True)),
        (("disable-prefix-caching", "yes"), ("disable-prefix-caching", "yes")),
    ],
)
def test_a_flag_may_be_named_by_its_opposite(given: tuple[str, Any], seen: tuple[str, Any]) -> None:
    assert flag_names.canonical_item(*given, engine_flags.load("0.33.0")) == seen


def test_older_versions_have_no_opposites() -> None:
    assert flag_names.canonical_item("disable-prefix-caching", True, ENGINE) == ("disable-prefix-caching", True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"max_model_len": 1, "max-model-len": 2},
            "args.max_model_len and args.max-model-len: both are --max-model-len",
        ),
        ({"enforce-eager": True, "no-enforce-eager": None}, "both are --enforce-eager"),
        ({"compilation-config": {}, "compilation_config.mode": 3}, "the engine reads only one of them"),
        ({"api_key": "SEKRET"}, "args.api_key: set, which is --api-key"),
        ({"--tensor-parallel-size": 2}, "args.--tensor-parallel-size: set, which is --tensor-parallel-size"),
        ({"tp": 2}, "args.tp: set, which is --tensor-parallel-size"),
        ({"served-model": "x"}, "args.served-model: set, which is --served-model-name"),
        ({"speculative_config.num_speculative_tokens": 2}, "which is --speculative-config"),
        ({"gpu_memory_util": None}, "which is --gpu-memory-utilization"),
        ({"hf_token": "hf_x"}, "args.hf_token: a secret"),
        ({"config": "/x.yml"}, "args.config: set"),
        ({"middleware": ["a", "--api-key", "SEKRET"]}, "args.middleware: --api-key"),
        ({"chat-template": "--api-key=SEKRET"}, "args.chat-template: --api-key"),
        ({"api-key=SEKRET": True}, "args.api-key: not the name of a flag"),
    ],
)
def test_a_spelling_hides_nothing(args: dict[str, Any], words: str) -> None:
    faults = [fault.what for fault in rules.override_faults({"args": args})]
    assert any(words in fault for fault in faults), faults
    assert not any("SEKRET" in fault for fault in faults)


def test_one_spelling_of_a_free_flag_has_no_fault() -> None:
    free = {"max_num_seqs": 4, "no-enforce-eager": True, "compilation-config.mode": 3, "hf-token": True}
    assert list(rules.override_faults({"args": free})) == []


@pytest.mark.parametrize(
    ("name", "value", "what", "expected"),
    [
        ("max-modle-len", 44, "args.max-modle-len: unknown flag", "max-model-len"),
        ("xyzzy", 1, "args.xyzzy: unknown flag", "one of the 247 that this version knows"),
        ("dtype", "float13", 'args.dtype: "float13"', "one of auto, bfloat16, float, float16, float32, half"),
        ("max-num-seqs", "many", 'args.max-num-seqs: "many"', "a whole number"),
        ("max-num-seqs", 4.5, "args.max-num-seqs: 4.5", "a whole number"),
        ("max-num-seqs", True, "args.max-num-seqs: true", "a whole number"),
        ("max-num-seqs", [1, 2], "args.max-num-seqs: [1, 2]", "a whole number"),
        ("enable-prefix-caching", "true", 'args.enable-prefix-caching: "true"', "true or false"),
        ("disable-log-stats", False, "args.disable-log-stats: false", "true, or no such line"),
        ("tool-call-parser", "gemma-4", "args.tool-call-parser: gemma-4", "gemma4"),
        ("ignore-patterns", ["a", "-q"], "args.ignore-patterns: a -q", "no dash in front"),
        ("compilation-config", {"cudagraph_modes": 1}, "compilation-config.cudagraph_modes: unknown", "cudagraph_mode"),
        ("kernel-config", {"moe_backend": "marlim"}, "args.kernel-config.moe_backend: marlim", "one of auto, triton"),
        ("revision", "-v1.0", "args.revision: -v1.0", "no dash in front"),
    ],
)
def test_a_fault_names_what_was_meant(name: str, value: Any, what: str, expected: str) -> None:
    (fault,) = engine_arguments.flag_faults(name, value, ENGINE)
    assert what in fault.what
    assert fault.expected.startswith(expected)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("disable-log-requests", ["enable-log-requests"], "enable-log-requests: false, which means the same"),
        ("log-requests", ["enable-log-requests", "disable-log-requests"], ""),
        ("VLLM_USE_FLASHINFER_MOE_FP4", ["VLLM_USE_FLASHINFER_MOE_INT4"], ""),
        ("VLLM_USE_FLASHINFER_MOE_FP8", ["VLLM_USE_FLASHINFER_MOE_INT4"], ""),
        ("VLLM_FLASHINFER_MOE_BACKEND", ["VLLM_FLASHINFER_ALLREDUCE_BACKEND"], ""),
        ("B12X_MLA_SPARSE", ["XPU_MLA_SPARSE"], ""),
        ("MLA_SPARSE", ["XPU_MLA_SPARSE"], ""),
        ("fp4", ["mxfp4", "nvfp4"], ""),
        ("mxfp4-backend", ["moe-backend"], ""),
        ("gpu-memory-utilisation", ["gpu-memory-utilization"], "gpu-memory-utilization"),
        ("max-batched-tokens", ["max-num-batched-tokens", "max-num-seqs"], "max-num-batched-tokens"),
        ("enable-prefix-cache", ["enable-prefix-caching"], "enable-prefix-caching"),
        ("VLLM_LOGGIN_LEVEL", ["VLLM_LOGGING_LEVEL"], "VLLM_LOGGING_LEVEL"),
        ("gemma-4", ["gemma3", "gemma4"], "gemma4"),
    ],
)
def test_a_suggestion_means_the_same(name: str, known: list[str], meant: str) -> None:
    expected = meant or f"one of {', '.join(known)}"
    assert engine_arguments.meant(name, known) == expected


def test_flags_by_key_are_one_map() -> None:
    args = {"compilation-config.cudagraph_modes": 1, "compilation-config.pass_config.fuse": "true"}
    faults = list(engine_arguments.faults(changed("args", args), ENGINE))
    assert [fault.what for fault in faults] == ["args.compilation-config.cudagraph_modes: unknown key"]


def test_a_plugin_may_bring_its_own_parser() -> None:
    own = {"tool-call-parser": "mine", "tool-parser-plugin": "/mine.py"}
    assert list(engine_arguments.faults(changed("args", own), ENGINE)) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("VLLM_ATTENTION_BACKEND", "TRITON_ATTN", "unknown variable, which the engine ignores"),
        ("VLLM_NVFP4_GEMM_BACKEND", "marlin-fp4", "env.VLLM_NVFP4_GEMM_BACKEND: marlin-fp4"),
        ("VLLM_RPC_TIMEOUT", "60000", "no file of this version reads it"),
        ("VLLM_LOG_STATS_INTERVAL", "often", "env.VLLM_LOG_STATS_INTERVAL: often"),
    ],
)
def test_a_variable_that_does_nothing_is_refused(name: str, value: str, words: str) -> None:
    (refusal,) = engine_arguments.refusals(changed("env", {name: value}), ())
    assert words in str(refusal)
    assert f"with vLLM 0.21.0: env.{name}" in str(refusal)


def test_other_variables_are_the_container_s() -> None:
    assert list(engine_arguments.refusals(changed("env", {"NCCL_DEBUG": "INFO"}), ())) == []


def test_the_drafter_s_keys_are_checked() -> None:
    wrong = changed("drafter", {"config": {"draft_tensor_parallel": 1, "draft-tensor-parallel-size": 1}})
    (refusal,) = engine_arguments.refusals(wrong, ())
    assert "drafter.config.draft_tensor_parallel: unknown — expected: draft_tensor_parallel_size" in str(refusal)
    assert "Fix: correct the drafter of the recipe" in str(refusal)


def test_a_version_without_data_is_unchecked_and_named() -> None:
    wrong = changed("args", {"max-modle-len": 44}, "0.27.1")
    assert list(engine_arguments.refusals(wrong, ())) == []
    (note,) = engine_arguments.notes(wrong, ())
    assert note.startswith("flags and variables are not checked: no data for vLLM 0.27.1, only for 0.19.1, ")


def test_a_build_of_a_release_has_the_release_s_data() -> None:
    wrong = changed("args", {"max-modle-len": 44}, "0.19.1.dev6")
    assert len(list(engine_arguments.refusals(wrong, ()))) == 1


def test_an_accepted_fault_is_a_note() -> None:
    wrong, accepted = changed("args", {"max-modle-len": 44}), ("engine-arguments",)
    assert list(engine_arguments.refusals(wrong, accepted)) == []
    assert list(engine_arguments.notes(wrong, accepted)) == [
        "accepted engine-arguments: args.max-modle-len: unknown flag"
    ]
    assert not list(known_issues.refusals(conditions.Subject(loader.load(RECIPE).document), accepted))


@pytest.mark.parametrize("name", sorted(loader.names([paths.RECIPES])))
def test_no_recipe_of_the_catalogue_has_a_fault(name: str) -> None:
    recipe = loader.load(name).document
    assert engine_flags.of_version(recipe["engine"]["version"]), "make engine-flags"
    assert list(engine_arguments.refusals(recipe, ())) == []


def placed(overrides: Mapping[str, Any], recipe: str = RECIPE) -> spec.Inventory:
    deployment = {"name": "demo", "recipe": recipe, "hosts": ["spark1"], "overrides": overrides}
    return spec.Inventory(deployments=[deployment], sparks=("spark1",), limit=("spark1",))


def test_an_override_replaces_the_recipe_s_flag_in_any_spelling() -> None:
    resolved = spec.resolve(placed({"args": {"max_model_l": "4K", "no-enable-auto-tool-choice": True}}), "spark1")
    assert resolved
    assert resolved.recipe["args"]["max-model-len"] == 4096
    assert resolved.recipe["args"]["enable-auto-tool-choice"] is False
    assert len(resolved.recipe["args"]) == len(loader.load(RECIPE).document["args"])


def test_an_override_is_checked_before_any_host_is_contacted() -> None:
    with pytest.raises(RefusedError, match=r"args.dtype: 'float13' — expected: auto, bfloat16"):
        spec.resolve(placed({"args": {"dtype": "float13"}}), "spark1")


def test_a_deployment_sets_the_drafter_s_tokens_and_the_served_names() -> None:
    names = {"served_name": "gemma4-fp8-mtp", "aliases": ["default", "openclaw/main"]}
    resolved = spec.resolve(placed({"drafter": {"speculative_tokens": 2}, "model": names}), "spark1")
    assert resolved
    flags = launch.flags(resolved)
    assert flags["speculative-config"]["num_speculative_tokens"] == 2
    assert flags["served-model-name"] == ["gemma4-fp8-mtp", "default", "openclaw/main"]
    assert runner.gate_request(resolved, "").served_name == "gemma4-fp8-mtp"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"drafter": {"speculative_tokens": 0}}, "at least 1"),
        ({"drafter": {"speculative_tokens": None}}, "a whole number"),
        ({"drafter": {"repository": "a/b"}}, "only speculative_tokens"),
        ({"model": {"served_name": "two words"}}, "a name without spaces"),
        ({"model": {"aliases": ["--api-key"]}}, "a name without spaces"),
        ({"model": {"repository": "a/b"}}, "only aliases, served_name"),
    ],
)
def test_other_values_are_refused(overrides: Mapping[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        spec.resolve(placed(overrides), "spark1")


def test_a_recipe_without_a_drafter_has_no_tokens_to_set() -> None:
    inventory = placed({"drafter": {"speculative_tokens": 2}})
    without = replace(inventory, deployments=[{**inventory.deployments[0], "recipe": "gemma-4-26b-a4b-fp8"}])  # type: ignore[index]
    with pytest.raises(RefusedError, match="recipe gemma-4-26b-a4b-fp8 has no drafter"):
        spec.resolve(without, "spark1")


ONE_NUMBER, FIVE_NUMBERS = "gemma-4-26b-a4b-fp8-mtp-fp8kv", "gemma-4-26b-a4b-fp8-mtp"
CARRIED = "carried over, measured with {} tokens a step"


@pytest.mark.parametrize(
    ("name", "tokens", "shares"),
    [
        (ONE_NUMBER, 4, {"code": "76%, measured", "prose": "50%, measured"}),
        *((ONE_NUMBER, n, {"code": CARRIED.format(4), "prose": CARRIED.format(4)}) for n in (1, 2, 3, 5, 6, 16)),
        (FIVE_NUMBERS, 4, {"code": "76%, measured", "prose": "50%, measured"}),
        (FIVE_NUMBERS, 1, {"code": CARRIED.format(2), "prose": CARRIED.format(4)}),
        (FIVE_NUMBERS, 8, {"code": CARRIED.format(6), "prose": CARRIED.format(4)}),
        *(
            (FIVE_NUMBERS, n, {"code": f"{share}, measured", "prose": CARRIED.format(4)})
            for n, share in {2: "87%", 3: "84%", 5: "66%", 6: "56%"}.items()
        ),
    ],
)
def test_an_acceptance_is_measured_for_its_number_of_tokens_only(
    name: str, tokens: int, shares: dict[str, str]
) -> None:
    """An edited copy of a recipe says the same as a deployment's overrides."""
    change = {"drafter": {"speculative_tokens": tokens}}
    copy = dict(loader.load(name).document)
    copy["drafter"] = {**copy["drafter"], **change["drafter"]}
    resolved = spec.resolve(placed(change, name), "spark1")
    assert resolved
    facts: dict[str, Any] = {"spark1": {"memory": reference_spark.MEMORY}}
    for recipe in (copy, resolved.recipe):
        result = forecast.forecast("demo", recipe, facts, ForecastRequest(), ForecastContext())
        rows = [
            re.fullmatch(r"    on (\w+), (\d+%) accepted .*\)  (.*)", one)
            for one in forecast_text.lines(result, recipe, ForecastRequest())
        ]
        found = {row[1]: f"{row[2]}, {row[3]}" for row in rows if row}
        assert found.keys() == shares.keys()
        assert all(found[text].endswith(shares[text]) for text in shares)


def test_a_recipe_says_with_how_many_tokens_its_acceptance_was_measured(tmp_path: Path) -> None:
    text = (paths.RECIPES / f"{ONE_NUMBER}.yml").read_text().replace("rate: 0.76, tokens: 4,", "rate: 0.76,")
    (tmp_path / f"{ONE_NUMBER}.yml").write_text(text)
    with pytest.raises(RefusedError, match="missing key tokens"):
        loader.load(ONE_NUMBER, [tmp_path])


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("max_num_seqs", 0, "args.max-num-seqs: 0"),
        ("--pipeline-parallel-size", 2, "args.pipeline-parallel-size: 2"),
        ("pp", 2, "args.pipeline-parallel-size: 2"),
        ("max-model-l", "4K", ""),
    ],
)
def test_ranges_are_checked_in_any_spelling(name: str, value: object, fault: str) -> None:
    faults = [one.what for one in rules.value_faults(changed("args", {name: value}))]
    assert faults == ([fault] if fault else [])


def test_a_flag_by_key_beside_the_recipe_s_map_is_refused() -> None:
    """The engine would drop one of the two."""
    recipe = loader.load(RECIPE)
    whole = replace(recipe, document={**recipe.document, "args": {"compilation-config": {"mode": 3}}})
    overrides = {"args": {"compilation_config.cudagraph_mode": "NONE"}}
    faults = list(loader.merged_faults(loader.merged(whole, overrides), overrides))
    assert [fault.what for fault in faults] == [
        "args.compilation-config and args.compilation-config.cudagraph_mode: the engine reads only one of them"
    ]


@pytest.mark.parametrize("command", ["check", "plan"])
def test_the_commands_without_a_host_refuse_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(yaml.safe_dump({**changed("args", {"max-modle-len": 44}), "name": "mine"}))
    assert main.main([command, str(file)]) == 1
    captured = capsys.readouterr()
    assert "mine with vLLM 0.21.0: args.max-modle-len: unknown flag — expected: max-model-len." in captured.err
    if command == "plan":
        assert "on Sparks of 64 GB: no-go, mine on a reference Spark: weights take" in captured.out
