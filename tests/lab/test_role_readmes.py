"""The READMEs of the roles, and the argument specs from which they are made."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lab.pages import generated, role_readmes
from vllm_spark.core import paths

ROLES = role_readmes.names()
SCREEN = 60  # lines


def document(role: str, name: str) -> dict[str, Any]:
    file = paths.ROOT / "roles" / role / name
    return dict(yaml.load(file.read_text(), yaml.CSafeLoader) or {}) if file.is_file() else {}


def test_every_role_has_a_readme_of_one_screen() -> None:
    folders = {folder.name for folder in (paths.ROOT / "roles").iterdir()}
    assert folders == set(ROLES)
    assert {f"roles/{role}/README.md" for role in ROLES} <= set(generated.PAGES)
    assert {role: lines for role in ROLES if (lines := role_readmes.text(role).count("\n")) > SCREEN} == {}


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_is_that_of_the_specs(role: str) -> None:
    text = (paths.ROOT / "roles" / role / "README.md").read_text()
    assert text == role_readmes.text(role)
    for entry, spec in document(role, "meta/argument_specs.yml")["argument_specs"].items():
        assert f"\n## {entry}.yml\n" in text
        for name, option in spec["options"].items():
            (line,) = {line for line in text.splitlines() if line.startswith(f"| `{name}` |")}
            assert option["description"] in line


def test_a_readme_names_who_runs_the_role() -> None:
    assert "\nRun by the playbook `stop.yml` and by the roles [vllm_deploy]" in role_readmes.text("vllm_server")
    assert "\nRun by the playbook `prune.yml`.\n" in role_readmes.text("vllm_prune")
    assert [role for role in ROLES if "\nRun by the " not in role_readmes.text(role)] == []


def test_the_server_says_why_no_role_has_templates() -> None:
    assert [str(folder) for folder in (paths.ROOT / "roles").glob("*/templates")] == []
    assert "No role has a folder `templates`" in role_readmes.text("vllm_server")


VALUES: list[tuple[Any, str]] = [
    ({"type": "bool"}, "| `x_y` | bool | `true` | W. |"),
    ({"type": "list", "elements": "str"}, "| `x_y` | list of str | `true` | W. |"),
    ({"type": "str", "choices": ["a", "b"]}, "| `x_y` | str (a, b) | `true` | W. |"),
    ({"type": "dict", "no_log": True}, "| `x_y` | dict, never logged | `true` | W. |"),
    ({"type": "dict", "required": True}, "| `x_y` | dict | required | W. |"),
]


@pytest.mark.parametrize(("option", "line"), VALUES)
def test_a_row_has_type_default_and_meaning(option: dict[str, Any], line: str) -> None:
    spec = {"short_description": "Do it", "options": {"x_y": {"description": "W.", **option}}}
    assert line in "\n".join(role_readmes.entry(spec, {"x_y": True})).splitlines()


def test_a_template_stands_without_its_braces() -> None:
    spec = {"short_description": "Do it.", "options": {"x_y": {"description": "W.", "type": "str"}}}
    shown = "\n".join(role_readmes.entry(spec, {"x_y": "{{ y | default('a') }}"}))
    assert "| `y \\| default('a')` |" in shown
    both = "\n".join(role_readmes.entry(spec, {"x_y": "{{ a }}/{{ b }}"}))
    assert "| `{{ a }}/{{ b }}` |" in both
