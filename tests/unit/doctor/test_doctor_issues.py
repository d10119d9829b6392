"""`vllm-spark doctor` reads the known issues of recipes/compatibility.yml: one source of versions and advice."""

from __future__ import annotations

import pytest

from vllm_spark.cli import runbook
from vllm_spark.doctor import command, diagnosis, issues
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


# What a log line alone does not tell.
UNTOLD = {"engine", "model", "image", "pip", "mount"}
OF_FLAGS = [one for one in known_issues.load() if "Error: " in one.error and not UNTOLD & set(one.when)]


def test_enough_rules_have_the_flags_that_check_refuses() -> None:
    assert len(OF_FLAGS) > 10


@pytest.mark.parametrize("issue", OF_FLAGS, ids=lambda issue: issue.id)
def test_a_rule_with_flags_is_one_for_check_the_doctor_runbook_verify_and_status(
    issue: known_issues.KnownIssue,
) -> None:
    for line in issues.lines_of(issue):
        fixes = {found.fix for found in (first(line), runbook.diagnosed(line), diagnosis.root_cause([line])) if found}
        assert fixes == {f"{issue.instead}."}


CUTLASS = "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['VLLM_CUTLASS', 'MARLIN'].\n"


@pytest.mark.parametrize(
    ("version", "model", "status"),
    [
        ("", "", command.WARNINGS),
        ("0.20.2", "nvidia/Gemma-4-26B-A4B-NVFP4", command.WARNINGS),
        ("0.23.0", "nvidia/Gemma-4-26B-A4B-NVFP4", command.WARNINGS),
        ("0.30.0", "nvidia/Gemma-4-26B-A4B-NVFP4", 0),
        ("0.20.2", "acme/other-NVFP4", 0),
    ],
)
def test_an_issue_of_another_version_or_model_is_a_note(version: str, model: str, status: int) -> None:
    log = Log("a.log")
    text = f"vLLM API server version {version}\n" if version else ""
    text += f"non-default args: {{'model_tag': '{model}'}}\n" if model else ""
    log.read(f"{text}{CUTLASS}INFO:     Application startup complete.\n")
    judgement = judge([log])
    assert command.status(judgement) == status
    assert "VLLM_CUTLASS" in "\n".join(command.lines(judgement, [log]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VLLM_SERVICE_PORT", []),
        ("VLLM_ROUTER_SERVICE_HOST", []),
        ("VLLM_PORT_8000_TCP_ADDR", []),
        ("VLLM_ENGINE_PORT", []),
        ("VLLM_MADE_UP", ["env-ignored"]),
    ],
)
def test_the_service_links_of_kubernetes_are_no_warning(name: str, expected: list[str]) -> None:
    log = Log("a.log")
    log.read(f"Unknown vLLM environment variable detected: {name}\nINFO:     Application startup complete.\n")
    assert [found.signature for found in judge([log]).findings] == expected
