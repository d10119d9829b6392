"""Each system of the field reports has a launch, and each demand of them on refusals, doctor and gates is met."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from fakes.cases import merge
from fakes.catalogue import NAMES, planned
from fakes.parsed_launch import Launch
from lab.forecast import any_model
from project_files import DATA
from vllm_spark.bench import reported
from vllm_spark.core import documents, paths
from vllm_spark.deploy import launch
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.log import Log
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import garbage
from vllm_spark.recipe import known_issues, loader
from vllm_spark.sizing import acceptance, forecast, layout, memory
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.verify import runner, tool_choice
from vllm_spark.verify.gates import log as log_gate
from vllm_spark.verify.gates import tools
from vllm_spark.verify.probe_types import HttpResponse

TABLE: dict[str, Any] = yaml.load((DATA / "systems.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
SYSTEMS: list[dict[str, Any]] = TABLE["systems"]
FIGURES = reported.load().figures
GEMMA = [name for name in NAMES if name.startswith("gemma-4")]
SNAPSHOT = re.compile(r"/hub/models--(?P<owner>.+?)--(?P<name>.+)/snapshots/(?P<commit>\w+)")
ISSUE = re.compile(r"vLLM (\d+)")
OVERRIDES = re.compile(r"`(overrides: \{[^`]+\})`|```yaml\n(overrides:\n(?:[^`]+))```")


def named(row: Mapping[str, Any]) -> str:
    return f"{row['report']}: {row.get('system') or row.get('what') or row['line'][:40]}"


@cache
def head(recipe: str, overrides: str = "{}") -> Spec:
    """Return the head of a recipe, planned with overrides in JSON on healthy Sparks."""
    facts = json.loads((DATA / "facts" / "spark.json").read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        return planned(recipe, facts, Path(folder), json.loads(overrides))[0]


@pytest.fixture
def spec(row: dict[str, Any]) -> Spec:
    return head(row["recipe"], json.dumps(row.get("overrides", {})))


def snapshot(path: str) -> dict[str, str]:
    """Return repository and commit of a folder in the container."""
    found = SNAPSHOT.fullmatch(path)
    assert found, path
    return {"repository": f"{found['owner']}/{found['name']}", "commit": found["commit"]}


def held(files: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return how the engine holds each part: `--quantization fp8` quantises BF16 linears while it loads."""
    quantises = flags.get("quantization") == "fp8"
    return {part: "fp8" if quantises and width == "bf16" and part != "head" else width for part, width in files.items()}


def value(words: list[str]) -> Any:
    """Return the value of a flag as YAML writes it. A flag without a word is true."""
    return yaml.load(" ".join(words), yaml.CSafeLoader) if words else True


