"""CHANGELOG.md from its fragments: `make release VERSION=1.2.3` writes the section of a version.

A fragment is a file changelogs/fragments/NAME.yml in the form of antsibull-changelog: sections with lists of sentences.
The sections are those of Keep a Changelog.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from vllm_spark.core import paths, strict_yaml

# Sections of Keep a Changelog 1.1.0 in its order. In a fragment they are written small.
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
FOLDER = "changelogs/fragments"
# Files with the version of the toolkit, and the line that has it.
VERSIONS: Mapping[str, str] = {"pyproject.toml": 'version = "{}"', "galaxy.yml": "version: {}"}
UNRELEASED = "unreleased"

_VERSION = re.compile(r"\d+\.\d+\.\d+")
HEADING = re.compile(r"^## \[(?P<version>[\d.]+)\] - (?P<day>\S+)\n", re.MULTILINE)

Entries = Mapping[str, Sequence[str]]


class ChangelogError(Exception):
    """A fragment or a version that cannot be released. The text says what was seen, what was expected, and the fix."""


def read(files: Iterable[Path]) -> Entries:
    """Return section -> sentences of all fragments, in the order of the files. Raises ChangelogError."""
    entries: dict[str, list[str]] = {}
    for file in files:
        document = strict_yaml.load_own(file.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not document:
            raise _fault(file, f"{document!r}", "a section such as `fixed:` with a list of sentences")
        for name, sentences in document.items():
            if name not in _names():
                raise _fault(file, f"the section {name!r}", f"one of {', '.join(_names())}")
            if not isinstance(sentences, list) or not sentences or not all(_is_sentence(each) for each in sentences):
                raise _fault(file, f"{name}: {sentences!r}", "a list of sentences, each in one line with a full stop")
            entries.setdefault(_names()[name], []).extend(sentences)
    return entries


def released(text: str, version: str, day: date, entries: Entries) -> str:
    """Return CHANGELOG.md with the section of a version, newest first.

    A section of this version without a date gets the date, and the entries after its own. Raises ChangelogError if the
    version has a date already or nothing has changed."""
    headings = list(HEADING.finditer(text))
    of_version = next((heading for heading in headings if heading["version"] == version), None)
    if of_version and of_version["day"] != UNRELEASED:
        raise ChangelogError(
            f"CHANGELOG.md has {version} of {of_version['day']} — expected: a version that is not released. "
            "Fix: make release VERSION=X.Y.Z with the next one"
        )
    if not entries and not of_version:
        raise ChangelogError(
            f"{FOLDER} has no fragment — expected: one for each change that an owner notices. "
            "Fix: write the first, as CONTRIBUTING.md says"
        )
    start = of_version.start() if of_version else headings[0].start() if headings else len(text)
    end = next((heading.start() for heading in headings if of_version and heading.start() > start), len(text))
    own = entries_of(text[of_version.end() : end]) if of_version else {}
    if others := set(own) - set(SECTIONS):
        raise ChangelogError(
            f"CHANGELOG.md has {version} with {', '.join(map(repr, sorted(others)))} — expected: the sections "
            f"{', '.join(SECTIONS)} alone. Fix: move these lines into one of them"
        )
    rest = text[end if of_version else start :]
    section = f"## [{version}] - {day.isoformat()}\n\n{_written(own, entries)}"
    return f"{text[:start]}{section}" + (f"\n{rest}" if rest else "")


def entries_of(section: str) -> Entries:
    """Return the entries of a section of CHANGELOG.md. Each is one line."""
    entries: dict[str, list[str]] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith("### "):
            name = line.removeprefix("### ")
        elif line:
            entries.setdefault(name, []).append(line.removeprefix("- "))
    return entries


def with_version(text: str, line: str, version: str) -> str:
    """Return a file with another version. `line` is its line with `{}` at the place of the version. Raises
    ChangelogError if the file does not have that line exactly once."""
    pattern = re.compile(rf"^{re.escape(line).replace(re.escape('{}'), _VERSION.pattern)}$", re.MULTILINE)
    changed, count = pattern.subn(line.format(version), text)
    if count != 1:
        raise ChangelogError(f"{count} lines are `{line.format('X.Y.Z')}` — expected: one. Fix: write that line")
    return changed


def release(root: Path, version: str, day: date) -> None:
    """Write CHANGELOG.md and the version, and remove the fragments. Raises ChangelogError before it writes."""
    if not _VERSION.fullmatch(version):
        raise ChangelogError(f"the version is {version!r} — expected: X.Y.Z. Fix: make release VERSION=0.2.0")
    fragments = sorted((root / FOLDER).glob("*.yml"))
    log = root / "CHANGELOG.md"
    texts = {log: released(log.read_text(encoding="utf-8"), version, day, read(fragments))}
    for name, line in VERSIONS.items():
        texts[root / name] = with_version((root / name).read_text(encoding="utf-8"), line, version)
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    for fragment in fragments:
        fragment.unlink()


def _names() -> Mapping[str, str]:
    return {section.lower(): section for section in SECTIONS}


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and "\n" not in value and value.endswith(".")


def _fault(file: Path, seen: str, expected: str) -> ChangelogError:
    return ChangelogError(f"{file.name} has {seen} — expected: {expected}. Fix: edit {FOLDER}/{file.name}")


def _written(*parts: Entries) -> str:
    lists = {name: [entry for part in parts for entry in part.get(name, ())] for name in SECTIONS}
    return "\n".join(
        "\n".join([f"### {name}", "", *(f"- {entry}" for entry in entries), ""])
        for name, entries in lists.items()
        if entries
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Release a version. Returns 1 if it cannot be released; nothing has changed then."""
    parser = argparse.ArgumentParser(prog="python -m lab.pages.changelog", description=__doc__)
    parser.add_argument("version", help="X.Y.Z")
    version = parser.parse_args(argv).version
    try:
        release(paths.ROOT, version, datetime.now(tz=UTC).date())
    except ChangelogError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"CHANGELOG.md has {version}. Next: git commit --all --message 'Release {version}' && git tag v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
