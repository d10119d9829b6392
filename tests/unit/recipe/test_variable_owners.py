"""Owners of environment variables: one table, which the launch, check, plan, import and the doctor agree with."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.cases import CASES, hosts_of, resolved
from fakes.recorded_hosts import load, record
from project_files import DATA
from vllm_spark.cli import main
from vllm_spark.core import documents, paths, schema
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch, ranks
from vllm_spark.inventory import fabric
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import variable_owners
from vllm_spark.recipe.variable_owners import VariableOwner

NAMES = [name for entry in variable_owners.entries() for name in entry.names]
REFUSED = [name for name in NAMES if "*" not in name and variable_owners.of(name).owner in ("toolkit", "image")]
LAUNCHES = [case for case in CASES if case.name.startswith("argv-")]


def test_the_file_has_each_name_once_and_fits_its_schema() -> None:
    document = documents.read_yaml(variable_owners.FILE)
    assert list(schema.faults(document, paths.RECIPES / "variables.schema.json")) == []
    assert [name for name, times in Counter(NAMES).items() if times > 1] == []


def set_by_launches(facts: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield the variables that no recipe sets, of every rank of every recorded launch: open and closed, one Spark, a
    pair over mp and over Ray."""
    for file in LAUNCHES:
        case = json.loads(file.read_text())
        specs = resolved(case, "spark1")
        for spec in ranks.join(specs, hosts_of(case, specs, facts, folder / file.stem)).values():
            yield from launch.environment(spec).keys() - spec.recipe.get("env", {}).keys()


def test_each_variable_of_a_launch_has_its_own_entry(facts: dict[str, Any], tmp_path: Path) -> None:
    """A new variable of the launch or of the fabric needs an owner, because the recipe's value would replace it."""
    of_launches = set(set_by_launches(facts, tmp_path))
    assert {"VLLM_HOST_IP", "RAY_ADDRESS", "VLLM_PORT", "HOME"} <= of_launches
    assert of_launches - set(NAMES) == set()


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_what_differs_between_the_ranks_is_the_toolkit_s(executor: str, tmp_path: Path) -> None:
    facts = {
        host: record(tmp_path / host, load(DATA / "fabric" / "different-ports", host)) for host in ("spark1", "spark2")
    }
    own, other = (fabric.environment(choice, executor) for choice in fabric.choose(facts).values())
    differing = {name for name in own if own[name] != other[name]}
    assert len(differing) >= 6
    assert {name for name in differing if variable_owners.of(name).owner != "toolkit"} == set()


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("VLLM_BUILD_ANYTHING", "image"),
        ("VLLM_USE_V2_MODEL_RUNNER", "engine"),
        ("VLLM_CACHE_ROOT", "user"),
        ("TILELANG_CACHE_DIR", "user"),
        ("MAX_TOKENS", "user"),
    ],
)
def test_the_owner_of_a_variable(name: str, owner: str) -> None:
    assert variable_owners.of(name).owner == owner
    assert variable_owners.fault(name) is None or owner == "image"


def test_an_unlisted_variable_is_the_user_s() -> None:
    assert variable_owners.of("TOKENIZERS_PARALLELISM") == VariableOwner("user", "", "")


# The readers


def with_env(folder: Path, env: Mapping[str, str], name: str = "everything") -> str:
    recipe = yaml.load((DATA / "recipes" / f"{name}.yml").read_text(), yaml.CSafeLoader)
    file = folder / f"{name}.yml"
    file.write_text(yaml.safe_dump({**recipe, "env": env, "mounts": []}))
    return str(file)


@pytest.mark.parametrize("command", ["check", "render", "plan"])
def test_a_recipe_may_not_set_what_is_not_its_own(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = with_env(tmp_path, dict.fromkeys(REFUSED, "1"), "two-sparks")
    assert main.main([command, file]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "the toolkit's" in line or "the image's" in line]
    for name, line in zip(sorted(REFUSED), errors, strict=True):
        assert f"env.{name}: set, which is the {variable_owners.of(name).owner}'s — expected: no such line" in line
        assert variable_owners.of(name).why in line
        assert " Fix: " in line


def test_a_recipe_may_set_what_is_the_user_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "NCCL_DEBUG": "INFO", "TILELANG_CACHE_DIR": "/cache/t"}
    assert main.main(["check", with_env(tmp_path, env)]) == 0
    assert capsys.readouterr().err == ""


def test_the_overrides_of_a_deployment_may_not_set_it_either(resolve: Callable[..., Spec]) -> None:
    with pytest.raises(RefusedError) as refused:
        resolve(overrides={"env": {"NCCL_IB_HCA": "mlx5_0"}})
    assert "deployment demo: overrides.env.NCCL_IB_HCA: set, which is the toolkit's" in str(refused.value)
    assert "NCCL_IB_HCA" not in resolve(overrides={"env": {"NCCL_IB_HCA": None}}).recipe["env"]


TOLD_TO_SET = re.compile(r"\bset `?(?:overrides\.)?env\.(\w+)")


@pytest.mark.parametrize("folder", ["docs", "src", "recipes"])
def test_no_advice_tells_to_set_what_is_refused(folder: str) -> None:
    files = [file for end in ("md", "py", "yml") for file in (paths.ROOT / folder).rglob(f"*.{end}")]
    told = {name for file in files for name in TOLD_TO_SET.findall(file.read_text(encoding="utf-8"))}
    assert told
    assert {name for name in told if variable_owners.fault(name)} == set()
