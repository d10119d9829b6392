"""Commands, playbooks, make targets, -e variables, links and anchors on the pages exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import typed_commands
from lab.site import conf
from vllm_spark.cli import main, verbs
from vllm_spark.core import paths, removed

PAGES = [
    *sorted(paths.ROOT.glob("*.md")),
    paths.ROOT / "sandbox" / "README.md",
    *sorted((paths.ROOT / "roles").glob("*/README.md")),
    *(page for folder in ("docs", "lab") for page in sorted((paths.ROOT / folder).rglob("*.md"))),
]
CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`|^ {4,}(\S.*)$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)\s]*)?\)")
ANCHOR = re.compile(r"\[[^\]]+\]\(([^)#\s]*)#([^)\s]+)\)")
PLAYBOOK = re.compile(r"ansible-playbook((?: +(?:-i +\S+))*) +(\S+\.yml)")
TEST = re.compile(r"\b(test_\w+\.py)\b")
VARIABLE = re.compile(r"(?:^|\s)-e +(\w+)=")
COMMAND = re.compile(r"\bvllm-spark +([a-z]+)\b")
TARGET = re.compile(r"^ *(?:\w+=\S+ +)*make +([a-z][a-z-]*)", re.MULTILINE)
RUNBOOK = re.compile(r"docs/runbooks/([a-z0-9-]+)\.md|runbook: ([a-z0-9-]+)\.md")
# The path of a page in a sentence.
NAMED = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.md)\b")


def code(text: str) -> Iterator[str]:
    """Yield every piece of code on a page: blocks, inline code and indented lines."""
    for match in CODE.finditer(text):
        yield next(part for part in match.groups() if part is not None)


def matches(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the last group of every match in the code of a text."""
    return [match.groups()[-1] for piece in code(text) for match in pattern.finditer(piece)]


def in_code(pattern: re.Pattern[str], page: Path) -> list[str]:
    return matches(pattern, page.read_text())


def relative(page: Path) -> str:
    return str(page.relative_to(paths.ROOT))


READ_AS: list[tuple[re.Pattern[str], str, list[str]]] = [
    (PLAYBOOK, "Type `ansible-playbook -i inventories/x nope.yml -l A`.", ["nope.yml"]),
    (PLAYBOOK, "```\nansible-playbook nope.yml\nansible-playbook  a/b.yml -e c=1\n```", ["nope.yml", "a/b.yml"]),
    (PLAYBOOK, "Words about ansible-playbook and a file.yml are none.", []),
    (VARIABLE, "    ansible-playbook deploy.yml -e nope=1 -e other=A,B", ["nope", "other"]),
    (COMMAND, "`vllm-spark nope FILE`, and `cat x | vllm-spark doctor -`", ["nope", "doctor"]),
    (COMMAND, "`/etc/vllm-spark/NAME/launch` and `vllm-spark/NAME:HASH` are no commands", []),
    (TARGET, "```\nmake nope   # why\nPIP_NO_INDEX=1 make setup\n```", ["nope", "setup"]),
]


def test_commands_in_code_are_recognised() -> None:
    assert [matches(pattern, text) for pattern, text, _ in READ_AS] == [expected for _, _, expected in READ_AS]


def test_every_link_has_a_target() -> None:
    links = [(page, link) for page in PAGES for link, _ in LINK.findall(page.read_text()) if "://" not in link]
    assert len(links) > len(PAGES)
    assert [f"{relative(page)}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_every_anchor_is_a_heading() -> None:
    links = [
        (page, page.parent / link if link else page, anchor)
        for page in PAGES
        for link, anchor in ANCHOR.findall(page.read_text())
        if "://" not in link
    ]
    checked = [(page, target, anchor) for page, target, anchor in links if target.suffix == ".md"]
    assert len(checked) > 1
    assert [
        f"{relative(page)}: {target.name}#{anchor}" for page, target, anchor in checked if anchor not in anchors(target)
    ] == []


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings in the form of Git forges."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_playbook_exists() -> None:
    used = {(relative(page), name) for page in PAGES for name in in_code(PLAYBOOK, page)}
    assert {name for _, name in used} >= {"deploy.yml", "plan.yml"}
    assert {(page, name) for page, name in used if not (paths.ROOT / name).is_file()} == set()


def test_every_sub_command_exists() -> None:
    known = {*main.COMMANDS, *verbs.found()}
    assert {"render", "doctor", "plan"} <= known
    used = {(relative(page), name) for page in PAGES for name in in_code(COMMAND, page)}
    assert {name for _, name in used} >= {"doctor", "plan", "contact"}
    # The changelog also has the commands of the release before.
    of_changelog = {("CHANGELOG.md", name) for name in removed.COMMANDS}
    assert {(page, name) for page, name in used if name not in known} - of_changelog == set()


def test_every_make_target_exists() -> None:
    known = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), re.MULTILINE))
    known |= {f"molecule-{folder.name}" for folder in (paths.ROOT / "molecule").iterdir() if folder.is_dir()}
    used = {(relative(page), name) for page in PAGES for name in in_code(TARGET, page)}
    assert {name for _, name in used} >= {"deploy", "test"}
    assert {(page, name) for page, name in used if name not in known} == set()


