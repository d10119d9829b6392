"""Holdings of a host, read from a tree of files and from launches that the plan writes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project_files import load_module
from vllm_spark.deploy import exclusion, launch
from vllm_spark.inventory import spec as inventory_spec
from vllm_spark.recipe import hub_cache

load_module("vllm_holdings")
LAUNCHES = sys.modules["ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches"]
HOLDINGS = sys.modules["ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_holdings"]
CommandResult = sys.modules["ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io"].CommandResult
Resolve = Callable[..., inventory_spec.Spec]


def test_the_needs_of_a_launch(resolve: Resolve) -> None:
    result = resolve()
    needs = LAUNCHES.needs(launch.script(result))
    sources = [result.recipe["model"], *([result.recipe["drafter"]] if "drafter" in result.recipe else [])]
    assert sorted(needs["snapshots"]) == sorted(hub_cache.snapshot(result.site.hub_dir, source) for source in sources)
    assert needs["models"] == sorted(
        {f"{result.site.hub_dir}/{hub_cache.hub_folder(s['repository'])}" for s in sources}
    )
    assert needs["files"] == sorted(inventory_spec.mount_source(result, mount) for mount in result.recipe["mounts"])
    assert needs["cache"] == f"{result.site.cache_dir}/demo"
    assert (needs["pair"], needs["peers"]) == (False, [])


@pytest.mark.parametrize("name", ["argv-pair-ray-head", "argv-pair-mp-worker"])
def test_a_pairs_launch_names_its_peer(name: str) -> None:
    argv = json.loads((Path(__file__).parents[2] / "cases" / f"{name}.json").read_text())["expect"]["argv"]
    needs = LAUNCHES.needs("#!/bin/sh\n# why\nexec " + " \\\n  ".join(map(shlex.quote, argv)))
    assert needs["pair"]
    assert needs["peers"] in (["spark1"], ["spark2"])
    assert len(needs["snapshots"]) == 1


@pytest.mark.parametrize("text", ["", "#!/bin/sh\n", "#!/bin/sh\nexec docker 'run"])
def test_a_file_that_is_not_a_launch_is_not_runnable(text: str) -> None:
    assert LAUNCHES.argv_of(text) == []
    assert LAUNCHES.needs(text)["snapshots"] == []


def test_files_that_an_engine_cannot_read(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "c"
    assert LAUNCHES.path_fault(str(snapshot)).endswith("does not exist")
    snapshot.mkdir(parents=True)
    assert LAUNCHES.path_fault(str(snapshot)).endswith("is empty")
    (tmp_path / "blob").touch()
    (snapshot / "config.json").symlink_to(tmp_path / "blob")
    assert LAUNCHES.path_fault(str(snapshot)) == ""
    for number in range(5):
        (snapshot / f"model-{number}.safetensors").symlink_to(tmp_path / "gone")
    assert (
        "model-0.safetensors, model-1.safetensors, model-2.safetensors and 2 more lead nowhere"
        in LAUNCHES.path_fault(str(snapshot))
    )
    assert LAUNCHES.path_fault(str(tmp_path / "blob")) == ""


@pytest.fixture
def root(tmp_path: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one deployment, a unit of another owner, and neither Docker nor systemd."""
    texts = {
        "etc/vllm-spark/demo/launch": launch.script(resolve()),
        "etc/vllm-spark/demo/deployed.json": '{"launch": "x"}',
        "etc/vllm-spark/demo/gates.json": '{"rank": 0}',
        "etc/vllm-spark/demo/mounts/abc-file": "x",
        "etc/vllm-spark/demo/failed/launch": "no launch at all",
        "etc/systemd/system/vllm@.service": launch.unit_file(),
        "etc/systemd/system/vllm@demo.service.d/exclude.conf": "# Written by vllm-spark. Why.\n",
        "etc/systemd/system/vllm@demo.service.d/override.conf": "[Service]\nNice=5\n",
        "etc/systemd/system/vllm-of-mine.service": "[Service]\n",
        "usr/local/lib/vllm-spark/supervise": "x",
        "usr/local/bin/vllm-switch": exclusion.switch_program(),
        "usr/local/bin/vllm-mine": "#!/bin/sh\n",
        "var/lib/vllm-spark/history/demo.jsonl": '{"image": "a:1", "digest": "d", "who": "me"}\n{"cut',
        "var/lib/vllm-spark/pulled": "b@sha256:2\na@sha256:1\n\n",
        "var/lib/vllm-spark/hub/models--a--b/blobs/1": "weights",
        "var/lib/vllm-spark/hub/.locks/x": "",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "vllm@demo.service").symlink_to("/etc/systemd/system/vllm@.service")
    results = {
        "systemctl": CommandResult(0, "vllm@demo.service loaded active running vLLM\n"),
    }
    monkeypatch.setattr(HOLDINGS, "run", lambda *argv: results.get(argv[0], CommandResult(0)))
    return tmp_path


