"""What precheck says of a host: every case of tests/data/host_findings.yml, and boxes that do not tell.

The collectors are tried on the sandbox's stand-in for nvidia-smi, on stand-ins that answer otherwise, and on trees that
look like a box's /proc, /sys and /run.
"""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from conftest import DATA, load_module
from test_cases import merge, resolved

from vllm_spark.core import paths
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight import host_warnings
from vllm_spark.preflight.host_warning_rules import RULES

FILE = yaml.safe_load((DATA / "host_findings.yml").read_text())
CASES = {case["name"]: case for case in FILE["cases"]}
STAND_IN = paths.ROOT / "sandbox" / "spark" / "rootfs" / "usr" / "bin"
HEAD, WORKER = "spark1", "spark2"
PAIR = {"deployments": [{"name": "big", "recipe": "two-sparks", "hosts": [HEAD, WORKER]}], "limit": [HEAD, WORKER]}
# Of signatures.yml, by the lines that nvidia-smi would print.
OF_THE_DOCTOR = {"gpu-clocks-capped", "gpu-power-brake"}


def deployed(pair: bool, recipe: str = "everything") -> dict[str, Spec]:
    alone = {"deployments": [{"name": "demo", "recipe": recipe, "hosts": [HEAD]}]}
    return resolved(PAIR if pair else alone, HEAD)


