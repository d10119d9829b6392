"""inventories/sample documents every variable: it has each variable that a role reads, and it is valid.

inventories/minimal is the inventory that the documentation copies. Both are planned as an owner would plan them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.core import paths
from vllm_spark.deploy import plan
from vllm_spark.inventory import spec
from vllm_spark.inventory.deployment import SCHEMA, parse
from vllm_spark.preflight import checks
from vllm_spark.recipe import loader, lockfile

SAMPLE = paths.ROOT / "inventories" / "sample" / "group_vars" / "all" / "vllm.yml"
MINIMAL = paths.ROOT / "inventories" / "minimal" / "hosts.yml"
README = paths.ROOT / "README.md"


def variables(name: str) -> dict[str, Any]:
    """Return the vllm_* variables of an inventory."""
    if name == "sample":
        return dict(yaml.safe_load(SAMPLE.read_text()))
    return dict(yaml.safe_load(MINIMAL.read_text())["sparks"]["vars"])


def test_it_has_every_variable_that_a_role_reads() -> None:
    defaults = (paths.ROOT / "roles").glob("*/defaults/main.yml")
    read = {name for file in defaults for name in re.findall(r"\b(vllm_\w+) \| default\(", file.read_text())}
    assert read
    assert read == set(variables("sample"))


def test_its_deployments_are_valid_and_have_every_key() -> None:
    sample = variables("sample")
    deployments = parse(sample["vllm_deployments"])
    assert {deployment.recipe for deployment in deployments} <= set(loader.names([paths.RECIPES]))
    known = set(yaml.safe_load(SCHEMA.read_text())["items"]["properties"])
    assert known == {key for entry in sample["vllm_deployments"] for key in entry}


@pytest.mark.parametrize("name", ["minimal", "sample"])
def test_a_copy_is_planned_without_a_lock_file_and_without_secrets(name: str, facts: dict[str, Any]) -> None:
    found = variables(name)
    assert found.get("vllm_secrets", {}) == {}
    inventory = spec.Inventory(
        deployments=found["vllm_deployments"],
        sparks=("spark1", "spark2"),
        limit=("spark1",),
        recipe_folders=(paths.RECIPES,),
        lock_file=None,
        secrets={},
    )
    resolved = spec.resolve(inventory, "spark1")
    assert resolved is not None
    facts["paths"] = dict.fromkeys(checks.model_folders(resolved), True)
    planned, lines = plan.of_host({"spark1": resolved}, {"spark1": facts}, "spark1", "test")
    assert planned.unit == "vllm@gemma.service"
    assert lines


def test_nothing_active_of_the_sample_names_a_site() -> None:
    sample = variables("sample")
    assert {name: sample[name] for name in ("vllm_hub_environment", "vllm_registries", "vllm_roofline")} == {
        "vllm_hub_environment": {},
        "vllm_registries": {},
        "vllm_roofline": {},
    }
    active = [entry for entry in sample["vllm_deployments"] if entry.get("active", True)]
    assert [entry["name"] for entry in active] == ["gemma"]
    assert {"overrides", "through"} & active[0].keys() == set()


def test_the_minimal_inventory_is_short_and_runs_a_recipe_of_the_readme() -> None:
    text = MINIMAL.read_text()
    assert len(text.splitlines()) <= 16
    (active,) = variables("minimal")["vllm_deployments"]
    table = README.read_text().partition("| you have | best for |")[2]
    assert active["recipe"] in re.findall(r"one Spark \| [^|]+ \| `([\w.-]+)`", table)
    commented = re.search(r"# - (\{name: big.*\})", text)
    assert commented is not None
    (pair,) = parse([yaml.safe_load(commented[1])])
    assert f"`{pair.recipe}`" in table
    assert loader.load(pair.recipe).document["topology"]["nodes"] == len(pair.hosts)


@pytest.mark.parametrize("page", ["README.md", "docs/operations/first-deployment.md"])
def test_the_first_pages_copy_the_minimal_inventory_and_pull_before_the_check(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    assert "cp -r inventories/minimal inventories/site" in text
    text = text[text.index("cp -r inventories/minimal") :]
    places = [text.index(f"{verb}.yml") for verb in ("lock", "pull", "precheck", "deploy")]
    assert places == sorted(places)


PAGES = (
    "README.md",
    *(f"docs/operations/{name}.md" for name in ("first-deployment", "two-sparks", "two-sparks-network")),
)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_first_pages_asks_for_the_password_of_sudo(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    text = text[text.index("## Two real Sparks") :] if page == "README.md" else text
    commands = re.findall(r"ansible-playbook (\w+\.yml[^`#\n]*)", text)
    assert commands
    assert [command for command in commands if " -K" not in command and not command.startswith("lock.yml")] == []


def test_the_searched_folders_of_an_unknown_recipe_are_named(tmp_path: Path) -> None:
    folders = (tmp_path / "recipes", paths.RECIPES)
    with pytest.raises(Exception, match=f"searched: {tmp_path}/recipes, {paths.RECIPES}"):
        loader.load("gemma", folders)
    with pytest.raises(Exception, match="Fix: name the folder in vllm_recipe_folders"):
        loader.load("gemma", folders[:1])


def test_the_readme_names_the_verbs_that_need_no_password_of_sudo() -> None:
    playbooks = (paths.ROOT / "playbooks").glob("*.yml")
    without = sorted(file.stem for file in playbooks if "\n  become: true\n" not in file.read_text())
    assert f"Every verb but {' and '.join(f'`{name}`' for name in without)} needs it." in README.read_text()


def test_its_keys_of_the_lock_file_are_those_that_recipes_need() -> None:
    comment = SAMPLE.read_text().partition("\nvllm_lock_file:")[0].rpartition("\n\n")[2]
    shown = [set(yaml.safe_load(line)["models"]) for line in re.findall(r"^#   (models: .*)$", comment, re.M)]
    commit = {"repository": "OWNER/NAME", "revision": "COMMIT"}
    mount = {"from": "model", "path": "PATH"}
    image = {"image": {"digest": "sha256"}}
    refs = [*lockfile.unpinned_refs({**image, "model": {"repository": "OWNER/NAME"}})]
    refs += lockfile.unpinned_refs({**image, "model": commit, "mounts": [mount]})
    assert [{ref.key} for ref in refs] == shown
