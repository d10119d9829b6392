"""Every patch of recipes/patches against the files of real engines, by the program that builds derived images."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import environments
import pytest

from vllm_spark.core import paths
from vllm_spark.core.engine_version import release
from vllm_spark.node import image_build

ALL = sorted((paths.RECIPES / "patches").glob("*.patch"))
APPLIES = re.compile(r"^Applies to: (.+)$", re.MULTILINE)
# Patches whose fix is in a release, and the releases that contain every such fix. 0.30 has other parsers instead.
PATCHES = [patch for patch in ALL if not APPLIES.search(patch.read_text(encoding="utf-8"))]
HOLD_IT = ("0.19.1", "0.20.2", "0.21.0")
# Patches whose fix is in no release yet, each with the versions that it names, and with the newer ones, to which an
# owner may upgrade its recipes.
NAMED = [
    (patch, version)
    for patch in ALL
    for named in APPLIES.findall(patch.read_text(encoding="utf-8"))
    for version in named.split(", ")
]
OPEN = [
    *NAMED,
    *(
        (patch, newer)
        for patch in dict(NAMED)
        for newer in environments.ENGINES
        if release(newer) > max(release(version) for named, version in NAMED if named == patch)
    ),
]


def changes_of(patch: Path) -> list[image_build.Change]:
    return image_build.parse(patch.read_text(encoding="utf-8"))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], dict[Path, str]]:
    """Copy the engine's files that a patch names. Returns their content."""
    monkeypatch.setattr(image_build, "root_of", lambda package: tmp_path)

    def lay_out(patch: Path, version: str) -> dict[Path, str]:
        for change in changes_of(patch):
            name = change.new or change.old
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(environments.sources(version) / name, tmp_path / name)
        return {file: file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.py")}

    return lay_out


def content(files: dict[Path, str]) -> dict[Path, str]:
    return {file: file.read_text(encoding="utf-8") for file in files}


@pytest.mark.parametrize("version", HOLD_IT)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_release_already_has_the_fix(
    patch: Path, version: str, image: Callable[[Path, str], dict[Path, str]]
) -> None:
    released = image(patch, version)
    assert image_build.patch(str(patch)) == {patch.name: "already there"}
    assert content(released) == released


@pytest.mark.parametrize("version", HOLD_IT)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_patch_turns_the_faulty_file_into_the_released_file(
    patch: Path, version: str, image: Callable[[Path, str], dict[Path, str]]
) -> None:
    released = image(patch, version)
    faulty = image_build.results([change.reverse() for change in changes_of(patch)])
    for file, text in faulty.items():
        assert text is not None
        file.write_text(text, encoding="utf-8")
    assert content(released) != released
    assert image_build.patch(str(patch)) == {patch.name: "applied"}
    assert content(released) == released


@pytest.mark.parametrize(("patch", "version"), OPEN, ids=lambda value: getattr(value, "stem", value))
def test_an_open_fix_applies_to_the_version_that_it_names(
    patch: Path, version: str, image: Callable[[Path, str], dict[Path, str]]
) -> None:
    released = image(patch, version)
    assert image_build.patch(str(patch)) == {patch.name: "applied"}
    patched = content(released)
    assert patched != released
    for file, text in patched.items():
        compile(text, file, "exec")
    assert image_build.patch(str(patch)) == {patch.name: "already there"}


@pytest.mark.parametrize("patch", ALL, ids=lambda patch: patch.stem)
def test_the_patch_names_its_source(patch: Path) -> None:
    head = patch.read_text(encoding="utf-8").partition("\n--- ")[0]
    assert re.search(r"Upstream: vLLM pull request \d{5}", head)
    assert "Licence: Apache-2.0" in head
