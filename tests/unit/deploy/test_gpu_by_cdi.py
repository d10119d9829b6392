"""The GPU by CDI: what a host reports, and what its launch has."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host

from fakes.cases import hosts_of, resolved
from vllm_spark.deploy import launch, ranks
from vllm_spark.inventory.spec import Spec

FOLDERS = {"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}
# The keys and their order as nvidia-ctk writes them.
YAML = """---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  mounts:
  - containerPath: /usr/lib/libcuda.so.580.142
    hostPath: {source}
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""
JSON = json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {}}]})
OTHER = YAML.replace("nvidia.com/gpu", "nvidia.com/pva")
PRESENT, ABSENT = "/usr/lib/libcuda.so.580.142", "/usr/lib/libcuda.so.570.1"

HOSTS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "a file": (FOLDERS, {"etc/cdi/nvidia.yaml": YAML.format(source=PRESENT)}, {"file": "/etc/cdi/nvidia.yaml"}),
    "of an older driver": (
        FOLDERS,
        {"etc/cdi/nvidia.yaml": YAML.format(source=ABSENT)},
        {"file": "/etc/cdi/nvidia.yaml", "missing": ABSENT},
    ),
    "the later folder counts": (
        FOLDERS,
        {"etc/cdi/nvidia.yaml": YAML.format(source=ABSENT), "var/run/cdi/nvidia.yaml": YAML.format(source=PRESENT)},
        {"file": "/var/run/cdi/nvidia.yaml"},
    ),
    "in JSON on one line": (FOLDERS, {"etc/cdi/gpu.json": JSON}, {"file": "/etc/cdi/gpu.json"}),
    "of another kind": (FOLDERS, {"etc/cdi/other.yaml": OTHER}, {}),
    "without the device all": (FOLDERS, {"etc/cdi/nvidia.yaml": YAML.replace("name: all", 'name: "1"')}, {}),
    "a copy that CDI does not read": (FOLDERS, {"etc/cdi/nvidia.yaml.bak": YAML}, {}),
    "no folder": (FOLDERS, {}, {}),
    "CDI is off": ({"CDISpecDirs": []}, {"etc/cdi/nvidia.yaml": YAML}, {"enabled": False}),
    "a Docker that does not know CDI": ({}, {"etc/cdi/nvidia.yaml": YAML}, {"enabled": False}),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_host(name: str, tmp_path: Path) -> None:
    info, files, expected = HOSTS[name]
    for path, content in {**files, PRESENT[1:]: ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    found = spark_host.cdi(info, f"{tmp_path}/")
    assert found == {"enabled": True, "file": "", "missing": "", **expected}


WITH = {"cdi": {"enabled": True, "file": "/var/run/cdi/nvidia.yaml", "missing": ""}}
OFF = {"cdi": {"enabled": False, "file": "", "missing": ""}}
# No folder of CDI files, although the file is there.
UNREAD = {"cdi": {"enabled": True, "file": "", "missing": ""}}
CDI, HOOK = ("--device", "nvidia.com/gpu=all"), ("--gpus", "all")


@pytest.mark.parametrize(("docker", "option"), [(WITH, CDI), (OFF, HOOK), (UNREAD, HOOK), ({}, HOOK)])
def test_a_launch_has_the_gpu_once(
    docker: dict[str, Any], option: tuple[str, str], facts: dict[str, Any], tmp_path: Path
) -> None:
    case = {"facts": {"docker": docker}}
    specs = resolved(case, "spark1")
    spec = ranks.join(specs, hosts_of(case, specs, facts, tmp_path))["spark1"]
    assert [words for words in launch.container_options(spec) if words in (CDI, HOOK)] == [option]
    assert ("nvidia-cdi-refresh" in launch.script(spec)) is (option is CDI)


# What systemctl answers to is-enabled and to start -> its calls. The launch goes on in any case, so that Docker judges.
UNITS = {
    "on": ("exit 0", ["is-enabled", "start"]),
    "off, or not there": ("[ $1 = start ]", ["is-enabled"]),
    "on, and it fails": ("[ $1 = is-enabled ]", ["is-enabled", "start"]),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_launch_waits_for_the_cdi_file_of_this_boot(name: str, resolve: Callable[..., Spec], tmp_path: Path) -> None:
    answer, expected = UNITS[name]
    script = launch.script(replace(resolve(), gpu_by_cdi=True))
    for program, text in (("systemctl", f"[ $1 = --quiet ] && shift\necho $1\n{answer}"), ("docker", "echo docker")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[1:] == [*expected, "docker"]


PAIR = {
    "deployments": [{"name": "demo", "recipe": "two-sparks", "hosts": ["spark1", "spark2"]}],
    "limit": ["spark1", "spark2"],
    "secrets": {},
}


def test_the_ranks_of_a_pair_may_differ(facts: dict[str, Any], tmp_path: Path) -> None:
    """They stay one service: one fingerprint, in which the way of each rank counts."""
    fingerprints = set()
    for number, ways in enumerate(((WITH, OFF), (OFF, WITH), (WITH, WITH), (OFF, OFF))):
        case = {**PAIR, "host_facts": {f"spark{rank}": {"docker": way} for rank, way in enumerate(ways, 1)}}
        specs = resolved(case, "spark1")
        ranked = ranks.join(specs, hosts_of(case, specs, facts, tmp_path / str(number)))
        options = [set(launch.container_options(spec)) & {CDI, HOOK} for spec in ranked.values()]
        assert options == [{CDI} if way is WITH else {HOOK} for way in ways]
        (fingerprint,) = {launch.fingerprint(spec) for spec in ranked.values()}
        fingerprints.add(fingerprint)
    assert len(fingerprints) == 4
