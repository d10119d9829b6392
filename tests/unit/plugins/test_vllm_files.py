"""The files module compares, checks and places files together; no diff contains the env file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from project_files import load_module

SECRET = "hidden-value-of-a-test"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the module on a deployment below tmp_path and return its result."""
    module = load_module("vllm_files")

    def _place(launch: str = "#!/bin/sh\nexec true\n", check: bool = False, **more: Any) -> dict[str, Any]:
        folder = tmp_path / "demo"
        args = {
            "folders": [str(folder), str(folder / "mounts")],
            "files": [{"path": str(folder / "launch"), "content": launch, "mode": "0755", "syntax": "sh"}],
            "env_path": str(folder / "env"),
            "env_content": f"VLLM_API_KEY={SECRET}\n",
            "_ansible_check_mode": check,
            "_ansible_diff": True,
            **more,
        }
        with patch_module_args(args), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return _place


def test_the_second_run_changes_nothing(place: Run, tmp_path: Path) -> None:
    first = place()
    assert first["changed"]
    assert (tmp_path / "demo" / "launch").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "demo" / "env").stat().st_mode & 0o777 == 0o600
    second = place()
    assert (second["changed"], second["changed_paths"], second["diff"]) == (False, [], [])


def test_check_mode_predicts_and_places_nothing(place: Run, tmp_path: Path) -> None:
    predicted = place(check=True)
    assert predicted["changed"]
    folder = tmp_path / "demo"
    assert [part.get("prepared") for part in predicted["diff"][:2]] == [
        f"{folder}: a folder that is new\n",
        f"{folder}/mounts: a folder that is new\n",
    ]
    assert [part.get("after") for part in predicted["diff"][2:]] == ["#!/bin/sh\nexec true\n", None]
    assert list(tmp_path.iterdir()) == []


def test_a_diff_of_a_mode_says_so(place: Run, tmp_path: Path) -> None:
    place()
    (tmp_path / "demo" / "launch").chmod(0o600)
    assert place(check=True)["diff"] == [{"prepared": f"{tmp_path / 'demo' / 'launch'}: its mode 0600 becomes 0755\n"}]


def test_a_diff_names_a_program_without_its_source(place: Run, tmp_path: Path) -> None:
    program = {"path": str(tmp_path / "program"), "content": "#!/usr/bin/env python3\npass\n", "mode": "0755"}
    new = place(files=[program])["diff"][-2]
    newer = place(files=[{**program, "content": program["content"] + "pass\n"}])["diff"][0]
    assert new == {"prepared": f"{program['path']}: is new (a program of the toolkit, 2 lines)\n"}
    assert newer == {"prepared": f"{program['path']}: changes (a program of the toolkit, 3 lines)\n"}


def test_no_result_contains_the_secret(place: Run) -> None:
    results = [place(check=True), place(), place(env_content=f"VLLM_API_KEY={SECRET}2\n")]
    assert all(result["changed"] for result in results)
    assert SECRET not in json.dumps(results)


def test_a_script_that_a_shell_refuses_changes_nothing(place: Run, tmp_path: Path) -> None:
    place()
    failed = place(launch="#!/bin/sh\nif then\n", env_content="VLLM_API_KEY=new\n")
    assert failed["failed"]
    assert "sh refuses the new content" in failed["msg"]
    assert SECRET in (tmp_path / "demo" / "env").read_text()


def test_a_changed_mode_is_a_change(place: Run, tmp_path: Path) -> None:
    place()
    (tmp_path / "demo" / "env").chmod(0o644)
    assert place()["changed_paths"] == [str(tmp_path / "demo" / "env")]
    assert (tmp_path / "demo" / "env").stat().st_mode & 0o777 == 0o600


def test_previous_is_kept_only_on_request(place: Run, tmp_path: Path) -> None:
    place()
    place(launch="#!/bin/sh\n# a comment\nexec true\n")
    assert not (tmp_path / "demo" / "previous").exists()
    place(launch="#!/bin/sh\nexec false\n", keep_as="previous")
    place(launch="#!/bin/sh\nexec cat\n", keep_as="previous")
    kept = tmp_path / "demo" / "previous"
    assert (kept / "launch").read_text() == "#!/bin/sh\nexec false\n"
    assert (kept / "env").stat().st_mode & 0o777 == 0o600
    assert not [path.name for path in (tmp_path / "demo").iterdir() if path.name.startswith(".")]


def test_a_launch_that_never_passed_its_gates_does_not_become_the_previous_one(place: Run, tmp_path: Path) -> None:
    place()
    place(launch="#!/bin/sh\nexec false\n", keep_as="previous")
    place(launch="#!/bin/sh\nexec cat\n", keep_as="failed")
    assert (tmp_path / "demo" / "previous" / "launch").read_text() == "#!/bin/sh\nexec true\n"
    assert (tmp_path / "demo" / "failed" / "launch").read_text() == "#!/bin/sh\nexec false\n"


def test_the_key_of_a_link_is_placed_for_root_alone_and_never_shown(place: Run, tmp_path: Path) -> None:
    path, key = tmp_path / "demo" / "link.key", "5a" * 32
    predicted = place(link_path=str(path), link_key=key, check=True)
    first = place(link_path=str(path), link_key=key)
    assert (path.read_text(), path.stat().st_mode & 0o777) == (f"{key}\n", 0o600)
    # A deploy whose hosts have one key passes none.
    kept = place(link_path=str(path), link_key="")
    assert (kept["changed"], path.read_text()) == (False, f"{key}\n")
    replaced = place(link_path=str(path), link_key="6b" * 32)
    assert replaced["changed_paths"] == [str(path)]
    assert replaced["diff"] == [{"prepared": f"{path}: changes (its content is secret)\n"}]
    assert not any(key in json.dumps(result["diff"]) for result in (predicted, first, kept, replaced))


@pytest.fixture
def groupadd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for groupadd, in the PATH before the real one. groupadd.log gets its arguments, and the path of the
    launch if that is there already."""
    programs, log = tmp_path / "programs", tmp_path / "groupadd.log"
    programs.mkdir()
    program = programs / "groupadd"
    program.write_text(f'#!/bin/sh\necho "$@" $(ls {tmp_path}/demo/launch 2>/dev/null) >>{log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def getgrnam(name: str) -> str:
        known = log.read_text().split() if log.exists() else []
        return dict.fromkeys(known, "")[name]

    monkeypatch.setattr("grp.getgrnam", getgrnam)
    return program


def test_the_group_of_a_closed_engine_is_created_once(place: Run, groupadd: Path, tmp_path: Path) -> None:
    assert place(check=True, group="vllm-spark-edge")["changed_paths"][0] == "group vllm-spark-edge"
    assert not (tmp_path / "groupadd.log").exists()
    assert place(group="vllm-spark-edge")["changed"]
    # The launch, which needs the group, comes after it.
    assert (tmp_path / "groupadd.log").read_text() == "--system vllm-spark-edge\n"
    assert not place(group="vllm-spark-edge")["changed"]
    assert (tmp_path / "groupadd.log").read_text() == "--system vllm-spark-edge\n"


def test_a_group_that_cannot_be_created_changes_nothing(place: Run, groupadd: Path, tmp_path: Path) -> None:
    groupadd.write_text("#!/bin/sh\necho no >&2\nexit 10\n")
    failed = place(group="vllm-spark-edge")
    assert (failed["failed"], failed["msg"]) == (True, "groupadd vllm-spark-edge: no. Nothing was changed.")
    assert not (tmp_path / "demo").exists()
