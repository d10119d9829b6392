"""The arguments of each action and module: what a wrong task is told, and those of every task of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail

from fakes.fake_ansible import FakeRun, load_action
from project_files import load_module
from vllm_spark.core import paths

ACTIONS = sorted(path.stem for path in (paths.ROOT / "plugins" / "action").glob("vllm_*.py"))
FOLDERS = ("roles", "playbooks", "molecule", "sandbox")
PREFIX = "vllm_spark.toolkit."
# Their module has the same arguments and checks them.
OF_MODULE = {"spark_facts", "spark_netplan"}


class Loader(yaml.CSafeLoader):
    """Reads tags such as !unsafe and !vault as text."""


Loader.add_multi_constructor("!", lambda _loader, _suffix, node: str(node.value))  # type: ignore[no-untyped-call]


@cache
def documents() -> dict[Path, Any]:
    files = [file for folder in FOLDERS for file in sorted((paths.ROOT / folder).rglob("*.yml"))]
    return {file: yaml.load(file.read_text(), Loader) for file in files}  # noqa: S506  a SafeLoader


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(inner)


def names(args: Any, variables: dict[str, Any]) -> set[str]:
    """Return the names of arguments. A template has those of the variables and of the mappings that it combines."""
    if isinstance(args, dict):
        return set(args)
    text = str(args or "")
    known = [set(variables[name]) for name in re.findall(r"\b_\w+", text) if isinstance(variables.get(name), dict)]
    return {key for keys in known for key in keys} | set(re.findall(r"'(\w+)':", text))


def tasks() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the file, the action or module, and the names of the arguments of every task with one of ours."""
    for file, document in documents().items():
        found = list(mappings(document))
        variables = documents().get(file.parents[1] / "vars" / "main.yml") or {}
        for mapping in found:
            for key, args in mapping.items():
                if str(key).startswith(PREFIX) and "name" in mapping:
                    more = names(mapping.get("args"), variables)
                    yield str(file.relative_to(paths.ROOT)), key.removeprefix(PREFIX), names(args, variables) | more


def specification(name: str) -> dict[str, Any]:
    """Return the arguments of an action, or those that the page of a module names."""
    if (action := paths.ROOT / "plugins" / "action" / f"{name}.py").is_file() and name not in OF_MODULE:
        return dict(load_action(action.stem).arguments)
    return dict(yaml.load(load_module(name).DOCUMENTATION, yaml.CSafeLoader)["options"])


def test_every_task_has_arguments_that_exist() -> None:
    found = list(tasks())
    documented = {name: set(specification(name)) for name in {name for _, name, _ in found}}
    assert [(file, name, unknown) for file, name, args in found if (unknown := args - documented[name])] == []
    assert {name for _, name, _ in found} >= set(ACTIONS)


def test_every_task_has_the_arguments_that_are_required() -> None:
    lacking = []
    for file, name, args in tasks():
        options = specification(name)
        required = {option for option, fields in options.items() if fields.get("required")}
        # What a template combines may come from another host.
        if name not in OF_MODULE and (missing := required - args):
            lacking.append((file, name, missing))
    assert lacking == []


def test_every_action_checks_its_arguments() -> None:
    actions = {path.stem for path in (paths.ROOT / "plugins" / "action").glob("*.py")} - {"__init__"}
    assert {name for name in actions if load_action(name).arguments is None} == OF_MODULE
    assert {name for name in actions if load_action(name).name != name} == set()


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"hostz": [], "least_gbps": 1}, "unknown arguments: hostz (known: hosts, least_gbps, plan)"),
        ({"hosts": []}, "missing required arguments: least_gbps."),
        ({"plan": "none", "least_gbps": 1}, "argument 'plan' is of type str and we were unable to convert to dict"),
    ],
)
def test_a_wrong_argument_is_named(args: dict[str, Any], fault: str) -> None:
    with pytest.raises(AnsibleActionFail) as failed:
        FakeRun().act("vllm_link_rate", **args)
    message = str(failed.value.message)
    assert message.startswith("vllm_spark.toolkit.vllm_link_rate: ")
    assert fault in message
    assert "Fix: correct the task; plugins/action/vllm_link_rate.py has its arguments." in message


def test_an_argument_that_a_phase_needs_is_named() -> None:
    with pytest.raises(AnsibleActionFail, match=r"vllm_collect: missing required arguments: report_dir\. Fix: "):
        FakeRun().act("vllm_collect", phase="host")
    with pytest.raises(AnsibleActionFail, match=r"value of phase must be one of: host, pairs, got: hosts\. Fix: "):
        FakeRun().act("vllm_collect", phase="hosts")


def test_a_text_of_the_command_line_has_the_type_of_the_page() -> None:
    run = FakeRun(modules={"vllm_history_file": {"entries": []}})
    run.act("vllm_history", phase="read", last="5")
    assert run.calls == [("vllm_history_file", {"last": 5})]
