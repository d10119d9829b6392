"""The request of a bench on a deployment: its key, the cells that it can answer, and what the host gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.bench import deployment_run, profiles
from vllm_spark.bench.deployment_run import DeploymentRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import runner

Resolve = Callable[..., Spec]


def run_of(spec: Spec, profile: str = "standard") -> DeploymentRun:
    gates = runner.gate_request(spec, launch.fingerprint(spec))
    return DeploymentRun(spec, gates, "/etc/vllm-spark/demo/env", profiles.load(profile))


def without_drafter(spec: Spec) -> Spec:
    return replace(spec, recipe={key: value for key, value in spec.recipe.items() if key != "drafter"})


def test_the_placed_client_finds_all_of_its_modules(tmp_path: Path) -> None:
    """Python knows no package of the toolkit but the one that the job brings."""
    for name, text in deployment_run.programs().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    load = "import sys; sys.path.insert(0, sys.argv[1]); from vllm_spark.node.bench import job, rank_job, start_job"
    subprocess.run([sys.executable, "-I", "-S", "-c", load, str(tmp_path)], check=True)


def test_the_client_of_a_closed_engine_gets_its_socket(resolve: Resolve) -> None:
    run = run_of(replace(resolve(), edge=Edge("spark1", EdgeSettings(open=False))))
    request = run.request(run.record(), [], ends=True)
    assert request["url"] == "unix:/run/vllm-spark/demo/api/api.sock"


def test_the_key_names_everything_that_the_figures_depend_on(resolve: Resolve) -> None:
    spec = resolve()
    run = run_of(spec)
    variants, _ = run.variants()
    request = run.request(run.record(), variants[0].cells, ends=True)
    assert [variant.server for variant in variants] == [{}]
    key = request["run"]["key"]
    assert key["model"] == spec.recipe["model"]["repository"]
    assert key["image"] == spec.source
    assert key["launch"] == launch.fingerprint(spec)
    assert key["hosts"] == ",".join(spec.deployment.hosts)
    assert all(key[name] for name in ("commit", "topology", "toolkit", "protocol"))  # type: ignore[literal-required]
    assert request["run"]["subject"]["deployment"] == spec.deployment.name
    assert request["path"] == f"/var/lib/vllm-spark/bench/{spec.deployment.name}-standard.jsonl"
    assert json.loads(json.dumps(request)) == request


def test_cells_that_the_deployment_cannot_answer_are_left_out(resolve: Resolve) -> None:
    spec = resolve()
    spec = replace(spec, recipe={**spec.recipe, "args": {**spec.recipe["args"], "max-num-seqs": 2}})
    (variant,), left_out = run_of(spec, "streams").variants()
    assert {cell["streams"] for cell in variant.cells} == {1, 2}
    assert left_out
    assert all("max-num-seqs" in entry.why for entry in left_out)


def test_a_recipe_of_a_field_report_is_measured_in_its_cells(resolve: Resolve) -> None:
    variants, left_out = run_of(resolve(recipe="gemma-4-26b-a4b-fp8-mtp", secrets={}), "field-reports").variants()
    assert [variant.server for variant in variants] == [{}, *({"speculative_tokens": n} for n in (2, 3, 4, 5, 6))]
    assert left_out == []
    with pytest.raises(RefusedError, match="has no cell for demo: it has none for recipe everything — "):
        run_of(resolve(), "field-reports").variants()


def test_a_change_that_the_recipe_cannot_have_is_refused(resolve: Resolve) -> None:
    with pytest.raises(RefusedError, match="has no drafter"):
        run_of(without_drafter(resolve()), "drafter").variants()


def test_the_sweep_of_a_drafter_restarts_once_for_each_number(resolve: Resolve) -> None:
    spec = resolve()
    spec = replace(
        spec, recipe={**spec.recipe, "drafter": {"repository": "a/b", "revision": "0" * 40, "speculative_tokens": 3}}
    )
    variants, _ = run_of(spec, "drafter").variants()
    assert [variant.server for variant in variants] == [{"speculative_tokens": number} for number in range(1, 7)]


def test_a_change_of_the_server_is_a_variant_of_its_own(resolve: Resolve) -> None:
    variants, _ = run_of(resolve(), "compiled").variants()
    assert [variant.server for variant in variants] == [{"mode": "eager"}, {"mode": "compiled"}]
    assert len({len(variant.cells) for variant in variants}) == 1


def test_the_host_gets_every_module_and_text(tmp_path: Path) -> None:
    programs = deployment_run.programs()
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "vllm_spark/node/bench/job.py" in programs
    assert {name.rpartition("/")[2] for name in programs if "/corpora/" in name} >= {"chat.txt", "slots.json"}


def test_refusals_name_the_deployment_and_the_next_command(resolve: Resolve) -> None:
    spec = resolve()
    assert f"deploy.yml -l {','.join(spec.deployment.hosts)}" in str(deployment_run.not_deployed(spec))
    result: dict[str, Any] = {"ok": False, "detail": "http://127.0.0.1:8000 does not answer"}
    assert "does not answer" in str(deployment_run.job_failure("spark1", result))
