"""The history of launches: its entries, their file and its table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from fakes.installed_states import record
from project_files import load_module
from vllm_spark.lifecycle import history

JUDGED = {
    "holds": True,
    "missed": "",
    "running_s": 42.4,
    "report": "reports/x.json",
    "gates": {"held": ["ready", "answer"], "missed": []},
}
NEVER = {"holds": False, "missed": "it does not start\nand more"}


@pytest.mark.parametrize(
    ("judged", "message"),
    [
        (JUDGED, {"holds": True, "gates": JUDGED["gates"], "ready_s": 42.4, "missed": "", "report": "reports/x.json"}),
        # A start that never served has no verdicts: it missed the first gate.
        (
            NEVER,
            {
                "holds": False,
                "gates": {"held": [], "missed": ["ready"]},
                "ready_s": None,
                "missed": NEVER["missed"][:17],
            },
        ),
    ],
)
def test_entry(judged: dict[str, Any], message: dict[str, Any]) -> None:
    result = history.entry("deploy", "me@here", judged)
    assert (result["verb"], result["who"]) == ("deploy", "me@here")
    assert {key: result[key] for key in message} == message


@pytest.mark.parametrize(
    ("verdicts", "held", "missed"),
    [
        ([("ready", True), ("log", True), ("log", True)], ["ready", "log"], []),
        ([("ready", True), ("log", True), ("log", False)], ["ready"], ["log"]),
        ([("ready", True), ("log", None)], ["ready"], []),  # not judged
    ],
)
def test_gates_are_named_once(verdicts: list[tuple[str, bool | None]], held: list[str], missed: list[str]) -> None:
    result = history.summarize([{"gate": gate, "ok": ok} for gate, ok in verdicts])
    assert result == {"held": held, "missed": missed}


def row(host: str, time: str, **more: Any) -> dict[str, Any]:
    message = {**record("a", True), "rank": 1, "time": time, **history.entry("rollback", "me@here", JUDGED), **more}
    return {"host": host, **message}


def test_the_table_of_the_history() -> None:
    hosts = {
        "spark2": [row("spark2", "2026-01-02T00:00:00Z")],
        "spark1": [row("spark1", "2026-01-03T00:00:00Z", **history.entry("deploy", "me@here", NEVER)), {}],
    }
    result = history.rows(hosts)
    assert [(entry["host"], entry.get("time")) for entry in result] == [
        ("spark1", None),
        ("spark2", "2026-01-02T00:00:00Z"),
        ("spark1", "2026-01-03T00:00:00Z"),
    ]
    lines = history.table(result[1:]).splitlines()
    [held] = [line for line in lines if "spark2" in line]
    [missed] = [line for line in lines if "spark1" in line]
    assert [word for word in ("demo, rank 1", "rollback", "a" * 12, "42 s", "✓ 2", "me@here") if word not in held] == []
    assert [word for word in ("deploy", "✗ ready", "—") if word not in missed] == []
    assert "no launch has been judged" in history.table([])


@pytest.mark.parametrize("columns", [80, 120, 160, 240])
def test_the_table_fits_the_terminal_and_names_everything(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = row("spark1", "2026-01-02T00:00:00Z", recipe="gemma-4-26b-a4b-fp8-mtp", toolkit="0.1.0 (d41ed6649948)")
    text = history.table([long])
    assert max(map(len, text.splitlines())) <= columns
    lines = [[cell.strip() for cell in re.split("[│┃]", line)] for line in text.splitlines() if line[0] in "│┃"]
    shown = " ".join("".join(cells) for cells in zip(*lines, strict=True))
    for text in ("spark1", "time", "2026-01-02T00:00:00Z", "gemma-4-26b-a4b-fp8-mtp", "a" * 12, "(d41ed6649948)", "✓2"):
        assert text in shown.replace("✓ ", "✓")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"before": ""}, "first launch"),
        ({"before": "a" * 64, "changes": []}, "same launch"),
        ({"before": "b" * 64, "changes": []}, "the same command"),
        ({"before": "b" * 64, "changes": ["--max-num-seqs 4 → 3"]}, "--max-num-seqs 4 → 3"),
        ({"before": "b" * 64}, "—"),
        ({}, "—"),  # of an older toolkit
    ],
)
def test_a_row_has_the_launch_and_what_changed(more: dict[str, Any], expected: str) -> None:
    line = history.table([row("spark1", "2026-01-02T00:00:00Z", **more)]).splitlines()[3]
    cells = [cell.strip() for cell in line.split("│")]
    assert cells[5:7] == ["a" * 12, expected]


Run = Any


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the module on the deployment demo, whose record is in tmp_path/demo."""
    module = load_module("vllm_history_file")
    monkeypatch.setattr(module, "HISTORY", str(tmp_path / "history"))
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "deployed.json").write_text(json.dumps({**record("a"), "previous": record("b"), "port": 8000}))

    def _run(check: bool = False, **args: Any) -> dict[str, Any]:
        given = {"_ansible_check_mode": check, **args}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        message: dict[str, Any] = json.loads(capsys.readouterr().out)
        return message

    return _run


