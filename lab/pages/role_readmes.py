"""The README of each role: what it does, who runs it, and its variables, from meta/argument_specs.yml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from lab.pages.markdown import table
from vllm_spark.core import paths, strict_yaml

ROLES = paths.ROOT / "roles"
COLUMNS = ("variable", "type", "default", "meaning")
MADE = "<!-- `make docs` writes this page from meta/argument_specs.yml and defaults/main.yml. -->"

# A role that a play or a task runs: by name, or under the lock of the Spark.
_RUNS = re.compile(r"^ *(?:- )?(?:role|name|spark_lock_role): (\w+)$", re.MULTILINE)


def pages() -> dict[str, Callable[[], str]]:
    """Return path in the repository -> the function that returns the README of each role."""
    return {f"roles/{name}/README.md": partial(text, name) for name in names()}


def names() -> list[str]:
    """Return the names of the roles."""
    return sorted(folder.parent.name for folder in ROLES.glob("*/meta"))


def text(role: str) -> str:
    """Return the README of a role."""
    specs = _read(ROLES / role / "meta" / "argument_specs.yml")["argument_specs"]
    defaults = _read(ROLES / role / "defaults" / "main.yml")
    parts = [f"# {role}", MADE, _sentence(specs["main"]["short_description"]), _users(role)]
    for name, spec in specs.items():
        parts += [f"## {name}.yml", *([] if name == "main" else [_sentence(spec["short_description"])])]
        parts += entry(spec, defaults)
    if any("vllm_" in str(default) and "| default(" in str(default) for default in defaults.values()):
        parts.append(
            "A variable in a default is one of the inventory or of `-e`: "
            "[inventories/sample](../../inventories/sample/group_vars/all/vllm.yml) explains those of the inventory."
        )
    return "\n\n".join(parts) + "\n"


def entry(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paragraphs below the sentence of an entry point: a task file of the role that others run."""
    more = spec.get("description", ())
    yield from [more] if isinstance(more, str) else more
    options = spec["options"]
    yield (
        table(COLUMNS, (_row(name, options[name], defaults) for name in options)) if options else "It has no variable."
    )


def _row(name: str, option: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    kind = f"list of {option['elements']}" if "elements" in option else option["type"]
    choices = f" ({', '.join(option['choices'])})" if "choices" in option else ""
    hidden = ", never logged" if option.get("no_log") else ""
    default = "required" if option.get("required") else _default(defaults[name]) if name in defaults else ""
    return [f"`{name}`", f"{kind}{choices}{hidden}", default, option["description"]]


def _default(value: Any) -> str:
    """Return a default as code. A template stands without its braces."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    found = re.fullmatch(r"{{ (((?!{{).)*) }}", str(value))
    return f"`{found[1] if found else value}`"


def _users(role: str) -> str:
    """Return which playbooks and which other roles run a role."""
    playbooks = [f"`{name}.yml`" for name in _running("playbooks/*.yml", 0)[role]]
    roles = [f"[{name}](../{name}/README.md)" for name in _running("roles/*/tasks/*.yml", -3)[role] if name != role]
    return f"Run by {' and by '.join([*_named('playbook', playbooks), *_named('role', roles)])}."


def _named(kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the names with what they are, if there are any."""
    if names:
        yield f"the {kind}{'s' if names[1:] else ''} {', '.join(names)}"


@cache
def _running(pattern: str, part: int) -> Mapping[str, Sequence[str]]:
    """Return role -> the names of those that run it. `part` is the part of a path that names it, 0 for its stem."""
    running: dict[str, set[str]] = {role: set() for role in names()}
    for file in paths.ROOT.glob(pattern):
        for role in _RUNS.findall(file.read_text(encoding="utf-8")):
            if role in running:
                running[role].add(file.parts[part] if part else file.stem)
    return {role: sorted(runners) for role, runners in running.items()}


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _read(file: Path) -> Any:
    return strict_yaml.load_own(file.read_text(encoding="utf-8")) if file.is_file() else {}
