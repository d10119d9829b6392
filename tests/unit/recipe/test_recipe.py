"""Recipes: a refusal reports every fault at once, each with file, path, value and expectation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader

GOOD = yaml.load((DATA / "recipes" / "everything.yml").read_text(), yaml.CSafeLoader)


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets a key of a recipe, e.g. `memory.utilization`, or deletes it if the value is None."""

    def change(document: dict[str, Any]) -> None:
        *folders, key = place.split(".")
        for folder in folders:
            document = document.setdefault(folder, {})
        if value is None:
            del document[key]
        else:
            document[key] = value

    return change


# name -> (change of a good recipe, a part of the only message)
FAULTS = {
    "unknown key": (
        put("imagee", {}),
        "(top level): unknown key imagee — expected: only architectures, args, corrections",
    ),
    "wrong type": (put("args.max-model-len", None), ""),
    "digest short": (
        put("image.digest", "sha256:1234"),
        'image.digest: "sha256:1234" — expected: sha256: and 64 hex digits',
    ),
    "digest without algorithm": (put("image.digest", "1" * 64), "expected: sha256: and 64 hex digits"),
    "revision main": (
        put("model.revision", "main"),
        'model.revision: "main" — expected: a commit of 40 hex digits, not a branch or a tag',
    ),
    "privileged": (
        put("runtime.privileged", True),
        "runtime: unknown key privileged — expected: only capabilities, devices, seccomp, shm_size, ulimits "
        "(How the container runs. There is no privileged mode: name the devices and capabilities.)",
    ),
    "capability": (put("runtime.capabilities", ["SYS_ADMIN"]), "expected: one of IPC_LOCK, SYS_NICE, SYS_PTRACE"),
    "env number": (put("env.OMP_NUM_THREADS", 4), "env.OMP_NUM_THREADS: 4 — expected: a quoted string"),
    "env yaml bool": (put("env.FLAG", True), "env.FLAG: true — expected: a quoted string"),
    "secret in env": (put("env.VLLM_API_KEY", "k"), "env.VLLM_API_KEY: a secret — expected: in vllm_secrets"),
    "secret by another name": (put("env.DB_PASS", "k"), "env.DB_PASS: a secret — expected: in vllm_secrets"),
    "login in env": (put("env.HTTPS_PROXY", "http://me:k@proxy"), "env.HTTPS_PROXY: a value with a secret in it"),
    "secret in a map": (
        put("args.kv-transfer-config", {"kv_connector_extra_config": {"api_key": "k"}}),
        "args.kv-transfer-config.kv_connector_extra_config.api_key: a secret",
    ),
    "secret in JSON": (
        put("args.additional-config", '{"db_password": "k"}'),
        "args.additional-config.db_password: a secret",
    ),
    "login in args": (
        put("args.allowed-media-domains", ["https://me:k@host"]),
        "args.allowed-media-domains: a secret",
    ),
    "planned flag": (
        put("args.tensor-parallel-size", 1),
        "args.tensor-parallel-size: set — expected: to come from topology.tensor_parallel",
    ),
    "flag with dashes": (put("args.--port", 1), "expected"),
    "missing model": (put("model", None), "(top level): missing key model — expected: schema_version, name"),
    "no memory": (
        put("memory", {"free_floor_bytes": 1}),
        "memory: neither utilization nor kv_cache_bytes — expected: one of them",
    ),
    "utilization": (
        put("memory.utilization", 1.2),
        "memory.utilization: 1.2 — expected: at most 0.95",
    ),
    "tp without nodes": (
        put("topology.tensor_parallel", 2),
        "topology.tensor_parallel: 2 — expected: 1, because a Spark has one GPU",
    ),
    "ray on one": (put("topology.executor", "ray"), "topology.executor: ray — expected: uni or mp"),
    "mount outside": (
        put("mounts", [{**GOOD["mounts"][1], "path": "../secret"}]),
        'mounts[0].path: "../secret" — expected: a relative path without ..',
    ),
    "mount changed": (
        put("mounts", [{**GOOD["mounts"][1], "sha256": "0" * 64}]),
        f"mounts: files/template.jinja has sha256 {GOOD['mounts'][1]['sha256']} — expected: {'0' * 64}",
    ),
    "mount absent": (
        put("mounts", [{**GOOD["mounts"][1], "path": "files/none"}]),
        "mounts: files/none is not a file beside the recipe",
    ),
    "mount twice": (
        put("mounts", [GOOD["mounts"][1], {**GOOD["mounts"][1], "target": "/templates//chat.jinja"}]),
        "mounts[1].target: /templates/chat.jinja — expected: a target that no other mount has",
    ),
    "mount over a model": (
        put("mounts", [{**GOOD["mounts"][1], "target": "/hub/models--o--n"}]),
        "mounts[0].target: /hub/models--o--n — expected: one outside of /api, /cache, /hub, /tmp",
    ),
    "gate pattern": (
        put("gates.log", [{"id": "x", "pattern": "(unclosed", "why": "because it is a test"}]),
        "gates.log[0].pattern: (unclosed — expected: a regular expression",
    ),
    "gate twice": (
        put("gates.log", [{"id": "x", "pattern": "abcd", "why": "because it is a test"}] * 2),
        "gates.log[1].id: x twice",
    ),
    "gate without value": (
        put("gates.log", [{"id": "x", "pattern": "abcd", "equals": "a", "why": "because it is a test"}]),
        "no group named value",
    ),
    "name": (put("name", "other"), "name: other — expected: broken, the file's stem"),
}
FAULTS["wrong type"] = (put("args", ["--port"]), 'args: ["--port"] — expected: a map')


