"""The verbs with several deployments on one Spark, on a Spark that is a folder of this machine (issue 52)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from fakes import local_spark
from vllm_spark.core import paths

CHAT = {"name": "chat", "recipe": "gpt-oss-20b", "hosts": ["spark1"]}
FAST = {"name": "fast", "recipe": "nemotron-3.5-lightning-nvfp4", "hosts": ["spark1"], "port": 8001}


def run(inventory: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["ansible-playbook", "-i", str(inventory), f"{verb}.yml", *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=paths.ROOT, check=False)


def plan(folder: Path, *deployments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    with local_spark.running(folder / "spark") as host:
        inventory = local_spark.write_inventory(folder, host, "gpt-oss-20b", vllm_deployments=list(deployments))
        done = run(inventory, "plan", "-e", "json=true")
    return done.returncode, json.loads(done.stdout)


def test_plan_adds_the_memory_of_two_and_has_a_part_for_each(tmp_path: Path) -> None:
    status, document = plan(tmp_path, CHAT, FAST)
    assert status == 0
    found = {one["deployment"]: one for one in document["deployments"]}
    assert {name: one["verdict"] for name, one in found.items()} == {"chat": "go", "fast": "go"}
    caches = [one["memory"][0]["cache_bytes"] >> 30 for one in found.values()]
    assert caches == [32, 29]
    lines = [line for host in document["hosts"] for line in host["lines"] if line.startswith("memory of spark1: ")]
    assert len(lines) == 2 * len(set(lines)) == 6


def test_a_sum_that_does_not_fit_is_refused_once_after_the_forecast_of_each(tmp_path: Path) -> None:
    names = {"chat": "large", "fast": "larger"}
    large = [
        {**one, "recipe": "gpt-oss-120b", "overrides": {"model": {"served_name": names[str(one["name"])]}}}
        for one in (CHAT, FAST)
    ]
    status, document = plan(tmp_path, *large)
    assert status == 2
    verdicts = {one["deployment"]: one["verdict"].partition(",")[0] for one in document["deployments"]}
    assert verdicts == {"chat": "no-go", "fast": "no-go"}
    assert [refusal["id"] for refusal in document["refusals"]].count("budgets-too-large") == 1
    # The disk is this machine's, and may have no room for the weights of two.
    assert {refusal["id"] for refusal in document["refusals"]} - {"too-little-disk"} == {"budgets-too-large"}
    assert "chat 74.9 GiB (weights 65.8 GiB, cache 5.0 GiB" in json.dumps(document["refusals"])


def test_status_templates_only_what_it_reads(tmp_path: Path) -> None:
    """`hostvars` is no variable of a host, so a variable that needs it has no value among those of a host."""
    needs = "{{ hostvars['spark1'].ansible_host }}"
    with local_spark.running(tmp_path / "spark") as host:
        inventory = local_spark.write_inventory(
            tmp_path, host, "gpt-oss-20b", vllm_deployments=[CHAT, FAST], site_note=needs
        )
        done = run(inventory, "status", "-e", "json=true")
    (found,) = json.loads(done.stdout)["hosts"]
    assert "hostvars" not in str(found["problem"])
    assert [one["name"] for one in found["deployments"]] == ["chat", "fast"]
