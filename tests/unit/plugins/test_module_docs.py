"""The documentation of each module has exactly the options that the module accepts."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import yaml

from project_files import load_module
from vllm_spark.core import paths

PAGES = sorted(path.stem for path in (paths.ROOT / "plugins" / "modules").glob("*.py"))
MODULES = [name for name in PAGES if hasattr(load_module(name), "main")]
FIELDS = ("type", "elements", "choices", "default", "required")


class SpecReceivedError(Exception):
    """Carries the argument_spec of a module out of its main function."""


def argument_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = load_module(name)

    def receive(argument_spec: dict[str, Any], **_: Any) -> NoReturn:
        raise SpecReceivedError(argument_spec)

    monkeypatch.setattr(module, "AnsibleModule", receive)
    with pytest.raises(SpecReceivedError) as received:
        module.main()
    spec: dict[str, Any] = received.value.args[0]
    return spec


def fields(options: dict[str, Any], nested: str) -> dict[str, Any]:
    """Return the comparable fields of each option; `nested` is the key of the options of its elements."""
    return {
        name: {field: option.get(field, False if field == "required" else None) for field in FIELDS}
        | {"options": fields(option.get(nested) or {}, nested)}
        for name, option in options.items()
    }


@pytest.mark.parametrize("name", MODULES)
def test_documented_options_are_those_of_the_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documentation = yaml.safe_load(load_module(name).DOCUMENTATION)
    spec = fields(argument_spec(name, monkeypatch), "options")
    assert fields(documentation.get("options") or {}, "suboptions") == spec


def incomplete(options: dict[str, Any]) -> list[str]:
    nested = [name for option in options.values() for name in incomplete(option.get("suboptions") or {})]
    return [name for name, option in options.items() if not option.get("description")] + nested


@pytest.mark.parametrize("name", PAGES)
def test_a_module_is_documented_completely(name: str) -> None:
    module = load_module(name)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["module"] == name
    assert documentation["short_description"]
    assert documentation["description"]
    assert not incomplete(documentation.get("options") or {})
    assert any({name, f"vllm_spark.toolkit.{name}"} & task.keys() for task in yaml.safe_load(module.EXAMPLES))
    assert all(
        {"description", "returned", "type"} <= entry.keys() for entry in (yaml.safe_load(module.RETURN) or {}).values()
    )
