"""The launch of every recipe of the catalogue contains everything that the recipe names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import Secrets, in_argv

from fakes.catalogue import NAMES, planned
from fakes.invented_pins import PINS
from fakes.parsed_launch import Launch
from project_files import DATA
from vllm_spark.core.types import Document
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import image_name, loader, roles, rules

DERIVED_IMAGE = re.compile(r"127.0.0.1:25093/derived/(?P<recipe>[^:]+):[0-9a-f]{12}")


def snapshot(source: Document) -> str:
    """Return the folder of a model in the container. A revision that the recipe does not pin is the lock's."""
    folder = f"models--{source['repository'].replace('/', '--')}"
    return f"/hub/{folder}/snapshots/{source.get('revision', PINS['model'])}"


def missing_flags(document: Document, flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the entries of the recipe's `args` whose flag is absent or has another value."""
    missing = []
    for flag, value in document["args"].items():
        match value:
            case True | False:
                present = flags.get(flag if value else f"no-{flag}") == []
            case Mapping():
                present = json.loads(flags.get(flag, ["null"])[0]) == value
            case list():
                present = flags.get(flag) == [str(item) for item in value]
            case _:
                present = flags.get(flag) == [str(value)]
        if not present:
            missing.append(flag)
    return missing


@pytest.fixture(scope="module")
def specs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Spec]]:
    """Return the specs of a recipe, planned once for a healthy host."""
    facts = json.loads((DATA / "facts" / "spark.json").read_text())
    return cache(lambda name: planned(name, facts, tmp_path_factory.mktemp("recipe")))


@pytest.mark.parametrize("name", NAMES)
def test_the_launch_contains_what_the_recipe_names(name: str, specs_of: Callable[[str], list[Spec]]) -> None:
    document = loader.load(name).document
    specs = specs_of(name)
    assert Launch.of(specs[0]).serve, "the head runs no engine"
    for spec in specs:
        launched = Launch.of(spec)
        check_image(document, spec, launched.image)
        check_container(document, spec, launched)
        if launched.serve:
            check_engine(document, launched)


def check_image(document: Document, spec: Spec, image: str) -> None:
    """Check the image: the recipe's digest, or an image that is built from it with the recipe's additions."""
    digest = document["image"].get("digest", PINS["image"])
    base = f"127.0.0.1:25093/{image_name.local_repository(document['image']['repository'])}@{digest}"
    derive, patches = document["image"].get("derive", {}), document.get("patches", [])
    if not derive and not patches:
        assert image == base
        return
    match = DERIVED_IMAGE.fullmatch(image)
    assert match is not None
    assert match["recipe"] == document["name"]
    derived = spec.derived
    assert derived is not None
    assert f"FROM {base}\n" in derived.files["Dockerfile"]
    assert derived.files.get("pins.txt", "").splitlines() == derive.get("pip", [])
    assert derived.files.get("wheels.txt", "").splitlines() == derive.get("wheels", [])
    assert {key: derive.get("overlay", {}).get(key) for key in derived.overlay} == derived.overlay
    assert bool(derived.overlay) == ("overlay" in derive)
    assert list(derived.added.values()) == derive.get("files", [])
    in_context = [path for path in derived.files if path.startswith("patches/")]
    assert [path.partition("-")[2] for path in in_context] == [Path(patch["path"]).name for patch in patches]


def check_container(document: Document, spec: Spec, launched: Launch) -> None:
    """Check the options of `docker run`: env, mounts and runtime."""
    env = document.get("env", {})
    assert {variable: launched.env.get(variable) for variable in env} == env
    mounts = launched.values("--mount")
    targets = [re.search(r",target=([^,]+)", mount)[1] for mount in mounts]  # type: ignore[index]
    assert targets == sorted(set(targets))
    for source in (document["model"], *([document["drafter"]] if "drafter" in document else [])):
        folder = f"models--{source['repository'].replace('/', '--')}"
        assert f"type=bind,source={spec.site.hub_dir}/{folder},target=/hub/{folder},readonly" in mounts
    for mount in document.get("mounts", []):
        (bind_mount,) = [text for text in mounts if text.endswith(f",target={mount['target']},readonly")]
        assert Path(mount["path"]).name in bind_mount
    runtime = document.get("runtime", {})
    assert set(runtime.get("devices", [])) <= set(launched.values("--device"))
    assert set(runtime.get("capabilities", [])) <= set(launched.values("--cap-add"))
    limits = [f"{limit}={value}" for limit, value in runtime.get("ulimits", {}).items()]
    assert set(limits) <= set(launched.values("--ulimit"))
    if "shm_size" in runtime:
        assert launched.values("--shm-size") == [runtime["shm_size"]]


def check_engine(document: Document, launched: Launch) -> None:
    """Check the arguments of `vllm serve`: the model, the recipe's args and what its other blocks decide."""
    flags = launched.flags
    assert launched.serve[0] == snapshot(document["model"])
    assert missing_flags(document, flags) == []
    own = {*document["args"], *(f"no-{flag}" for flag in document["args"]), *roles.flags(document)}
    assert flags.keys() - own <= rules.PLANNED_FLAGS.keys(), "a flag that neither the recipe nor the plan sets"
    assert flags["served-model-name"] == [document["model"]["served_name"]]
    assert flags["tensor-parallel-size"] == [str(document["topology"]["tensor_parallel"])]
    for flag, key in (("gpu-memory-utilization", "utilization"), ("kv-cache-memory-bytes", "kv_cache_bytes")):
        assert flags.get(flag) == ([str(document["memory"][key])] if key in document["memory"] else None)
    assert ("speculative-config" in flags) == ("drafter" in document)
    if "drafter" in document:
        drafter = document["drafter"]
        expected = {"num_speculative_tokens": drafter["speculative_tokens"], "model": snapshot(drafter)}
        assert json.loads(flags["speculative-config"][0]) == expected | drafter.get("config", {})
    if document["topology"]["nodes"] > 1:
        assert flags["distributed-executor-backend"] == [document["topology"]["executor"]]


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_launch_is_masked_as_a_secret(name: str, specs_of: Callable[[str], list[Spec]]) -> None:
    """A masked word would show as a difference between the planned launch and the one on the host."""
    for spec in specs_of(name):
        words, secrets = launch.argv(spec), Secrets()
        secrets.add(in_argv(words))
        script = " ".join(words)
        secrets.learn(script)
        assert secrets.masker()(script) == script
