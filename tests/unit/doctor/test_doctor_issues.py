"""`vllm-spark doctor` reads the known issues of recipes/compatibility.yml: one source of versions and advice."""

from __future__ import annotations

import pytest

from vllm_spark.doctor import issues
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import UNRECOGNISED, Finding
from vllm_spark.doctor.log import Log
from vllm_spark.recipe import known_issues

PER_LAYER = "AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a per-layer attribute"
SCALE = "KeyError: 'layers.0.moe.experts.0.down_proj.input_global_scale'"
LINEAR = "vllm: error: unrecognized arguments: --linear-backend"
UNSLOTH = "/cache/models--unsloth--gemma-4-26B-NVFP4/snapshots/1"


def first(line: str, version: str = "", model: str = "") -> Finding:
    log = Log("a.log")
    text = f"vLLM API server version {version}\n" if version else ""
    text += f"non-default args: {{'model_tag': '{model}'}}\n" if model else ""
    log.read(f"{text}{line}\n")
    judgement = judge([log])
    return next(iter([*judgement.findings, *judgement.unrecognised]))


@pytest.mark.parametrize(
    ("line", "version", "model", "issue"),
    [
        (PER_LAYER, "", "", None),
        (PER_LAYER, "0.27.1", "google/gemma-4-31b-it", "transformers-per-layer-heads"),
        (PER_LAYER, "0.30.0", "", None),
        (PER_LAYER, "0.27.1", "acme/other", None),
        (SCALE, "0.24.0", UNSLOTH, "unsloth-nvfp4-too-old"),
        (SCALE, "0.24.0", "acme/other", None),
        (SCALE, "", "", None),
        (LINEAR, "0.21.0", "", "linear-backend-too-old"),
        (LINEAR, "0.30.0", "", None),
        ("openai_harmony.HarmonyError: error downloading or loading vocab file", "", "", "harmony-vocabulary"),
    ],
)
def test_the_log_decides_which_issue_it_shows(line: str, version: str, model: str, issue: str | None) -> None:
    found = first(line, version, model)
    if issue is None:
        assert "known issue" not in found.cause
        return
    known = next(entry for entry in known_issues.load() if entry.id == issue)
    assert (found.cause, found.fix) == (f"{known.what} (known issue {issue})", f"{known.instead}.")


@pytest.mark.parametrize(
    "issue", [issue for issue in known_issues.load() if "Error: " in issue.error], ids=lambda issue: issue.id
)
def test_no_exception_of_the_file_is_an_unknown_error(issue: known_issues.KnownIssue) -> None:
    for line in (line for line in issues.lines_of(issue) if "Error: " in line):
        assert first(line.replace("…", "x").replace("%s", "x")).signature != UNRECOGNISED
