"""Reading of evidence files, keys, and the newest run of a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.bench_runs import END, KEY, cell_record, parsed, run_record, text
from vllm_spark.bench import evidence, key, verdict
from vllm_spark.cli import main
from vllm_spark.cli.bench import command
from vllm_spark.core.refusal import RefusedError

FILE = Path("run.jsonl")
CELL = cell_record({"decode": [60.0, 61.0, 60.5]})


def changed_figure(**changes: object) -> str:
    figures = {"decode": CELL["figures"]["decode"] | changes}
    return text(run_record(), CELL | {"figures": figures})


BROKEN = {
    "empty": ("", "no run record"),
    "not JSON": (text(run_record()) + "{no\n" + text(END), "line 2: line 1, column 2: not JSON"),
    "schema": (text(run_record(schema=2)), "schema 2 — expected: schema 1"),
    "no run": (text(CELL), "a cell record before the run record"),
    "two runs": (text(run_record(), run_record()), "a second run record"),
    "two runs after an end": (text(run_record(), END, run_record()), "a second run record"),
    "unknown record": (text(run_record(), {"record": "note"}), "one of run, cell, end"),
    "a list": ("[]\n", "line 1"),
    "missing key": (text({name: value for name, value in run_record().items() if name != "key"}), "missing key key"),
    "metric": (text(run_record(), CELL | {"figures": {"speed": CELL["figures"]["decode"]}}), "unknown metric speed"),
    "unit": (changed_figure(unit="ms"), "decode in ms — expected: decode in tok/s"),
    "NaN": (changed_figure(median=float("nan")), "NaN — expected: a finite number"),
    "text as value": (changed_figure(values=["60"]), "expected: numbers"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused(content: str, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        evidence.parse(content, FILE)
    assert message in str(caught.value)
    assert "Fix:" in str(caught.value)


def test_a_cut_last_line_is_a_note() -> None:
    read = evidence.parse(text(run_record(), CELL) + '{"record": "ce', FILE)
    assert list(read.cells) == [CELL["cell"]["id"]]
    assert any("line 3 is cut" in note for note in read.notes)
    assert any("no end record" in note for note in read.notes)


def test_a_run_that_went_on_after_its_end_is_interrupted_until_the_next_one() -> None:
    read = evidence.parse(text(run_record(), END, CELL), FILE)
    assert (list(read.cells), read.end) == ([CELL["cell"]["id"]], None)
    assert any("line 3 follows an end" in note for note in read.notes)
    assert evidence.parse(text(run_record(), CELL, END, END | {"seconds": 61.0}), FILE).seconds == 61


def test_a_later_cell_replaces_an_earlier_one() -> None:
    later = cell_record({"decode": [50.0]})
    assert parsed(run_record(), CELL, later).cells[CELL["cell"]["id"]]["figures"]["decode"]["median"] == 50


KEYS = {
    "image": ({"image": "sha256:a230ccccccccdddd"}, "changed: image 0c53aaaaaaaa… → a230cccccccc…", False),
    "toolkit": ({"toolkit": "0.2.0"}, "changed: toolkit 0.1.0 → 0.2.0", True),
    "unknown": ({"layout": "mlp=fp8"}, "changed: layout unknown → mlp=fp8", False),
    "none": ({}, "the keys are equal", True),
}


@pytest.mark.parametrize(("change", "line", "comparable"), KEYS.values(), ids=KEYS)
def test_keys(change: dict[str, str], line: str, *, comparable: bool) -> None:
    old, new = parsed(run_record()).run["key"], parsed(run_record(key=KEY | change)).run["key"]
    assert key.sentence(old, new) == line
    assert key.comparable(old, new) is comparable


def test_the_newest_run_of_a_deployment_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text(run_record("2026-11-22T10:00:00Z", id="a" * 12), CELL, END))
    (tmp_path / "b.jsonl").write_text(text(run_record(), CELL, END))
    (tmp_path / "c.jsonl").write_text("broken\n")
    line = verdict.latest(tmp_path, "chat")
    assert line == "last bench: standard, 2026-11-23, decode 60.5 tok/s (spread 0.8 %), verdict good"
    assert verdict.latest_lines(["other", "chat", "chat"], tmp_path) == [f"chat  {line}"]


def test_the_line_of_a_run_says_that_its_figure_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text(run_record(), cell_record({"decode": [6.7, 3.8, 9.6]}), END))
    assert "decode 6.7 tok/s (spread 43.3 %, too noisy to use)" in verdict.latest(tmp_path, "chat")
    assert "code s1: decode 6.7 tok/s (spread 43.3 %, too noisy to use)" in verdict.verdict(evidence.read(file)).notes
    fault = {"id": "busy-host", "what": "spark-1: other processes used 41 % of the CPUs"}
    file.write_text(text(run_record(), CELL | {"state": "worthless", "figures": {}, "faults": [fault]}, END))
    line = verdict.latest(tmp_path, "chat")
    assert "decode not measured (worthless, busy-host: spark-1: other processes used 41 % of the CPUs)" in line


def test_the_line_of_a_run_has_every_kind_of_leading_figure(tmp_path: Path) -> None:
    record = cell_record({"decode": [58.0, 58.2], "first_token": [1370.0, 1375.0]})
    long = record | {"cell": record["cell"] | {"id": "long s1", "prompt": 8192}}
    (tmp_path / "a.jsonl").write_text(text(run_record(), CELL, long, END))
    line = verdict.latest(tmp_path, "chat")
    assert "decode 60.5 tok/s (spread 0.8 %), first token 1372.5 ms (spread 0.3 %)" in line


URLS = {
    "url": (["bench", "http://spark-1:8000", "--model", "m"], ["bench", "url", "http://spark-1:8000", "--model", "m"]),
    "sub-command": (["bench", "verdict", "a://b"], ["bench", "verdict", "a://b"]),
    "other command": (["report", "http://x"], ["report", "http://x"]),
    "alone": (["bench"], ["bench"]),
}


@pytest.mark.parametrize(("words", "result"), URLS.values(), ids=URLS)
def test_a_url_stands_for_the_live_sub_command(words: list[str], result: list[str]) -> None:
    assert command.with_url(words) == result


STATUS = {"good": ("decode", 1.0, 0), "worse": ("decode", 0.7, 1), "unknown": ("step", 1.0, 2), "broken": ("", 1.0, 3)}


@pytest.mark.parametrize(("metric", "factor", "status"), STATUS.values(), ids=STATUS)
@pytest.mark.parametrize("verb", ["verdict", "compare"])
def test_exit_status(verb: str, metric: str, factor: float, status: int, tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(text(run_record("2026-11-22T10:00:00Z", id="a" * 12), CELL, END))
    values = [value * factor for value in (60.0, 61.0, 60.5)]
    new.write_text(text(run_record(), cell_record({metric: values}), END) if metric else "broken\n")
    words = ["bench", "verdict", str(new)] if verb == "verdict" else ["bench", "compare", str(old), str(new)]
    try:
        ended = main.main([*words, "--json"]) or main.main(words)
    except SystemExit as error:
        ended = int(str(error.code))
    assert ended == status