def write(folder: Path, document: Any) -> Path:
    """Write broken.yml with the files that its mounts name, and return its path."""
    (folder / "files").mkdir()
    (folder / "files" / "template.jinja").write_text((DATA / "recipes" / "files" / "template.jinja").read_text())
    file = folder / "broken.yml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return file


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_causes_one_refusal(name: str, tmp_path: Path) -> None:
    change, expected = FAULTS[name]
    document = copy.deepcopy(GOOD) | {"name": "broken"}
    change(document)
    with pytest.raises(RefusedError) as refused:
        loader.read(write(tmp_path, document))
    message = str(refused.value)
    assert "broken.yml: " in message
    assert expected in message
    assert " Fix: " in message
    assert len(refused.value.refusals) == 1, message


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD) | {"name": "Broken Name", "schema_version": 2}
    document["model"]["revision"] = "main"
    document["env"]["N"] = 1
    with pytest.raises(RefusedError) as refused:
        loader.read(write(tmp_path, document))
    messages = [str(refusal) for refusal in refused.value.refusals]
    assert [line.split(": ")[1] for line in messages] == ["env.N", "model.revision", "name", "schema_version"]


@pytest.mark.parametrize(
    "text", ["a: [unclosed", "just text", "- a list", ""], ids=["syntax", "scalar", "list", "empty"]
)
def test_a_file_that_is_not_a_recipe_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"broken\.yml"):
        loader.read(write(tmp_path, text))


@pytest.mark.parametrize(
    "file", loader.names([paths.RECIPES, paths.ROOT / "sandbox" / "recipes"]).values(), ids=lambda f: f.stem
)
def test_every_recipe_of_the_repository_loads(file: Path) -> None:
    assert loader.read(file).name == file.stem


def test_a_comment_does_not_change_the_hash(tmp_path: Path) -> None:
    source = (DATA / "recipes" / "everything.yml").read_text()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = loader.read(write(tmp_path / "a", source.replace("name: everything", "name: broken")))
    second = loader.read(write(tmp_path / "b", source.replace("name: everything", "name: broken  # a comment")))
    assert first.sha256 == second.sha256


def test_templates_in_a_recipe_are_not_rendered(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD) | {"name": "broken"}
    document["env"]["TEXT"] = "{{ vllm_secrets }}"
    assert loader.read(write(tmp_path, document)).document["env"]["TEXT"] == "{{ vllm_secrets }}"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("gemma-4-31b-fb8", "name 'gemma-4-31b-fp8'."),
        ("gemma-4-31b-aqw-mtp", "name 'gemma-4-31b-awq-mtp'."),
        ("gemma-4-31b-fp8-", "name 'gemma-4-31b-fp8-tp2'."),
    ],
)
def test_a_misspelt_name_has_its_suggestion(name: str, fix: str) -> None:
    with pytest.raises(RefusedError) as refused:
        loader.load(name)
    assert refused.value.refusals[0].fix == fix


def test_the_beginning_of_a_name_suggests_all_names_that_begin_with_it() -> None:
    with pytest.raises(RefusedError) as refused:
        loader.load("gemma-4-26")
    fix = refused.value.refusals[0].fix
    assert fix.startswith("name one of 'gemma-4-26b-a4b-")
    assert "31b" not in fix


def test_a_misspelt_beginning_of_a_name_suggests_them_too() -> None:
    with pytest.raises(RefusedError) as refused:
        loader.load("gema-4")
    fix = refused.value.refusals[0].fix
    assert fix.count("gemma-4-") == fix.count("'") / 2 > 1
