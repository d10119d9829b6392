"""CHANGELOG.md and its fragments: the form, and what a release writes."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.pages import changelog
from vllm_spark.core import paths

DAY = date(2026, 12, 1)
HEAD = "# Changelog\n\nWords.\n\n"
OLD = "## [0.1.0] - 2026-11-30\n\n### Added\n\n- Old.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone with the files that a release writes, before its first release."""
    for name in changelog.VERSIONS:
        shutil.copy(paths.ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"{HEAD}## [0.1.0] - {changelog.UNRELEASED}\n\n### Added\n\n- Old.\n")
    (tmp_path / changelog.FOLDER).mkdir(parents=True)
    return tmp_path


def fragment(root: Path, name: str, document: Any) -> Path:
    file = root / changelog.FOLDER / f"{name}.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_release_writes_its_section_above_the_others() -> None:
    entries = {"Fixed": ["One.", "Two."], "Added": ["Three."]}
    section = "## [0.2.0] - 2026-12-01\n\n### Added\n\n- Three.\n\n### Fixed\n\n- One.\n- Two.\n"
    assert changelog.released(HEAD + OLD, "0.2.0", DAY, entries) == f"{HEAD}{section}\n{OLD}"
    assert changelog.released(HEAD, "0.2.0", DAY, entries) == f"{HEAD}{section}"


def test_a_section_without_a_date_gets_the_date_and_the_entries() -> None:
    unreleased = "## [0.2.0] - unreleased\n\n### Added\n\n- Own.\n\n### Security\n\n- Closed.\n"
    text = changelog.released(f"{HEAD}{unreleased}\n{OLD}", "0.2.0", DAY, {"Added": ["New."], "Fixed": ["A fault."]})
    lists = "### Added\n\n- Own.\n- New.\n\n### Fixed\n\n- A fault.\n\n### Security\n\n- Closed.\n"
    assert text == f"{HEAD}## [0.2.0] - 2026-12-01\n\n{lists}\n{OLD}"


def test_a_release_takes_the_fragments_and_sets_the_version(root: Path) -> None:
    fragment(root, "b", {"fixed": ["`status` shows B."]})
    fragment(root, "a", {"fixed": ["`status` shows A."], "security": ["A key is shorter."]})
    changelog.release(root, "0.1.0", DAY)
    fragment(root, "c", {"changed": ["`plan` shows C."]})
    changelog.release(root, "0.2.0", DAY)
    text = (root / "CHANGELOG.md").read_text()
    assert (
        text.index("## [0.2.0] - 2026-12-01") < text.index("- `plan` shows C.") < text.index("## [0.1.0] - 2026-12-01")
    )
    assert "- `status` shows A.\n- `status` shows B.\n" in text
    assert text.endswith("- A key is shorter.\n")
    assert changelog.UNRELEASED not in text
    assert list((root / changelog.FOLDER).iterdir()) == []
    for name, line in changelog.VERSIONS.items():
        assert line.format("0.2.0") in (root / name).read_text().splitlines()


FAULTS: list[tuple[Any, str]] = [
    ([], "changelogs/fragments/x.yml"),
    ({"bugfixes": ["One."]}, "the section 'bugfixes' — expected: one of added, changed"),
    ({"fixed": "One."}, "a list of sentences"),
    ({"fixed": []}, "a list of sentences"),
    ({"fixed": ["One"]}, "a full stop"),
    ({"fixed": ["One.\nTwo."]}, "in one line"),
    ({"fixed": [{"status": "One."}]}, "a list of sentences"),
]


@pytest.mark.parametrize(("document", "said"), FAULTS)
def test_a_faulty_fragment_is_named_and_nothing_is_written(document: Any, said: str, root: Path) -> None:
    fragment(root, "x", document)
    before = (root / "CHANGELOG.md").read_text()
    with pytest.raises(changelog.ChangelogError, match=r"x\.yml has .* Fix: ") as caught:
        changelog.release(root, "0.2.0", DAY)
    assert said in str(caught.value)
    assert (root / "CHANGELOG.md").read_text() == before
    assert (root / changelog.FOLDER / "x.yml").exists()


@pytest.mark.parametrize(
    ("version", "said"), [("v0.2", "expected: X.Y.Z"), ("0.1.0", "0.1.0 of 2026-11-30"), ("0.2.0", "has no fragment")]
)
def test_a_version_that_cannot_be_released_is_refused(version: str, said: str, root: Path) -> None:
    (root / "CHANGELOG.md").write_text(HEAD + OLD)
    with pytest.raises(changelog.ChangelogError, match=said):
        changelog.release(root, version, DAY)
    assert (root / "CHANGELOG.md").read_text() == HEAD + OLD


def test_a_line_outside_of_the_sections_is_not_lost() -> None:
    with pytest.raises(changelog.ChangelogError, match="'', 'Odd' — expected: the sections Added, "):
        changelog.released(f"{HEAD}## [0.2.0] - unreleased\n\nA line.\n\n### Odd\n\n- One.\n", "0.2.0", DAY, {})


def test_a_file_without_its_version_is_named() -> None:
    with pytest.raises(changelog.ChangelogError, match=r"0 lines are `version: X\.Y\.Z`"):
        changelog.with_version("version: one\n", "version: {}", "0.2.0")


def test_the_fragments_and_the_changelog_of_this_clone_are_sound() -> None:
    fragments = sorted((paths.ROOT / changelog.FOLDER).glob("*.yml"))
    assert {name for file in fragments for name in changelog.read([file])} <= set(changelog.SECTIONS)
    text = (paths.ROOT / "CHANGELOG.md").read_text()
    newest, *older = changelog.HEADING.finditer(text)
    section = changelog.entries_of(text[newest.end() : older[0].start() if older else len(text)])
    assert section
    assert set(section) <= set(changelog.SECTIONS)
    assert [entry for entries in section.values() for entry in entries if not entry.endswith(".")] == []
    for name, line in changelog.VERSIONS.items():
        assert line.format(newest["version"]) in (paths.ROOT / name).read_text().splitlines()
