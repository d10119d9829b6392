"""The doctor on failure logs of public threads and of own engines, and on healthy logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import doctor_corpus as corpus
from vllm_spark.doctor import command
from vllm_spark.doctor.areas import area_of, areas
from vllm_spark.doctor.diagnosis import judge, root_cause
from vllm_spark.doctor.families import Family, classify, families
from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.log import Log

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
CASES = list(corpus.cases())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_or_its_line_comes_first(case: corpus.Case) -> None:
    verdict, finding = case.verdict()
    assert verdict in {"right cause", "right line"}, finding


@pytest.mark.slow
def test_the_share_of_right_causes() -> None:
    """Two thirds is the floor of logs that were not read before; all of them were read after their first run."""
    verdicts = Counter(case.verdict()[0] for case in CASES)
    assert verdicts["right cause"] >= 0.95 * len(CASES)
    assert len(CASES) >= 40


def test_the_index_and_the_logs_belong_together() -> None:
    assert {*corpus.FAILED.glob("*.log"), *corpus.OWN.glob("*.log.gz")} == {case.file for case in CASES}
    assert all(case.own or case.source.partition("#")[2].isdigit() for case in CASES)


@pytest.mark.slow
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
    rules = [rule for family in yaml.load(text, yaml.CSafeLoader)["families"] for rule in family["rules"]]
    assert all(
        set(rule) <= {"line", "frames", "in_log", "exception_only", "after_areas", "cause", "fix"} for rule in rules
    )
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


LINES = yaml.load(
    (Path(__file__).parents[2] / "data" / "doctor-lines.yml").read_text(encoding="utf-8"), yaml.CSafeLoader
)


def first_finding(*lines: str) -> Finding | None:
    log = Log()
    log.read("\n".join(lines) + "\n")
    judgement = judge([log])
    return next(iter((*judgement.findings, *judgement.unrecognised)), None)


def first(*lines: str) -> str:
    finding = first_finding(*lines)
    return finding.signature if finding else ""


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["text"].strip().splitlines()[-1][:50])
def test_a_message_leads_to_its_cause(row: dict[str, str]) -> None:
    finding = first_finding(*row["text"].splitlines())
    assert (finding.signature if finding else "") == row["expected"]
    if finding:
        assert row.get("line", "") in finding.line
        assert row.get("cause", "") in finding.cause
        assert row.get("fix", "") in finding.fix
        assert row.get("not_in_fix", "\n") not in finding.fix


@pytest.mark.parametrize("area", areas(), ids=lambda area: area["id"])
def test_each_prefix_of_an_area_leads_to_it(area: dict[str, Any]) -> None:
    for path in area["paths"]:
        place = path.replace("*", "x/y.py")
        frame = place if " " in place else f"{place}{'/' if place.isidentifier() else ''}module.py function"
        assert area_of(["vllm/v1/engine/core.py run", f"/opt/python3.12/dist-packages/{frame}"]) == area["id"], path


OOM = "(EngineCore pid=9) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (
            '(EngineCore pid=9)   File "/a/vllm/v1/worker/gpu_worker.py", line 7, in determine_available_memory',
            "loaded",
        ),
        ("(APIServer pid=1) ERROR 11-20 10:00:00 [async_llm.py:1] AsyncLLM output_handler failed.", "request"),
        ("hello", "do not show"),
    ],
)
def test_a_full_memory_says_when(line: str, phase: str) -> None:
    finding = root_cause([line, OOM])
    assert finding is not None
    assert finding.signature == "cuda-out-of-memory"
    assert phase in finding.cause


@pytest.mark.parametrize(
    ("line", "other"),
    [
        (
            "node:1:1 [0] NCCL INFO Using network Socket",
            "node:1:1 [0] NCCL INFO comm 0x1 nRanks 2 nNodes 1 localRanks 2",
        ),
        ("Ignored error: [Errno 13] Permission denied: '/root/.cache/a'", "INFO:     Application startup complete."),
    ],
)
def test_a_line_that_another_one_explains_is_no_finding(line: str, other: str) -> None:
    assert first(line)
    assert first(line, other) == first(other, line) == ""


def test_an_assertion_without_a_message_shows_its_source() -> None:
    finding = root_cause(
        ["Traceback (most recent call last):", '  File "a.py", line 1, in a', "    assert b == c", "AssertionError"]
    )
    assert finding is not None
    assert finding.line == "AssertionError: assert b == c"


def test_the_healthy_excerpts_have_a_source() -> None:
    sources = yaml.load((corpus.HEALTHY / "index.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert {path.stem for path in corpus.HEALTHY.glob("*.log")} == set(sources)


def test_a_cause_that_is_unknown_within_its_area_allows_a_second_start() -> None:
    assert all(family.transient for family in families() if family.id.startswith("area-"))
    assert len(areas()) >= 15
