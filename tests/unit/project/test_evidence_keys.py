"""The key of each evidence file can be followed: commit, launch, model and image."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from vllm_spark.bench import evidence, key
from vllm_spark.core import paths

FILES = sorted((paths.RECIPES / "evidence").glob("*/*.jsonl"))
CURRENT = f"{key.PROTOCOL}-"


def key_of(file: Path) -> dict[str, str]:
    return dict(evidence.read(file).run["key"])  # type: ignore[arg-type]


NEW = [file for file in FILES if key_of(file)["protocol"].startswith(CURRENT)]
OLD_FOLDERS = sorted({file.parent for file in FILES} - {file.parent for file in NEW})


def test_there_is_evidence_of_the_present_protocol() -> None:
    assert NEW


@pytest.mark.parametrize("file", NEW, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_key_names_a_launch_that_is_there(file: Path) -> None:
    found = key_of(file)
    hashes = {hashlib.sha256(one.read_bytes()).hexdigest() for one in file.parent.glob("*.launch.sh")}
    assert [one for one in hashes if one.startswith(found["launch"])], f"no launch.sh has the hash {found['launch']}"
    assert found["launch"]
    assert found["model"]
    assert found["image"]
    assert found["layout"]


@pytest.mark.parametrize("file", NEW, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_commit_of_a_key_is_in_this_history(file: Path) -> None:
    named = re.search(r"\(([0-9a-f]{12})\)", key_of(file)["toolkit"])
    assert named
    git = ["git", "-C", str(paths.ROOT)]
    try:
        shallow = subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a clone")
    if shallow.stdout.strip() == "true":
        pytest.skip("needs a clone with its history")
    found = subprocess.run([*git, "merge-base", "--is-ancestor", named[1], "HEAD"], capture_output=True, check=False)
    assert found.returncode == 0, f"{named[1]} is not in this history"


@pytest.mark.parametrize("folder", OLD_FOLDERS, ids=lambda folder: folder.name)
def test_evidence_of_an_older_protocol_is_marked_as_old(folder: Path) -> None:
    assert "\nOld: " in (folder / "README.md").read_text(encoding="utf-8")
    page = (paths.ROOT / "docs" / "reference" / "evidence.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith(f"| [{folder.name}](")]
    assert ", old |" in row
