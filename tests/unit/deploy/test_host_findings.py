"""The warnings of precheck: every case of tests/data/host_findings.yml, and hosts that do not report a fact.

The collectors run with the sandbox's fake nvidia-smi, with fakes that print other output, and on folders with the
layout of a host's /proc, /sys and /run.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from fakes.cases import asked, merge, resolved
from project_files import DATA, load_module
from vllm_spark.core import paths
from vllm_spark.deploy import checks, host_warnings
from vllm_spark.deploy.check_registry import REGISTRY, Check, Observation, Severity, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import reference_spark

FILE = yaml.load((DATA / "host_findings.yml").read_text(), yaml.CSafeLoader)
CASES = {case["name"]: case for case in FILE["cases"]}
STAND_IN = paths.ROOT / "sandbox" / "spark" / "rootfs" / "usr" / "bin"
HEAD, WORKER = "spark1", "spark2"
PAIR = {"deployments": [{"name": "big", "recipe": "two-sparks", "hosts": [HEAD, WORKER]}], "limit": [HEAD, WORKER]}
# Signatures of signatures.yml that match the lines that nvidia-smi would print.
SIGNATURES = {"gpu-clocks-capped", "gpu-power-brake"}
# Runbooks that engine logs share with these checks; their symptoms name no check.
SHARED_RUNBOOKS = {"gpu-clocks", "disk-full"}


def deployed(pair: bool, recipe: str = "everything") -> dict[str, Spec]:
    alone = {"deployments": [{"name": "demo", "recipe": recipe, "hosts": [HEAD]}]}
    return resolved(PAIR if pair else alone, HEAD)


@pytest.fixture
def healthy(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a Spark that reports everything and has no fault."""
    return merge(facts, copy.deepcopy(FILE["healthy"]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: dict[str, Any], healthy: dict[str, Any]) -> None:
    facts = {HEAD: merge(copy.deepcopy(healthy), case.get("facts", {}))}
    if "peer" in case:
        facts[WORKER] = merge(copy.deepcopy(healthy), case["peer"])
        for name, host_facts in facts.items():
            host_facts["fabric"] = reference_spark.fabric(name)
    specs = deployed("peer" in case, case.get("recipe", "everything"))
    findings = host_warnings.findings(specs, facts, HEAD)
    lines = dict(zip([finding.signature for finding in findings], host_warnings.lines(findings), strict=True))
    assert len(lines) == len(findings), "a fault is reported twice"
    assert lines.keys() == case["finds"].keys(), lines
    for name, part in case["finds"].items():
        assert part in lines[name]
        assert lines[name].startswith(f"warning {name}: ")
        runbook = re.search(r" Fix: .+ See docs/runbooks/(\S+\.md)$", lines[name])
        assert runbook, lines[name]
        assert (paths.RUNBOOKS / runbook[1]).is_file()
        assert "{" not in lines[name]


def test_every_warning_has_a_case_a_source_and_a_runbook() -> None:
    warnings = {warning.id: warning for warning in checks.registered("warning")}
    assert warnings.keys() | SIGNATURES == {name for case in CASES.values() for name in case["finds"]}
    for warning in warnings.values():
        assert warning.source
        runbook = paths.RUNBOOKS / f"{warning.runbook}.md"
        assert f"`{warning.id}`" in runbook.read_text() or warning.runbook in SHARED_RUNBOOKS


# The order in which the operator sees them. A new check may be at any position.
REFUSALS = [
    "wrong-architecture",
    "no-gpu",
    "driver-too-old",
    "no-docker",
    "no-model",
    "model-unreadable",
    "model-outside",
    "wrong-checksum",
    "port-taken",
    "router-key",
    "unknown-deployment",
    "too-little-memory",
]
WARNINGS = [
    "ollama-loaded",
    "gpu-process",
    "gpu-container",
    "page-cache",
    "swap-in-use",
    "kernel-keeps-memory",
    "kernel-6.17.0-1008",
    "driver-590",
    "bios-old",
    "bios-two-speeds",
    "gpu-clocks-set",
    "gpu-hot",
    "persistence-off",
    "disk-nearly-full",
    "clock-off",
    "clocks-apart",
    "driver-differs",
    "kernel-differs",
    "bios-differs",
    "nic-firmware-differs",
    "reboot-pending",
]


@pytest.mark.parametrize(("severity", "expected"), [("refusal", REFUSALS), ("warning", WARNINGS)])
def test_checks_have_a_stable_order(severity: Severity, expected: list[str]) -> None:
    assert [one.id for one in checks.registered(severity) if one.id in expected] == expected


def test_every_file_of_checks_is_imported() -> None:
    files = {file.stem for file in Path(str(checks.__file__)).parent.glob("*.py")} - {"__init__"}
    assert {one.module for one in REGISTRY.values()} == files
    assert files >= set(checks.SUBJECTS)


def test_a_new_check_needs_only_its_function(healthy: dict[str, Any]) -> None:
    @check("new", runbook="swap", severity="warning", needs=("host",), what="{host} is {state}", fix="wait.")
    def new(_: HostContext) -> Iterator[Observation]:
        yield Observation({"state": "new"}, evidence="line")

    try:
        [finding] = host_warnings.findings(deployed(pair=False), {HEAD: healthy}, HEAD)
    finally:
        del REGISTRY["new"]
    assert (finding.signature, finding.cause, finding.line) == ("new", "spark1 is new", "line")


@pytest.mark.parametrize(("id_", "needs"), [("page-cache", ()), ("a-new-check", ("memori",))])
def test_a_check_cannot_be_registered_twice_or_need_an_unknown_fact(id_: str, needs: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"check {id_}"):
        check(id_, runbook="swap", severity="warning", needs=needs)


class RecordingFacts(dict[str, Any]):
    """Facts that record which of them are read."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("one", REGISTRY.values(), ids=lambda one: one.id)
def test_a_check_reads_only_the_facts_that_it_needs(one: Check, healthy: dict[str, Any]) -> None:
    specs = deployed(pair=True)
    for case in CASES.values():
        facts = RecordingFacts(merge(copy.deepcopy(healthy), case.get("facts", {})))
        peer = RecordingFacts(merge(copy.deepcopy(healthy), case.get("peer", {})))
        context = HostContext(HEAD, specs[HEAD], facts, (HostContext(WORKER, specs[WORKER], peer),))
        list(one.observe(context))
        assert facts.read | peer.read <= set(one.needs)


def test_a_difference_is_reported_only_at_the_head(healthy: dict[str, Any]) -> None:
    facts = {HEAD: healthy, WORKER: merge(copy.deepcopy(healthy), CASES["a pair of unlike Sparks"]["peer"])}
    specs = deployed(pair=True)
    assert len(host_warnings.findings(specs, facts, HEAD)) == 4
    assert host_warnings.findings(specs, facts, WORKER) == []


def test_facts_recorded_by_an_older_toolkit_give_no_warning(facts: dict[str, Any]) -> None:
    assert host_warnings.findings(deployed(pair=False), {HEAD: facts}, HEAD) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    below = value.items() if isinstance(value, dict) else ()
    return [path] * bool(path) + [leaf for key, child in below for leaf in leaves(child, (*path, key))]


# What every plan needs.
NEEDED = {("memory",), ("memory", "total"), ("memory", "available")}


# The module returns all of these or none.
WHOLE = {"disks", "disk", "time", "controller_time"}
OPTIONAL = [path for path in leaves(FILE["healthy"]) if path not in NEEDED and not WHOLE & set(path[:-1])]


@pytest.mark.parametrize("path", OPTIONAL, ids=str)
@pytest.mark.parametrize("missing", [True, False], ids=["missing", "null"])
def test_a_missing_fact_gives_no_warning(path: tuple[Any, ...], missing: bool, healthy: dict[str, Any]) -> None:
    parent = healthy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = None
    if missing:
        del parent[path[-1]]
    facts = {HEAD: healthy, WORKER: copy.deepcopy(healthy)}
    assert host_warnings.findings(deployed(pair=True), facts, HEAD) == []


def test_a_plan_requests_what_the_checks_need() -> None:
    requested = asked(deployed(pair=False)[HEAD])
    assert requested["host"] is True
    assert requested["disks"] == ["/var/lib/vllm-spark/hub", "/var/lib/vllm-spark/cache"]


@pytest.mark.parametrize(("driver", "refused"), [("580.65.06", 0), ("579.99", 1), ("[N/A]", 0), ("", 0)])
def test_a_driver_is_refused_by_its_branch(driver: str, refused: int, facts: dict[str, Any]) -> None:
    facts["gpus"] = [{"name": "NVIDIA GB10", "driver": driver}]
    context = HostContext(HEAD, deployed(pair=False)[HEAD], facts)
    assert len(list(REGISTRY["driver-too-old"].refusals(context))) == refused


# The collectors.


@pytest.fixture
def host() -> ModuleType:
    from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host  # noqa: PLC0415

    return spark_host


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a fake nvidia-smi first on PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_sandbox_stand_in_for_nvidia_smi(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_driver_without_a_field(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unknown = 'case "$1" in *clocks_event*) echo "Field is not a valid field to query."; exit 2;; esac'
    answering(tmp_path, monkeypatch, f"{unknown}\necho 'NVIDIA GB10, 570.10'")
    cards, error = host.gpus()
    assert (error, cards[0]["driver"], cards[0]["event_reasons"], cards[0]["persistence"]) == ("", "570.10", None, None)


def test_fields_that_the_gpu_does_not_report(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(tmp_path, monkeypatch, "echo 'NVIDIA GB10, 580.142, [N/A], [N/A], [Not Supported], [N/A], [N/A]'")
    assert set(host.gpus()[0][0].values()) == {"NVIDIA GB10", "580.142", None}


def test_nvidia_smi_is_not_installed(host: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_host_that_reports_everything(host: ModuleType, tmp_path: Path) -> None:
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


# `iptables -S` of an Ubuntu 24.04 with ufw on, after `ufw allow ssh` and `ufw allow in on enp1s0f1np1` (shortened), and
# of a Spark without a firewall, on which Docker runs.
UFW = """-P INPUT DROP
-P FORWARD DROP
-P OUTPUT ACCEPT
-N ufw-before-input
-N ufw-user-input
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
-A ufw-user-input -i enp1s0f1np1 -j ACCEPT
-A ufw-user-input -i enP2p1s0f1np1 -p tcp -m tcp --dport 80 -j ACCEPT
"""
NO_FIREWALL = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n"


@pytest.mark.parametrize(
    ("rules", "policy", "netdevs"), [(UFW, "DROP", ["enp1s0f1np1"]), (NO_FIREWALL, "ACCEPT", []), ("", "", [])]
)
def test_the_rules_of_a_firewall(host: ModuleType, rules: str, policy: str, netdevs: list[str]) -> None:
    assert host.input_rules(rules) == {"policy": policy, "open_netdevs": netdevs}


def test_ufw_is_on_if_its_configuration_says_so(host: ModuleType, tmp_path: Path) -> None:
    assert host.firewall(str(tmp_path))["ufw"] is False
    (tmp_path / "etc/ufw").mkdir(parents=True)
    for setting, on in (("no", False), ("yes", True)):
        (tmp_path / "etc/ufw/ufw.conf").write_text(f"# /etc/ufw/ufw.conf\n\nENABLED={setting}\nLOGLEVEL=low\n")
        assert host.firewall(str(tmp_path))["ufw"] is on


def test_the_folder_of_the_layers(host: ModuleType, tmp_path: Path) -> None:
    # /info of Docker 29.2.1 with the containerd store, and of one with overlay2.
    containerd = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    overlay2 = {"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]]}
    assert host.containerd_root(overlay2, str(tmp_path)) is None
    assert host.containerd_root(containerd, str(tmp_path)) == "/var/lib/containerd"
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").write_text('version = 2\nroot = "/data/containerd"\n')
    assert host.containerd_root(containerd, str(tmp_path)) == "/data/containerd"


def test_a_host_that_reports_nothing(host: ModuleType, tmp_path: Path) -> None:
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
    "the runtime is the default, without a GPU request": ({"Runtime": "nvidia"}, ["PATH=/bin"], False),
    "the runtime, and void": ({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=void"], False),
    "none": ({"DeviceRequests": None, "Runtime": "runc"}, None, False),
}


class DockerStandIn:
    """A Docker engine with one container of each kind."""

    def get(self, path: str, missing_ok: bool = False) -> Any:
        names = list(CONTAINERS)
        if path == "/containers/json":
            return [{"Id": str(place), "Names": [f"/{name}"]} for place, name in enumerate([*names, "ended"])]
        place = int(path.split("/")[2])
        if place == len(names):
            return None if missing_ok else pytest.fail("a container that has ended is not an error")
        config, env, _ = CONTAINERS[names[place]]
        return {"HostConfig": config, "Config": {"Env": env}}


def test_containers_with_access_to_the_gpu(host: ModuleType) -> None:
    docker = host.docker_host(DockerStandIn(), {"DockerRootDir": "/var/lib/docker"})
    assert docker["on_gpu"] == sorted(name for name, (_, _, has_gpu) in CONTAINERS.items() if has_gpu)
    assert docker["root"] == "/var/lib/docker"


def test_the_module_runs_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that no key is missing that a check reads, and that the facts survive JSON, whatever this machine has."""
    facts = load_module("spark_facts")
    with patch_module_args({"host": True, "disks": ["/"]}), pytest.raises(SystemExit):
        facts.main()
    local = json.loads(capsys.readouterr().out)["facts"]
    assert local["host"].keys() == {"swappiness", "bios", "nics", "reboot", "processes", "ollama", "firewall"}
    assert local["time"]["began"] <= local["time"]["ended"]
    assert "running" not in local["docker"]
    findings = host_warnings.findings(deployed(pair=False), {HEAD: local}, HEAD)
    assert all(finding.runbook for finding in findings)
