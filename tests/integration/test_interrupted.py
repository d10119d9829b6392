"""A module that is killed on the host at any of its steps: the next run completes its work.

The module runs in a child process. The process exits, as with a loss of power, before one of its calls to the file
system.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible.constants  # noqa: F401  makes a folder at its first import, which would count as a call of the module
import pytest
from ansible.module_utils.testing import patch_module_args

import child
from project_files import load_module

DIED = 9
CALLS = (
    *((os, name) for name in ("replace", "symlink", "unlink", "rmdir", "mkdir", "chmod")),
    (tempfile, "mkstemp"),
    (shutil, "copy2"),
)


def dies_before(step: int, work: Callable[..., object], *args: Any) -> bool:
    """Do the work in a process that exits before its call number `step`. Returns True if there was such a call."""
    status = child.status_of(die_before, step, work, *args)
    assert status in {0, DIED}
    return status == DIED


def die_before(step: int, work: Callable[..., object], *args: Any) -> None:
    """Do the work in this process, which exits before its call number `step`."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not left[0]:
                os._exit(DIED)
            left[0] -= 1
            return real(*args, **options)

        return call

    for module, name in CALLS:
        setattr(module, name, counted(getattr(module, name)))
    try:
        work(*args)
    except SystemExit:
        os._exit(0)
    os._exit(1)


def content(name: str, mark: str) -> str:
    return json.dumps({"launch": mark, "file": name})


FILES = ("launch", "gates.json", "deployed.json", "liveness.json")


def deploy(folder: Path, mark: str, keep_as: str = "previous") -> None:
    """Deploy as the role does: keep the previous launch if the record on the host is of another one."""
    record = folder / "deployed.json"
    args = {
        "folders": [str(folder)],
        "files": [{"path": str(folder / name), "content": content(name, mark)} for name in FILES],
        "env_path": str(folder / "env"),
        "env_content": content("env", mark),
        "keep_as": keep_as if record.exists() and json.loads(record.read_text())["launch"] != mark else "",
    }
    with patch_module_args(args):
        load_module("vllm_files").main()


def deployed(folder: Path, mark: str) -> None:
    with pytest.raises(SystemExit):
        deploy(folder, mark)


def roll_back(folder: Path) -> None:
    with patch_module_args({"folder": str(folder), "env_content": ""}):
        load_module("vllm_restore").main()


def marks(folder: Path) -> set[str]:
    """Return the marks of the launches that the files of a folder belong to. A complete launch has one mark."""
    return {json.loads((folder / name).read_text())["launch"] for name in (*FILES, "env")}


def unfinished(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


@pytest.fixture
def installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A deployment that has had three launches: a, then b, now c."""
    for mark in "abc":
        deployed(tmp_path / "demo", mark)
    capsys.readouterr()
    return tmp_path


STEPS = 60


def test_a_killed_deploy_is_completed_by_the_next(installed: Path, tmp_path: Path) -> None:
    died = 0
    for step in range(STEPS):
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(installed / "demo", folder, symlinks=True)
        if not dies_before(step, deploy, folder, "d"):
            break
        died += 1
        deployed(folder, "d")
        previous = folder / "previous"
        assert (marks(folder), marks(previous), marks(previous / "previous")) == ({"d"}, {"c"}, {"b"}), step
        assert unfinished(folder) == [], step
    # Each of five files takes one or two calls, after the previous files are kept.
    assert 15 < died < STEPS


def test_a_killed_deploy_is_followed_by_another_launch(installed: Path, tmp_path: Path) -> None:
    """A partly placed launch is not kept as a launch."""
    for step in range(STEPS):
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(installed / "demo", folder, symlinks=True)
        if not dies_before(step, deploy, folder, "d"):
            break
        placed = json.loads((folder / "deployed.json").read_text())["launch"] == "d"
        deployed(folder, "e")
        previous = folder / "previous"
        assert marks(folder) == {"e"}, step
        if not placed:
            assert (marks(previous), marks(previous / "previous")) == ({"c"}, {"b"}), step
    assert step > 1


def test_a_killed_rollback_restores_a_complete_launch(installed: Path, tmp_path: Path) -> None:
    died = 0
    for step in range(STEPS):
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(installed / "demo", folder, symlinks=True)
        if not dies_before(step, roll_back, folder):
            break
        died += 1
        # The next deploy completes any state.
        deployed(folder, "d")
        assert marks(folder) == {"d"}, step
        assert marks(folder / "previous") in ({"b"}, {"c"}), step
        assert unfinished(folder) == [], step
    # A link to the launch that failed, and a link to the one that returns: each is made, then renamed to its place.
    assert died == 4


def test_a_launch_that_returns_after_a_bad_one_is_not_its_own_previous_launch(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for mark, keep_as in (("a", "previous"), ("b", "previous"), ("bad", "previous"), ("b", "failed")):
        with pytest.raises(SystemExit):
            deploy(folder, mark, keep_as)
    assert (marks(folder), marks(folder / "failed"), marks(folder / "previous")) == ({"b"}, {"bad"}, {"a"})
    assert unfinished(folder) == []