def test_every_named_test_exists() -> None:
    used = {(relative(page), name) for page in PAGES for name in in_code(TEST, page)}
    assert used
    tests = {file.name for file in (paths.ROOT / "tests").rglob("test_*.py")}
    assert [(page, name) for page, name in sorted(used) if name not in tests] == []


def test_every_extra_variable_is_read() -> None:
    known = typed_commands.variables()
    used = {(relative(page), name) for page in PAGES for name in in_code(VARIABLE, page)}
    assert {name for _, name in used} >= {"lock_accept", "accept_known_issue", "vllm_fabric_state"}
    assert {(page, name) for page, name in used if name not in known} == set()


def bare(text: str, page: Path) -> list[str]:
    """Return the pages of the tree that a text names without a link, where code ends. Other projects have pages too."""
    prose = LINK.sub("", CODE.sub("", text))
    return [name for name in NAMED.findall(prose) if any((one / name).is_file() for one in (page.parent, paths.ROOT))]


def test_a_page_that_is_named_is_a_link() -> None:
    page = paths.RUNBOOKS / "fabric-none.md"
    named = "See fabric-mtu.md, docs/README.md and [fabric-mtu.md](fabric-mtu.md); not `fabric-mtu.md` or docs/api.md."
    assert bare(named, page) == ["fabric-mtu.md", "docs/README.md"]
    # The changelog is a text of its time.
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    assert [f"{relative(page)}: {name}" for page in pages for name in bare(page.read_text(), page)] == []


def test_every_runbook_of_code_and_data_exists() -> None:
    known = {file.stem for file in paths.RUNBOOKS.glob("*.md")}
    users: dict[str, str] = {}
    for folder in ("src", "plugins", "roles", "templates", "recipes", "playbooks"):
        for file in sorted((paths.ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yml", ".j2", ".service", ".timer", ".json"}:
                matches_of_file = RUNBOOK.findall(file.read_text())
                users |= dict.fromkeys((name for groups in matches_of_file for name in groups if name), relative(file))
    assert {"engine-hangs", "engine-kernels", "fabric-nccl-socket"} <= set(users)
    assert {name: file for name, file in users.items() if name not in known} == {}


# A decision is read in one go: question, decision, one table, limits. How it was measured is a note of lab.
DECISION_LINES, DECISION_TABLES = 60, 1
RULE = re.compile(r"^\|[-:| ]+\|$", re.MULTILINE)


def test_a_decision_has_at_most_sixty_lines_and_one_table() -> None:
    texts = {relative(page): page.read_text() for page in (paths.ROOT / "docs" / "decisions").glob("*.md")}
    assert len(texts) >= 18
    sizes = {name: (text.count("\n"), len(RULE.findall(text))) for name, text in texts.items()}
    too_long = {name: size for name, size in sizes.items() if size[0] > DECISION_LINES or size[1] > DECISION_TABLES}
    assert too_long == {}


def test_every_page_is_in_one_part_of_the_index() -> None:
    """The navigation of the site is the index: a page is linked as a whole once. Symptoms lead to the runbooks."""
    docs = paths.ROOT / "docs"
    parts = conf.parts((docs / "README.md").read_text())
    assert [*parts] == ["Begin", "Do", "Look up", "Understand"]
    linked = [page for pages in parts.values() for page in pages]
    pages = [
        str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md") if page.parent != paths.RUNBOOKS
    ]
    assert sorted([*linked, "README"]) == sorted(pages)
    assert "reference/symptoms" in parts["Look up"]
    assert "docs/README.md" in (paths.ROOT / "README.md").read_text()