def test_holdings_of_a_host(root: Path) -> None:
    held = HOLDINGS.holdings(str(root))
    demo = held["deployments"]["demo"]
    assert sorted(demo["launches"]) == ["current", "failed"]
    current, failed = demo["launches"]["current"], demo["launches"]["failed"]
    assert (current["record"], current["runnable"], current["gates"]) == ({"launch": "x"}, True, True)
    assert "does not exist" in current["path_faults"][0]
    assert (failed["record"], failed["runnable"], failed["gates"]) == ({}, False, False)
    assert held["history"] == {"demo": [{"image": "a:1", "digest": "d"}]}
    assert held["pulled"] == ["a@sha256:1", "b@sha256:2"]
    assert held["units"] == {"vllm@demo.service": "active"}


def test_our_objects_are_marked(root: Path) -> None:
    held = HOLDINGS.holdings(str(root))
    units = root / "etc/systemd/system"
    assert held["unit_files"] == [
        str(units / "multi-user.target.wants/vllm@demo.service"),
        str(units / "vllm@.service"),
        str(units / "vllm@demo.service.d/exclude.conf"),
    ]
    assert held["unit_files_of_others"] == [
        str(units / "vllm-of-mine.service"),
        str(units / "vllm@demo.service.d/override.conf"),
    ]
    assert held["programs"] == [str(root / "usr/local/lib/vllm-spark"), str(root / "usr/local/bin/vllm-switch")]
    assert [Path(entry["path"]).name for entry in held["models"]] == ["models--a--b"]


def test_sizes_are_disk_usage_without_repeated_hard_links(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    alone = HOLDINGS.size(str(tmp_path))
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert 100_000 <= alone == HOLDINGS.size(str(tmp_path))


def test_shared_layers_of_an_image_are_counted_once() -> None:
    inspected = {"Id": "i", "RepoTags": ["<none>:<none>"], "RepoDigests": ["a@d"], "Labels": {"x": "1"}, "Size": 10}
    assert HOLDINGS.image({**inspected, "SharedSize": 4}, None)["own"] == 6
    assert HOLDINGS.image(inspected, None) == {
        "id": "i",
        "identity": "",
        "tags": [],
        "digests": ["a@d"],
        "labels": {},
        "bytes": 10,
        "own": 10,
    }


def test_a_docker_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def get(self, path: str) -> Any:
            raise HOLDINGS.DockerError(f"{path}: gone")

    monkeypatch.setattr(HOLDINGS, "Docker", Gone)
    assert HOLDINGS.docker_holdings()["error"] == "/images/json?shared-size=1: gone"


def test_docker_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = {"vllm-demo": {"vllm-spark.deployment": "demo"}, "vllm-x": None, "vllm-spark-r": {}}
    message = {
        "/images/json?shared-size=1": [],
        "/containers/json?all=1": [
            {"Id": "1", "Names": [f"/{name}"], "ImageID": "i", "Image": "a", "State": "running", "Labels": labels}
            for name, labels in labelled.items()
        ],
    }

    class Engine:
        def get(self, path: str) -> Any:
            return message[path]

    monkeypatch.setattr(HOLDINGS, "Docker", Engine)
    result = HOLDINGS.docker_holdings()
    assert {entry["name"]: entry["ours"] for entry in result["containers"]} == {
        "vllm-demo": True,
        "vllm-x": False,
        "vllm-spark-r": True,
    }
