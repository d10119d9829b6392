"""Apply every patch of recipes/patches to files of real engines with the program that builds derived images."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import environments
import pytest

from vllm_spark.core import paths
from vllm_spark.node import image_build

PATCHES = sorted((paths.RECIPES / "patches").glob("*.patch"))
# The releases that contain every fix. 0.30 has other parsers instead.
HOLD_IT = ("0.19.1", "0.20.2", "0.21.0")


def changes_of(patch: Path) -> list[image_build.Change]:
    return image_build.parse(patch.read_text(encoding="utf-8"))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], dict[Path, str]]:
    """Lay out an engine's own copies of the files that a patch names; returns their content."""
    monkeypatch.setattr(image_build, "root_of", lambda package: tmp_path)

    def lay_out(patch: Path, version: str) -> dict[Path, str]:
        for change in changes_of(patch):
            (tmp_path / change.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(environments.sources(version) / change.path, tmp_path / change.path)
        return {file: file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.py")}

    return lay_out


def content(files: dict[Path, str]) -> dict[Path, str]:
    return {file: file.read_text(encoding="utf-8") for file in files}


@pytest.mark.parametrize("version", HOLD_IT)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_release_holds_it_already(patch: Path, version: str, image: Callable[[Path, str], dict[Path, str]]) -> None:
    released = image(patch, version)
    assert image_build.patch(str(patch)) == {patch.name: "already there"}
    assert content(released) == released


@pytest.mark.parametrize("version", HOLD_IT)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_turns_the_faulty_file_into_the_release(
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


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_says_where_it_comes_from(patch: Path) -> None:
    head = patch.read_text(encoding="utf-8").partition("\n--- ")[0]
    assert re.search(r"Upstream: vLLM pull request \d{5}", head)
    assert "Licence: Apache-2.0" in head
