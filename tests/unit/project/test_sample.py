"""inventories/sample documents every variable: it has each variable that a role reads, and it is valid.

inventories/minimal is the inventory that the documentation copies. Both are planned as an owner would plan them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.cases import intents
from vllm_spark.core import paths, removed
from vllm_spark.deploy import checks, plan
from vllm_spark.edge import config
from vllm_spark.inventory import edge, spec
from vllm_spark.inventory.deployment import SCHEMA, Deployment, parse
from vllm_spark.recipe import loader, lockfile
from vllm_spark.verify import registry

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


def section(variable: str) -> str:
    """Return the lines of a variable in the sample, with its comments."""
    (text,) = re.findall(rf"^{variable}:.*\n(?:(?:[ #]| *$).*\n)*?(?=\n)", SAMPLE.read_text(), re.MULTILINE)
    return str(text)


def keys_of_schema(schema: dict[str, Any]) -> set[str]:
    """Return every key that a schema has by name, with those above it: limits.streams."""
    found = schema.get("properties", {})
    return set(found) | {f"{name}.{key}" for name, below in found.items() for key in keys_of_schema(below)}


def keys_of_value(value: object) -> set[str]:
    """Return every key of a value in the same form. A list has the keys of its entries."""
    if isinstance(value, list):
        return set().union(*map(keys_of_value, value))
    found = value if isinstance(value, dict) else {}
    return set(found) | {f"{name}.{key}" for name, below in found.items() for key in keys_of_value(below)}


def edge_of_sample() -> dict[str, Any]:
    """Return vllm_edge as it is when each of its lines is active."""
    return dict(yaml.safe_load(re.sub("^#", "", section("vllm_edge"), flags=re.MULTILINE))["vllm_edge"])


def test_its_deployments_are_valid() -> None:
    deployments = parse(variables("sample")["vllm_deployments"])
    assert {deployment.recipe for deployment in deployments} <= set(loader.names([paths.RECIPES]))


def test_it_has_every_key_of_a_deployment() -> None:
    """A key that excludes another one, and a gate, may stand in a comment."""
    known = keys_of_schema(yaml.safe_load(SCHEMA.read_text())["items"])
    comments = " ".join(re.findall("#(.*)", section("vllm_deployments")))
    missing = known - keys_of_value(variables("sample")["vllm_deployments"])
    assert {"name", "through.key", "overrides.memory.utilization"} <= known - missing
    assert {key for key in missing if not re.search(rf"\b{key.rpartition('.')[2]}\b", comments)} == set()


def test_a_deployment_overrides_the_gates_that_there_are() -> None:
    known = keys_of_schema(yaml.safe_load(SCHEMA.read_text())["items"])
    own = {"ready", "log", "fabric", "answer", "use"}
    prefix = "overrides.gates."
    assert {key.removeprefix(prefix) for key in known if key.startswith(prefix)} == own | {
        gate.name for gate in registry.OPTIONAL
    }


def test_it_has_every_key_of_the_edge() -> None:
    assert keys_of_schema(yaml.safe_load(edge.SCHEMA.read_text())) == keys_of_value(edge_of_sample()) - {
        "site.spark1",
        "site.spark2",
    }


def test_every_line_of_its_edge_is_valid() -> None:
    whole = edge_of_sample()
    files = {name: whole.pop(name) for name in ("certificate", "private_key")}
    assert edge.parse(whole).site == whole["site"]
    # A certificate of one's own cannot be that of each Spark, which these need.
    for name in ("site", "metrics_server"):
        del whole[name]
    assert edge.parse({**whole, **files, "tls": edge.FILES}).certificate == files["certificate"]


# What the sample says of a default that it does not show.
WORDS: dict[object, str] = {(): "none", "": "none", False: "false", edge.PRIVATE_NETWORKS: "private networks"}


def defaults(settings: object) -> list[tuple[str, Any]]:
    """Return the keys of the inventory in a dataclass, with their defaults."""
    return [
        (field.name, tuple(value) if isinstance(value := getattr(settings, field.name), dict) else value)
        for field in dataclasses.fields(settings)  # type: ignore[arg-type]
        if field.name not in {"chosen", "limits"}
    ]


@pytest.mark.parametrize(("name", "default"), [*defaults(edge.EdgeSettings()), *defaults(edge.EdgeLimits())])
def test_it_shows_the_default_of_an_edge(name: str, default: object) -> None:
    (line,) = re.findall(rf"^#? +{name}: .*", section("vllm_edge"), re.MULTILINE)
    shown = yaml.safe_load(line.lstrip("# "))[name]
    assert shown == default or line.endswith(f"default: {WORDS[default]}"), line


@pytest.mark.parametrize("name", ["port", "bind", "active", "accept_known_issues"])
def test_it_shows_the_default_of_a_deployment(name: str) -> None:
    default = getattr(Deployment("demo", "demo", ("spark1",)), name)
    text = json.dumps(list(default) if isinstance(default, tuple) else default).strip('"')
    comment, shown = re.findall(rf"((?: *#.*\n)+) +{name}: (.*)\n", section("vllm_deployments"))[0]
    assert shown == text
    assert f"Default: {text}" in comment


LIMITS = edge.EdgeLimits()


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("docs/operations/bench.md", f"({LIMITS.streams} streams, {LIMITS.requests_per_minute} requests a minute)"),
        ("docs/operations/edge.md", f"{LIMITS.switches_waiting} more models may wait (`limits.switches_waiting`)"),
        ("docs/operations/edge.md", f"stays for at least {LIMITS.switch_stay_s} s (`limits.switch_stay_s`)"),
        ("docs/operations/edge.md", f"ask each other on port {edge.EdgeSettings().site_port} (`site_port`)"),
        ("docs/operations/edge.md", f"that says nothing ends after {config.CLIENT_SILENCE_S} s"),
        ("docs/operations/edge.md", f"between two requests after {config.KEPT_S} s"),
        (
            "docs/operations/edge.md",
            f"`body_mib` times (`streams` + {edge.OWN_BUFFERS}) at most {edge.ROUTE_MIB - edge.STAGE_MIB} MiB",
        ),
        (
            "docs/operations/edge.md",
            f"`header_kib` and {edge.CONNECTION_KIB} KiB at most {edge.FRONT_MIB - edge.STAGE_MIB} MiB",
        ),
        ("docs/operations/edge.md", f"with {config.READERS} connections"),
        ("docs/runbooks/edge-refused.md", f"or nothing of it came for {config.CLIENT_SILENCE_S} s"),
    ],
)
def test_a_page_has_the_default_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join((paths.ROOT / page).read_text().split())


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
    planned, lines = plan.of_host(intents({"spark1": resolved}), {"spark1": facts}, "spark1", "test")
    assert planned.unit == f"vllm@{resolved.deployment.name}.service"
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


@pytest.mark.parametrize(
    ("inventory", "command", "verbs"),
    [
        ("cp -r inventories/minimal", "ansible-playbook {}.yml", ("plan", "pull", "deploy", "lock", "precheck")),
        ("vllm-spark init", "`vllm-spark {} ", ("pull", "precheck", "deploy")),
    ],
)
def test_the_first_page_begins_with_the_inventory_and_pulls_before_the_check(
    inventory: str, command: str, verbs: tuple[str]
) -> None:
    text = (paths.ROOT / "docs/operations/first-deployment.md").read_text()
    text = text[text.index(inventory) :]
    places = [text.index(command.format(verb)) for verb in verbs]
    assert places == sorted(places)


PAGES = (
    "README.md",
    *(f"docs/operations/{name}.md" for name in ("first-deployment", "two-sparks", "two-sparks-network")),
)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_first_pages_asks_for_the_password_of_sudo(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    verbs = "deploy|fabric|plan\\.yml|precheck|pull|status|verify"
    commands = re.findall(rf"(?:ansible-playbook|vllm-spark) ((?:{verbs})\b[^`#\n]*)", text)
    assert commands
    assert [command for command in commands if " -K" not in command] == []


def test_the_searched_folders_of_an_unknown_recipe_are_named(tmp_path: Path) -> None:
    folders = (tmp_path / "recipes", paths.RECIPES)
    with pytest.raises(Exception, match=f"searched: {tmp_path}/recipes, {paths.RECIPES}"):
        loader.load("gemma", folders)
    with pytest.raises(Exception, match="Fix: name the folder in vllm_recipe_folders"):
        loader.load("gemma", folders[:1])


def test_the_readme_names_the_verbs_that_need_no_password_of_sudo() -> None:
    playbooks = (paths.ROOT / "playbooks").glob("*.yml")
    needs = re.compile(r"^  (?:become: true|ansible\.builtin\.import_playbook: .*)$", re.MULTILINE)
    verbs = (file for file in playbooks if file.stem not in removed.COMMANDS)
    without = sorted(file.stem for file in verbs if not needs.search(file.read_text()))
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