def write(run: Run, tmp_path: Path, verb: str, **more: Any) -> Any:
    return run(entry={"verb": verb}, folder=str(tmp_path / "demo"), deployment="demo", **more)


def test_an_entry_has_the_record_of_the_box_and_no_more(run: Run, tmp_path: Path) -> None:
    assert write(run, tmp_path, "deploy")["changed"]
    [entry] = run()["entries"]
    assert entry["time"].endswith("Z")
    assert {key: entry[key] for key in ("verb", "launch", "digest", "recipe")} == {
        "verb": "deploy",
        "launch": "a" * 64,
        "digest": f"sha256:{'a' * 64}",
        "recipe": "recipe-a",
    }
    assert not {"previous", "port"} & entry.keys()


def place(folder: Path, mark: str, seqs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deployed.json").write_text(json.dumps(record(mark)))
    (folder / "launch").write_text(f"#!/bin/sh\nexec docker run \\\n  --max-num-seqs {seqs}\n")


def test_an_entry_has_what_changed_from_the_launch_before(run: Run, tmp_path: Path) -> None:
    place(tmp_path / "demo", "a", 4)
    write(run, tmp_path, "deploy")
    write(run, tmp_path, "switch")
    place(tmp_path / "demo", "c", 3)
    place(tmp_path / "demo" / "previous", "a", 4)
    write(run, tmp_path, "deploy")
    place(tmp_path / "demo", "d", 2)  # the launch before is not kept
    write(run, tmp_path, "deploy")
    assert [(entry["before"], entry.get("changes")) for entry in run()["entries"]] == [
        ("", None),
        ("a" * 64, []),
        ("a" * 64, ["--max-num-seqs 4 → 3"]),
        ("c" * 64, None),
    ]


def test_check_mode_writes_nothing(run: Run, tmp_path: Path) -> None:
    write(run, tmp_path, "deploy", check=True)
    assert not (tmp_path / "history").exists()


def test_a_line_that_was_cut_off_costs_itself_alone(run: Run, tmp_path: Path) -> None:
    write(run, tmp_path, "one")
    with (tmp_path / "history" / "demo.jsonl").open("a") as file:
        file.write('{"verb": "two", "ti')
    write(run, tmp_path, "three")
    assert [entry["verb"] for entry in run()["entries"]] == ["one", "three"]


def test_a_history_is_bounded_and_keeps_the_newest(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "history" / "demo.jsonl"
    path.parent.mkdir()
    path.write_text("".join(f'{{"verb": "{number}"}}\n' for number in range(500)))
    write(run, tmp_path, "new")
    lines = path.read_text().splitlines()
    assert (len(lines), json.loads(lines[0])["verb"], json.loads(lines[-1])["verb"]) == (500, "1", "new")
    assert path.stat().st_mode & 0o777 == 0o644


def test_one_deployment_and_a_limit_are_read(run: Run, tmp_path: Path) -> None:
    for verb in ("one", "two"):
        write(run, tmp_path, verb)
    (tmp_path / "history" / "other.jsonl").write_text('{"verb": "other"}\n')
    assert [entry["verb"] for entry in run(last=1)["entries"]] == ["two", "other"]
    assert [entry["verb"] for entry in run(deployment="demo")["entries"]] == ["one", "two"]
    assert run(deployment="absent")["entries"] == []
