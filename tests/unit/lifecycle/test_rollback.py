"""A launch that fails its gates: when the previous launch is restored, with which files, and the message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from project_files import load_module
from vllm_spark.lifecycle import rollback

FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")

HOLDS, MISSED, SKIPPED = {"holds": True}, {"holds": False}, {"skipped": True}


@pytest.mark.parametrize(
    ("undoable", "judged", "due"),
    [
        ([True], [MISSED], True),
        ([True], [HOLDS], False),
        ([False], [MISSED], False),  # nothing has changed, or there is no previous launch
        ([True, True], [MISSED, HOLDS], True),  # both ranks of a pair are rolled back
        ([False, True], [MISSED, HOLDS], True),  # an interrupted run had changed the other rank
        ([True], [SKIPPED], False),  # check mode sends no requests
    ],
)
def test_due(undoable: list[bool], judged: list[dict[str, bool]], due: bool) -> None:
    assert rollback.should_roll_back([{"undoable": one} for one in undoable], judged) is due


RECORD = {"deployment": "demo", "recipe": "r-1", "image": "engine:1", "toolkit": "0.1+abc"}


@pytest.mark.parametrize(
    ("restored", "judged", "parts", "never"),
    [
        ({}, {}, ["the answer is wrong"], ["taken back"]),
        (RECORD, {"holds": True}, ["the answer is wrong", "r-1 with engine:1", "serves again", "reports/x.json"], []),
        (RECORD, {"holds": False, "missed": "no token"}, ["came back too", "no token"], ["serves again"]),
        (RECORD, {}, ["not judged"], ["serves again"]),
    ],
)
def test_the_message_of_a_rollback(
    restored: dict[str, Any], judged: dict[str, Any], parts: list[str], never: list[str]
) -> None:
    failed = {"report": "reports/x.json"}
    result = rollback.failure_report("the answer is wrong", failed, {"restored": restored}, judged)
    assert [part for part in parts if part not in result] == []
    assert [part for part in never if part in result] == []


def test_the_message_names_the_secrets_that_are_gone() -> None:
    restored = {"restored": RECORD, "gone": ["VLLM_API_KEY"]}
    assert "without the secrets that vllm_secrets no longer has: VLLM_API_KEY" in rollback.failure_report(
        "no token", {}, restored, {"holds": True}
    )


def write(folder: Path, mark: str, names: tuple[str, ...] = FILES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(json.dumps({"mark": mark}))
        (folder / name).chmod(0o600 if name == "env" else 0o755 if name == "launch" else 0o644)


def marks(folder: Path) -> set[str]:
    return {json.loads((folder / name).read_text())["mark"] for name in FILES}


def restore(folder: Path, capsys: pytest.CaptureFixture[str], check: bool = False) -> dict[str, Any]:
    module = load_module("vllm_restore")
    with (
        patch_module_args({"folder": str(folder), "env_content": "", "_ansible_check_mode": check}),
        pytest.raises(SystemExit),
    ):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_previous_launch_is_restored_and_the_failed_one_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "new")
    write(tmp_path / "previous", "old")
    write(tmp_path / "previous" / "previous", "older")
    result = restore(tmp_path, capsys)
    assert (result["changed"], result["restored"], result["gates"]) == (True, {"mark": "old"}, {"mark": "old"})
    assert marks(tmp_path) == {"old"}
    assert marks(tmp_path / "failed") == {"new"}
    assert marks(tmp_path / "previous") == {"older"}
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("env", "launch")] == ["0o600", "0o755"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([*FILES, "current", "failed", "launches", "previous"])
    assert [path.is_symlink() for path in sorted(tmp_path.iterdir())] == [name != "launches" for name in names]


def test_nothing_is_left_as_previous_where_nothing_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "new")
    write(tmp_path / "previous", "old")
    restore(tmp_path, capsys)
    assert not (tmp_path / "previous").exists()
    again = restore(tmp_path, capsys)
    assert (again["changed"], again["restored"], again["gates"]) == (False, {}, {})
    assert marks(tmp_path) == {"old"}


def test_check_mode_only_reports_the_rollback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "new")
    write(tmp_path / "previous", "old")
    assert restore(tmp_path, capsys, check=True)["restored"] == {"mark": "old"}
    assert marks(tmp_path) == {"new"}


def test_files_of_an_older_toolkit_come_back_without_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "new")
    write(tmp_path / "previous", "old", ("launch", "env", "deployed.json"))
    result = restore(tmp_path, capsys)
    assert (result["restored"], result["gates"]) == ({"mark": "old"}, {})


# A deploy that takes the place of no other deployment.
ALONE = {"go_back": False, "settle": False}
NOTHING = {"replaces": False, "may_return": False, "settle": []}


@pytest.mark.parametrize(
    ("settled", "proven", "results", "enabled", "decision"),
    [
        (False, True, [HOLDS], True, {"record": True, "restore": False, "missed": False, **ALONE}),
        (True, True, [HOLDS], True, {"record": False, "restore": False, "missed": False, **ALONE}),
        # The run that started it was interrupted before it judged the gates.
        (True, False, [HOLDS], True, {"record": True, "restore": False, "missed": False, **ALONE}),
        (True, True, [MISSED], True, {"record": True, "restore": True, "missed": True, **ALONE}),
        (False, True, [MISSED], False, {"record": True, "restore": False, "missed": True, **ALONE}),
        # The other rank failed: this one is rolled back with it and does not fail.
        (False, True, [HOLDS, MISSED], True, {"record": True, "restore": True, "missed": False, **ALONE}),
        (False, True, [SKIPPED], True, {"record": False, "restore": False, "missed": False, **ALONE}),
    ],
)
def test_decision_after_a_deploy(
    settled: bool, proven: bool, results: list[dict[str, bool]], enabled: bool, decision: dict[str, bool]
) -> None:
    plan = {"settled": settled, "undoable": True, "proven": proven}
    plans = [plan] * len(results)
    assert rollback.decide(plan, results[0], plans, results, enabled=enabled, replacement=NOTHING).to_json() == {
        **decision,
        "follows": any(decision.values()),
    }


@pytest.mark.parametrize(
    ("results", "returns"), [([HOLDS, HOLDS], False), ([HOLDS, MISSED], True), ([SKIPPED], False), ([{}, {}], False)]
)
def test_decision_after_a_manual_rollback(results: list[dict[str, bool]], returns: bool) -> None:
    decision = rollback.decide_by_hand(results)
    assert (decision.restore, decision.missed) == (returns, returns)