def launched(spec: Spec, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rendered launch has, by the keys of `runs`."""
    parts, image, derived = Launch.of(spec), spec.recipe["image"], spec.derived
    flags = {flag: value(words) for flag, words in parts.flags.items()}
    drafter = json.loads(parts.flags["speculative-config"][0]) if "drafter" in spec.recipe else {}
    binds = [dict(word.partition("=")[::2] for word in mount.split(",")) for mount in parts.values("--mount")]
    return {
        **snapshot(parts.serve[0]),
        "weights": held(row["model"]["files"], flags),
        "image": f"{image['repository']}:{image['tag']}",
        "vllm": spec.recipe["engine"]["version"],
        "sparks": len(spec.deployment.hosts),
        "patches": [int(ISSUE.findall(patch["why"])[0]) for patch in spec.recipe.get("patches", [])] or None,
        "mounts": {bind["target"]: Path(bind["source"]).name for bind in binds if bind["target"].endswith(".py")}
        or None,
        "overlay": derived.overlay.get("url") if derived else None,
        "drafter": snapshot(drafter["model"])["repository"] if drafter else None,
        "drafted tokens": drafter.get("num_speculative_tokens"),
        "drafter method": drafter.get("method"),
        **{f"--{flag}": setting for flag, setting in flags.items()},
        **{name: yaml.load(f"'{setting}'", yaml.CSafeLoader) for name, setting in parts.env.items()},
        **{f"docker {name}": word for name, word in zip(parts.options, [*parts.options[1:], ""], strict=True)},
    }


def stated(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the report has, by the same keys."""
    model = row["model"]
    return {
        "repository": model["repository"],
        "commit": model["commit"],
        "weights": row["weights"],
        **row.get("runs", {}),
    }


def alike(key: str, report: Any, launch: Any) -> bool:
    return str(launch).startswith(str(report)) if key == "vllm" else report == launch


def own(spec: Spec) -> Iterator[str]:
    """Yield the keys of `runs` that the recipe itself sets."""
    yield from (f"--{flag}" for flag in spec.recipe["args"])
    yield from spec.recipe.get("env", {})


@pytest.mark.parametrize("row", SYSTEMS, ids=named)
def test_the_launch_is_that_of_the_report_or_says_why_not(row: dict[str, Any], spec: Spec) -> None:
    report, run = stated(row), launched(spec, row)
    differ = {key for key in report if not alike(key, report[key], run.get(key))}
    if row.get("printed"):
        differ |= {key for key in own(spec) if key not in report}
    assert differ == row.get("differs", {}).keys()
    corrections = spec.recipe.get("corrections", [])
    assert [why for why in row.get("differs", {}).values() if not any(why in text for text in corrections)] == []


@pytest.mark.parametrize("row", SYSTEMS, ids=named)
def test_the_files_the_flags_and_the_layout_of_the_forecast_agree(row: dict[str, Any], spec: Spec) -> None:
    model = spec.recipe["model"]
    assert model.get("checkpoint", model["layout"]) == row["model"]["files"]
    foreseen = memory.model_of(spec.recipe)
    assert foreseen is not None
    assert foreseen.layout == layout.widths(row["weights"])


def shown(page: str) -> list[Any]:
    """Return the overrides that a page shows."""
    text = (paths.ROOT / page).read_text(encoding="utf-8")
    return [yaml.load(inline or block, yaml.CSafeLoader)["overrides"] for inline, block in OVERRIDES.findall(text)]


@pytest.mark.parametrize("row", [row for row in SYSTEMS if "overrides" in row], ids=named)
def test_a_page_shows_the_overrides_of_a_system(row: dict[str, Any]) -> None:
    assert row["overrides"] in shown(row["page"])


@pytest.mark.parametrize("row", SYSTEMS, ids=named)
def test_the_figures_of_a_system_are_those_of_its_recipe(row: dict[str, Any]) -> None:
    expected = {entry["value"] for entry in loader.load(row["recipe"]).document["expected"]}
    known = expected | {
        one.value for one in FIGURES if one.recipe == row["recipe"] and isinstance(one.value, float | int)
    }
    assert set(row.get("figures", [])) - known == set()


def test_every_figure_of_a_recipe_of_the_reports_belongs_to_a_system() -> None:
    """A system that leaves the table is missed, too."""
    assert {one.recipe for one in FIGURES} - {""} <= {row["recipe"] for row in SYSTEMS}
    kept = {name for name in NAMES if "kept_for" in loader.load(name).document}
    assert kept <= {row["recipe"] for row in SYSTEMS}


@pytest.mark.parametrize("row", TABLE["new"], ids=named)
def test_a_system_without_a_recipe_gets_one_by_recipe_new(row: dict[str, Any]) -> None:
    (entry,) = [entry for entry in documents.read_yaml(any_model.FILE) if entry["model"] == row["repository"]]
    result = any_model.result(entry)
    assert result.made == "gemma-4, 1 Spark"
    assert result.speed == pytest.approx(row["figure"], rel=0.1)
    assert f"`vllm-spark recipe new {row['repository']}`" in (paths.ROOT / row["page"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("row", TABLE["elsewhere"], ids=named)
def test_a_system_of_another_engine_is_on_a_page(row: dict[str, Any]) -> None:
    assert row["figure"] in {one.value for one in FIGURES if not one.recipe and one.report.startswith(row["report"])}
    (line,) = [line for line in (paths.ROOT / row["page"]).read_text().splitlines() if row["words"] in line]
    assert f"| {row['figure']}" in line


@pytest.mark.parametrize("row", TABLE["refused"], ids=named)
def test_what_a_report_warns_of_is_refused(row: dict[str, Any]) -> None:
    """The recipe has the issue with the change, and not without it."""
    sound = copy.deepcopy(dict(loader.load(row["recipe"]).document))
    broken = merge(copy.deepcopy(sound), row["change"])
    before, after = (
        {issue.id: issue.level for issue in known_issues.matching_issues(known_issues.of_closed(one))}
        for one in (sound, broken)
    )
    assert row["issue"] not in before
    assert after.get(row["issue"]) == row.get("level", "refuse")


@pytest.mark.parametrize("row", TABLE["diagnosed"], ids=named)
def test_a_line_of_a_report_has_its_cause(row: dict[str, Any]) -> None:
    log = Log()
    log.read(f"{row['line']}\n")
    judgement = judge([log])
    assert [finding.signature for finding in (*judgement.findings, *judgement.unrecognised)][:1] == [row["finding"]]


GATE_ROWS = [
    pytest.param(row, name, id=f"{named(row)}, {name}")
    for row in TABLE["gates"]
    for name in (GEMMA if row["recipes"] == "all" else row["recipes"])
]


@pytest.mark.parametrize(("row", "name"), GATE_ROWS)
def test_a_server_counts_only_with_what_a_report_asks_for(row: dict[str, Any], name: str) -> None:
    asked = runner.gate_request(head(name), launch.fingerprint(head(name)))
    match row["gate"]:
        case {"log": gate}:
            (entry,) = [entry for entry in asked.log if entry["id"] == gate]
            assert [log_gate.judge_entry(entry, [row[key]]).ok for key in ("good", "bad")] == [True, False]
        case {"ready": seconds}:
            assert asked.deadline_s > seconds
        case {"tools": cases}:
            assert set(cases) <= set(asked.gates["tools"].get("cases", tools.CASES))
        case {"fabric": network}:
            assert asked.fabric == network
        case {"probe": needed}:
            assert asked.gates["probe"]["needed"] >= needed
        case {"failover": status}:
            refusal: HttpResponse = {"status": status}
            answer: HttpResponse = {"status": 200, "json": row["bad"]}
            assert "failover" in asked.gates
            assert tool_choice.judge_engine(asked.served_name, refusal).ok is None
            assert tool_choice.judge_router({asked.served_name}, refusal, answer, None).ok is False
        case {"garbage": text}:
            assert "garbage" in asked.gates
            assert list(garbage.in_text(text))
        case gate:
            assert gate in asked.gates


def test_four_drafted_tokens_are_the_best_on_code() -> None:
    """Report 004: 67.5, 71.2, 80.0, 76.9 and 72.2 tok/s for two to six."""
    recipe = loader.load("gemma-4-26b-a4b-fp8-mtp")
    speeds = {}
    for tokens in acceptance.CODE:
        document = loader.merged(recipe, {"drafter": {"speculative_tokens": tokens}})
        foreseen = forecast.predicted(document, ForecastRequest())
        assert foreseen is not None
        speeds[tokens] = foreseen.fast.tokens_per_s
    assert max(speeds, key=speeds.__getitem__) == recipe.document["drafter"]["speculative_tokens"] == 4
