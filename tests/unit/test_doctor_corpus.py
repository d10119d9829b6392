"""The doctor on failure logs of public threads, and on healthy logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

import doctor_corpus as corpus
from vllm_spark.doctor import command
from vllm_spark.doctor.diagnosis import judge, root_cause
from vllm_spark.doctor.families import Family, classify, families

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
CASES = list(corpus.cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_or_its_line_comes_first(case: corpus.Case) -> None:
    verdict, finding = case.verdict()
    assert verdict in {"right cause", "right line"}, finding


def test_the_share_of_right_causes() -> None:
    """Two thirds is the floor of logs that were not read before; all of them were read after their first run."""
    verdicts = Counter(case.verdict()[0] for case in CASES)
    assert verdicts["right cause"] >= 0.95 * len(CASES)
    assert len(CASES) >= 40


def test_the_index_and_the_logs_belong_together() -> None:
    assert {path.stem for path in corpus.FAILED.glob("*.log")} == {case.name for case in CASES}
    assert all(case.source.partition("#")[2].isdigit() for case in CASES)


@pytest.mark.parametrize("log", corpus.healthy(), ids=lambda log: log.stem)
def test_a_healthy_log_has_no_finding(log: Path) -> None:
    judgement = judge([command.read(str(log))])
    assert (judgement.findings, judgement.unrecognised) == ((), ())


@pytest.mark.parametrize("family", families(), ids=lambda family: family.id)
def test_an_example_leads_to_its_own_family(family: Family) -> None:
    finding = root_cause(family.example.splitlines())
    assert finding is not None
    assert finding.signature == family.id
    assert finding.runbook == family.runbook
    assert (RUNBOOKS / family.runbook).is_file()
    assert all(rule.fix.endswith(".") and not rule.cause.endswith(".") for rule in family.rules)


def test_the_file_of_families_has_only_known_fields() -> None:
    text = Path(str(families.__wrapped__.__code__.co_filename)).with_suffix(".yml").read_text(encoding="utf-8")
    rules = [rule for family in yaml.safe_load(text)["families"] for rule in family["rules"]]
    assert all(set(rule) <= {"line", "frames", "exception_only", "after_areas", "cause", "fix"} for rule in rules)
    assert all("line" in rule or "frames" in rule for rule in rules)


@pytest.mark.parametrize(
    ("line", "frames", "family", "fix"),
    [
        ("RuntimeError: Error Internal", ["vllm/_custom_ops.py cutlass_scaled_mm"], "kernel-fails", "DISABLED_KERNELS"),
        (
            "torch.AcceleratorError: CUDA error: unspecified launch failure",
            ["vllm/quantization/utils/nvfp4_utils.py apply_nvfp4_linear"],
            "kernel-fails",
            "VLLM_NVFP4_GEMM_BACKEND",
        ),
        (
            "RuntimeError: CUDA error: invalid argument",
            ["vllm/model_executor/layers/fused_moe/layer.py forward"],
            "kernel-fails",
            "moe-backend",
        ),
        (
            "AssertionError",
            ["vllm/model_executor/models/gemma4_mtp.py load_weights"],
            "drafter-unfit",
            "vLLM 0.21.0 or newer",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect "
            "to (127.0.1.1, 29501).",
            [],
            "ranks-do-not-meet",
            "/etc/hosts",
        ),
        ("ModuleNotFoundError: No module named 'ray'", [], "packages-do-not-fit", "package of ray"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", [], None, ""),
    ],
)
def test_a_fix_depends_on_what_failed(line: str, frames: list[str], family: str | None, fix: str) -> None:
    found = classify(line, frames)
    assert (found.family.id if found else None) == family
    assert found is None or fix in found.fix
