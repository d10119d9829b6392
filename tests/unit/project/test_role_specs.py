"""The argument specs of the roles: Ansible checks each variable of a role before its first task."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from vllm_spark.core import paths

ROLES = sorted(folder.name for folder in (paths.ROOT / "roles").iterdir())


def document(role: str, name: str) -> dict[str, Any]:
    file = paths.ROOT / "roles" / role / name
    return dict(yaml.load(file.read_text(), yaml.CSafeLoader) or {}) if file.is_file() else {}


@pytest.mark.parametrize("role", ROLES)
def test_the_specs_have_each_variable_of_the_role_and_no_other(role: str) -> None:
    specs = document(role, "meta/argument_specs.yml")["argument_specs"].values()
    options = {name: option for spec in specs for name, option in spec["options"].items()}
    optional = {name for name, option in options.items() if not option.get("required")}
    assert optional == set(document(role, "defaults/main.yml"))
    assert [name for name in options if not re.fullmatch(rf"{role}_\w+", name)] == []


def test_a_restart_is_data_and_no_handler() -> None:
    """A handler would run after the gates, and a tag would run steps without those that they need."""
    files = [file for folder in ("roles", "playbooks") for file in (paths.ROOT / folder).rglob("*.yml")]
    used = re.compile(r"^\s*(?:- )?(?:notify|listen|handlers|tags):", re.MULTILINE)
    assert len(files) > len(ROLES)
    assert [str(file) for file in files if file.parent.name == "handlers" or used.search(file.read_text())] == []