@pytest.fixture
def healthy(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a Spark that tells everything, and of which nothing is found."""
    return merge(facts, copy.deepcopy(FILE["healthy"]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: dict[str, Any], healthy: dict[str, Any]) -> None:
    boxes = {HEAD: merge(copy.deepcopy(healthy), case.get("facts", {}))}
    if "peer" in case:
        boxes[WORKER] = merge(copy.deepcopy(healthy), case["peer"])
    specs = deployed("peer" in case, case.get("recipe", "everything"))
    found = host_warnings.findings(specs, boxes, HEAD)
    said = dict(zip([finding.signature for finding in found], host_warnings.lines(found), strict=True))
    assert len(said) == len(found), "one thing is said once"
    assert said.keys() == case["finds"].keys(), said
    for name, part in case["finds"].items():
        assert part in said[name]
        assert said[name].startswith(f"warning {name}: ")
        runbook = re.search(r" Fix: .+ See docs/runbooks/(\S+\.md)$", said[name])
        assert runbook, said[name]
        assert (paths.RUNBOOKS / runbook[1]).is_file()
        assert "{" not in said[name]


def test_every_finding_has_its_rule_its_case_and_its_runbook() -> None:
    known = {entry.id: entry for entry in host_warnings.load_rules()}
    assert known.keys() == RULES.keys()
    assert known.keys() | OF_THE_DOCTOR == {name for case in CASES.values() for name in case["finds"]}
    for entry in known.values():
        assert entry.source
        assert (paths.RUNBOOKS / entry.runbook).is_file()
        assert f"`{entry.id}`" in (paths.RUNBOOKS / entry.runbook).read_text() or entry.runbook in SHARED


# Runbooks of the engine's logs, which have symptoms of their own.
SHARED = {"gpu-clocks.md", "disk-full.md"}


def test_what_is_between_two_is_said_once(healthy: dict[str, Any]) -> None:
    boxes = {HEAD: healthy, WORKER: merge(copy.deepcopy(healthy), CASES["a pair of unlike Sparks"]["peer"])}
    specs = deployed(pair=True)
    assert len(host_warnings.findings(specs, boxes, HEAD)) == 4
    assert host_warnings.findings(specs, boxes, WORKER) == []


def test_facts_recorded_before_there_were_findings(facts: dict[str, Any]) -> None:
    assert host_warnings.findings(deployed(pair=False), {HEAD: facts}, HEAD) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    below = value.items() if isinstance(value, dict) else ()
    return [path] * bool(path) + [leaf for key, child in below for leaf in leaves(child, (*path, key))]


# What every plan needs, and older than the findings.
NEEDED = {("memory",), ("memory", "total"), ("memory", "available")}


# The module gives all of these or none.
WHOLE = {"disks", "disk", "time", "asked"}
OPTIONAL = [path for path in leaves(FILE["healthy"]) if path not in NEEDED and not WHOLE & set(path[:-1])]


@pytest.mark.parametrize("path", OPTIONAL, ids=str)
@pytest.mark.parametrize("missing", [True, False], ids=["missing", "null"])
def test_nothing_comes_of_what_a_box_does_not_tell(
    path: tuple[Any, ...], missing: bool, healthy: dict[str, Any]
) -> None:
    place = healthy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = None
    if missing:
        del place[path[-1]]
    boxes = {HEAD: healthy, WORKER: copy.deepcopy(healthy)}
    assert host_warnings.findings(deployed(pair=True), boxes, HEAD) == []


def test_a_plan_asks_for_what_the_findings_need() -> None:
    asked = plan.questions(deployed(pair=False)[HEAD])
    assert asked["host"] is True
    assert asked["disks"] == ["/var/lib/vllm-spark/hub", "/var/lib/vllm-spark/cache"]


@pytest.mark.parametrize(("driver", "refused"), [("580.65.06", 0), ("579.99", 1), ("[N/A]", 0), ("", 0)])
def test_a_driver_is_refused_by_its_branch(driver: str, refused: int, facts: dict[str, Any]) -> None:
    facts["gpus"] = [{"name": "NVIDIA GB10", "driver": driver}]
    assert len(list(host_warnings.refusals(deployed(pair=False)[HEAD], facts))) == refused


# The collectors.


@pytest.fixture
def host() -> ModuleType:
    from ansible.module_utils import spark_host  # noqa: PLC0415  conftest says where it is

    return spark_host


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a stand-in for nvidia-smi first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_stand_in_of_the_sandbox_answers(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(STAND_IN), prepend=os.pathsep)
    cards, error = host.gpus()
    assert error == ""
    assert cards == [
        {
            "name": "NVIDIA GB10 (stand-in)",
            "driver": "580.142",
            "power_w": 4.2,
            "load_percent": 0.0,
            "sm_mhz": 208.0,
            "event_reasons": 1,
            "persistence": True,
        }
    ]
    assert host.processes(lambda _: {}) == []


def test_a_driver_that_does_not_know_a_field(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unknown = 'case "$1" in *clocks_event*) echo "Field is not a valid field to query."; exit 2;; esac'
    answering(tmp_path, monkeypatch, f"{unknown}\necho 'NVIDIA GB10, 570.10'")
    cards, error = host.gpus()
    assert (error, cards[0]["driver"], cards[0]["event_reasons"], cards[0]["persistence"]) == ("", "570.10", None, None)


def test_fields_that_a_gpu_has_not(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(tmp_path, monkeypatch, "echo 'NVIDIA GB10, 580.142, [N/A], [N/A], [Not Supported], [N/A], [N/A]'")
    assert set(host.gpus()[0][0].values()) == {"NVIDIA GB10", "580.142", None}


def test_no_nvidia_smi(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.gpus() == ([], "nvidia-smi: not found")
    assert host.processes(lambda _: {}) == []


def test_processes_and_their_owners(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = ["70, /usr/bin/python3, 8192", "71, a, b, [N/A]", "72, gone, 5", "No running processes found", ""]
    answering(tmp_path, monkeypatch, "\n".join(f"echo '{row}'" for row in rows))

    def owner(pid: str) -> dict[str, Any]:
        if pid == "72":
            raise FileNotFoundError
        return {"process": "cut at 15 charac", "container": "comfyui", "unit": None}

    assert host.processes(owner) == [
        {"pid": 70, "process": "python3", "bytes": 8 << 30, "container": "comfyui", "unit": None},
        {"pid": 71, "process": "a, b", "bytes": None, "container": "comfyui", "unit": None},
        {"pid": 72, "process": "gone", "bytes": 5 << 20},
    ]


def test_a_box_that_tells_everything(host: ModuleType, tmp_path: Path) -> None:
    files = {
        "proc/sys/vm/swappiness": "60\n",
        "sys/class/dmi/id/bios_version": "5.36_0ACUM027\n",
        "sys/class/infiniband/rocep1s0f1/fw_ver": "28.45.4028\n",
        "sys/class/infiniband/roceP2p1s0f1/hca_type": "MT4129\n",
        "run/reboot-required": "*** System restart required ***\n",
        "run/reboot-required.pkgs": "linux-base\nlinux-base\nlibc6\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert host.host(str(tmp_path)) == {
        "swappiness": 60,
        "bios": "5.36_0ACUM027",
        "nics": {"rocep1s0f1": "28.45.4028"},
        "reboot": ["libc6", "linux-base"],
    }
    (tmp_path / "run/reboot-required.pkgs").unlink()
    assert host.host(str(tmp_path))["reboot"] == []


def test_a_box_that_tells_nothing(host: ModuleType, tmp_path: Path) -> None:
    assert host.host(str(tmp_path)) == {"swappiness": None, "bios": None, "nics": {}, "reboot": None}


def test_memory_of_a_kernel_with_and_without_all_lines(host: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    old = "MemTotal: 100 kB\nMemAvailable: 90 kB\nSwapTotal: 8 kB\nSwapFree: 7 kB\n"
    (tmp_path / "proc/meminfo").write_text(old)
    needed = {"total": 102400, "available": 92160, "swap_total": 8192, "swap_free": 7168}
    assert host.memory(str(tmp_path)) == needed
    (tmp_path / "proc/meminfo").write_text(
        f"{old}MemFree: 10 kB\nCached: 85 kB\nShmem: 5 kB\nCmaTotal: 1 kB\nCmaFree: 2 kB\n"
    )
    more = {"free": 10240, "page_cache": 81920, "cma_total": 1024, "cma_free": 2048}
    assert host.memory(str(tmp_path)) == needed | more


CONTAINERS = {
    "by --gpus": ({"DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]]}]}, [], True),
    "by CDI": ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, [], True),
    "by the runtime": ({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=all"], True),
    "the runtime is the default, and no GPU is asked for": ({"Runtime": "nvidia"}, ["PATH=/bin"], False),
    "the runtime, and void": ({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=void"], False),
    "none": ({"DeviceRequests": None, "Runtime": "runc"}, None, False),
}


class DockerStandIn:
    """The answers of a Docker engine with one container of each kind."""

    def get(self, path: str, missing_ok: bool = False) -> Any:
        names = list(CONTAINERS)
        if path == "/info":
            return {"DockerRootDir": "/var/lib/docker"}
        if path == "/containers/json":
            return [{"Id": str(place), "Names": [f"/{name}"]} for place, name in enumerate([*names, "ended"])]
        place = int(path.split("/")[2])
        if place == len(names):
            return None if missing_ok else pytest.fail("an ended container is no error")
        config, env, _ = CONTAINERS[names[place]]
        return {"HostConfig": config, "Config": {"Env": env}}


def test_containers_that_were_given_the_gpu(host: ModuleType) -> None:
    found = host.docker_host(DockerStandIn())
    assert found["on_gpu"] == sorted(name for name, (_, _, given) in CONTAINERS.items() if given)
    assert found["root"] == "/var/lib/docker"


def test_the_module_tells_the_host_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever this machine has of it: nothing is missing that a rule reads, and JSON carries it."""
    facts = load_module("spark_facts")
    with patch_module_args({"host": True, "disks": ["/"]}), pytest.raises(SystemExit):
        facts.main()
    told = json.loads(capsys.readouterr().out)["facts"]
    assert told["host"].keys() == {"swappiness", "bios", "nics", "reboot", "processes", "ollama"}
    assert told["time"]["began"] <= told["time"]["ended"]
    assert "running" not in told["docker"]
    found = host_warnings.findings(deployed(pair=False), {HEAD: told}, HEAD)
    assert all(finding.runbook for finding in found)
