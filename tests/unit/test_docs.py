"""What the pages say to type is there: verbs, sub-commands, make targets, -e variables, files and links."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from vllm_spark.cli import main
from vllm_spark.core import paths

PAGES = [
    *(paths.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sandbox/README.md")),
    *sorted((paths.ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`|^ {4,}(\S.*)$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)\s]*)?\)")
PLAYBOOK = re.compile(r"ansible-playbook((?: +(?:-i +\S+))*) +(\S+\.yml)")
VARIABLE = re.compile(r"(?:^|\s)-e +(\w+)=")
COMMAND = re.compile(r"\bvllm-spark +([a-z]+)\b")
TARGET = re.compile(r"^ *(?:\w+=\S+ +)*make +([a-z][a-z-]*)", re.MULTILINE)
RUNBOOK = re.compile(r"docs/runbooks/([a-z0-9-]+)\.md|runbook: ([a-z0-9-]+)\.md")
# `other-page.md` of a runbook, in words, without a link.
NEIGHBOUR = re.compile(r"(?<![/\w.-])([a-z0-9]+(?:-[a-z0-9]+)+|tools|reasoning|vision|garbage|drafter|secrets)\.md\b")


def code(text: str) -> Iterator[str]:
    """Every piece of a page that is meant to be typed or read on a screen."""
    for found in CODE.finditer(text):
        yield next(part for part in found.groups() if part is not None)


def matches(pattern: re.Pattern[str], text: str) -> list[str]:
    """The last group of every match in a text's code."""
    return [found.groups()[-1] for piece in code(text) for found in pattern.finditer(piece)]


def in_code(pattern: re.Pattern[str], page: Path) -> list[str]:
    return matches(pattern, page.read_text())


def sub_commands(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names that the real parser has."""
    kept: list[argparse._SubParsersAction[argparse.ArgumentParser]] = []
    add = argparse.ArgumentParser.add_subparsers

    def keep(self: argparse.ArgumentParser, **options: object) -> argparse._SubParsersAction[argparse.ArgumentParser]:
        kept.append(add(self, **options))  # type: ignore[call-overload]
        return kept[-1]

    monkeypatch.setattr(argparse.ArgumentParser, "add_subparsers", keep)
    with pytest.raises(SystemExit):
        main.main(["--help"])
    return set(kept[0].choices)


def variables() -> set[str]:
    """What a role, a playbook or a scenario reads: names in Jinja, arguments of roles, defaults."""
    found: set[str] = set()
    for folder in ("roles", "playbooks", "sandbox/roles", "inventories", "molecule"):
        for file in (paths.ROOT / folder).rglob("*.yml"):
            text = file.read_text()
            found |= set(re.findall(r"\b([a-z]\w+) \| default\(", text))
            if file.parent.name == "defaults" or "group_vars" in file.parts:
                found |= set(yaml.safe_load(text) or {})
    return found


def named(page: Path) -> str:
    return str(page.relative_to(paths.ROOT))


READ_AS = [
    (PLAYBOOK, "Type `ansible-playbook -i inventories/x nope.yml -l A`.", ["nope.yml"]),
    (PLAYBOOK, "```\nansible-playbook nope.yml\nansible-playbook  a/b.yml -e c=1\n```", ["nope.yml", "a/b.yml"]),
    (PLAYBOOK, "Words about ansible-playbook and a file.yml are none.", []),
    (VARIABLE, "    ansible-playbook deploy.yml -e nope=1 -e other=A,B", ["nope", "other"]),
    (COMMAND, "`vllm-spark nope FILE`, and `cat x | vllm-spark doctor -`", ["nope", "doctor"]),
    (COMMAND, "`/etc/vllm-spark/NAME/launch` and `vllm-spark/NAME:HASH` are no commands", []),
    (TARGET, "```\nmake nope   # why\nPIP_NO_INDEX=1 make setup\n```", ["nope", "setup"]),
]


@pytest.mark.parametrize(("pattern", "text", "found"), READ_AS, ids=range(len(READ_AS)))
def test_what_a_page_says_to_type_is_read(pattern: re.Pattern[str], text: str, found: list[str]) -> None:
    assert matches(pattern, text) == found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [link for link, _ in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_anchor_is_a_heading(page: Path) -> None:
    lost = []
    for link, anchor in re.findall(r"\[[^\]]+\]\(([^)#\s]*)(#[^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        if target.suffix == ".md" and anchor[1:] not in anchors(target):
            lost.append(f"{link}{anchor}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_playbook_is_there(page: Path) -> None:
    assert [name for name in in_code(PLAYBOOK, page) if not (paths.ROOT / name).is_file()] == []


def test_every_sub_command_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    known = sub_commands(monkeypatch)
    assert {"render", "doctor", "docs"} <= known
    used = {(named(page), name) for page in PAGES for name in in_code(COMMAND, page)}
    assert {name for _, name in used} >= {"doctor", "plan", "contact"}
    assert {(page, name) for page, name in used if name not in known} == set()


def test_every_make_target_is_there() -> None:
    known = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), re.MULTILINE))
    known |= {f"molecule-{folder.name}" for folder in (paths.ROOT / "molecule").iterdir() if folder.is_dir()}
    used = {(named(page), name) for page in PAGES for name in in_code(TARGET, page)}
    assert {name for _, name in used} >= {"deploy", "test"}
    assert {(page, name) for page, name in used if name not in known} == set()


def test_every_variable_given_by_e_is_read() -> None:
    known = variables()
    used = {(named(page), name) for page in PAGES for name in in_code(VARIABLE, page)}
    assert {name for _, name in used} >= {"lock_accept", "accept_known_issue", "vllm_fabric_state"}
    assert {(page, name) for page, name in used if name not in known} == set()


@pytest.mark.parametrize("page", sorted(paths.RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_runbook_that_another_one_names_is_there(page: Path) -> None:
    text = LINK.sub("", page.read_text())
    assert [name for name in NEIGHBOUR.findall(text) if not (paths.RUNBOOKS / f"{name}.md").is_file()] == []


def test_every_runbook_that_code_and_data_name_is_there() -> None:
    known = {file.stem for file in paths.RUNBOOKS.glob("*.md")}
    named_by: dict[str, str] = {}
    for folder in ("src", "plugins", "roles", "templates", "recipes", "playbooks"):
        for file in sorted((paths.ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yml", ".j2", ".service", ".timer", ".json"}:
                found = RUNBOOK.findall(file.read_text())
                named_by |= dict.fromkeys((name for groups in found for name in groups if name), named(file))
    assert {"engine-hangs", "engine-kernels", "fabric-nccl-socket"} <= set(named_by)
    assert {name: file for name, file in named_by.items() if name not in known} == {}


def test_every_page_of_operations_is_reached_from_the_readme() -> None:
    readme = (paths.ROOT / "README.md").read_text()
    pages = [
        named(page) for page in (paths.ROOT / "docs").rglob("*.md") if page.parent.name in {"operations", "reference"}
    ]
    index = (paths.ROOT / "docs" / "README.md").read_text()
    assert "docs/README.md" in readme
    assert [page for page in pages if f"({page.removeprefix('docs/')})" not in index] == []
