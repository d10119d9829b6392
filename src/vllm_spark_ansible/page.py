"""The page of an action plugin: the file of its name in plugins/modules, where ansible-doc finds it.

Ansible reads the documentation of an action plugin from there. A page is read once per class. The process of
ansible-playbook imports the action plugins of the tasks, so its workers, which are forks, find the page read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.errors import UnsupportedError

DOCUMENTATION = re.compile(r'^DOCUMENTATION = r"""\n(.*?)^"""', re.DOTALL | re.MULTILINE)
FIELDS = ("type", "elements", "choices", "required")


class MissingArgumentError(Exception):
    """An action needs an argument that its task does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"missing required arguments: {name}")


class Arguments(dict[str, Any]):
    """The arguments of a task. Raises MissingArgumentError for one that only this task's phase needs."""

    def __missing__(self, name: str) -> None:
        raise MissingArgumentError(name)


def options(name: str, folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the argument specification of an action plugin from its page; `folder` is plugins/modules.

    None if the page is that of a module of the same name: the module checks the arguments itself.
    """
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    found = DOCUMENTATION.search(text)
    if "AnsibleModule(" in text or not found:
        return None
    documented = yaml_load(found[1])["options"]
    return {
        option: {field: fields[field] for field in FIELDS if field in fields} for option, fields in documented.items()
    }


def checked(spec: Mapping[str, Any], args: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """Return the arguments of a task, of the types that the page names, and a message per fault of them."""
    result = ArgumentSpecValidator(dict(spec)).validate(dict(args))
    faults = [error.msg for error in result.errors.errors if not isinstance(error, UnsupportedError)]
    if unknown := sorted(set(args) - set(spec)):
        faults.append(f"unknown arguments: {', '.join(unknown)} (known: {', '.join(sorted(spec))})")
    # The validator adds None for each argument that the task does not have.
    return Arguments((name, result.validated_parameters[name]) for name in args), faults
