"""The arguments of an action plugin: its class has their types, and a task with others fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError


class MissingArgumentError(Exception):
    """An action needs an argument that its task does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"missing required arguments: {name}")


class Arguments(dict[str, Any]):
    """The arguments of a task. Raises MissingArgumentError for one that only this task's phase needs."""

    def __missing__(self, name: str) -> None:
        raise MissingArgumentError(name)


def checked(spec: Mapping[str, Any], args: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """Return the arguments of a task, of the types that its class names, and a message per fault of them."""
    result = ArgumentSpecValidator(dict(spec)).validate(dict(args))
    faults = [error.msg for error in result.errors.errors if not isinstance(error, UnsupportedError)]
    if unknown := sorted(set(args) - set(spec)):
        faults.append(f"unknown arguments: {', '.join(unknown)} (known: {', '.join(sorted(spec))})")
    # The validator adds None for each argument that the task does not have.
    return Arguments((name, result.validated_parameters[name]) for name in args), faults
