"""Reading of evidence files, keys, and the newest run of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.bench_runs import END, KEY, SUBJECT, cell_record, parsed, run_record, text
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

# What the older run, and what the newer run has of its server and its host; what differs.
SEEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "engine": (
        {"subject": SUBJECT | {"engine_version": "0.31.0"}},
        {"subject": SUBJECT | {"engine_version": "0.33.0"}},
        "engine 0.31.0 → 0.33.0",
    ),
    "driver": ({"host": {"a": {"driver": "580.95"}}}, {"host": {"a": {"driver": "590.1"}}}, "driver 580.95 → 590.1"),
    "older evidence": ({"host": {}}, {"host": {"a": {"driver": "590.1", "os": "DGX OS 7.4"}}}, ""),
}


@pytest.mark.parametrize(("before", "after", "line"), SEEN.values(), ids=SEEN)
def test_what_a_run_has_seen_belongs_to_its_key(before: dict[str, Any], after: dict[str, Any], line: str) -> None:
    old, new = parsed(run_record(**before)), parsed(run_record(**after))
    assert key.changes(old, new) == ([line] if line else [])
    assert key.comparable(old, new) is (line == "")


def test_a_drafter_is_known_by_its_figures() -> None:
    drafted = cell_record({"decode": [60.5], "acceptance": [0.7]})
    assert key.changes(parsed(run_record(), CELL), parsed(run_record(), drafted)) == ["drafter no → yes"]


# The key of each run in order, the run that its owner accepts or None, and the runs by which the last one is judged.
MEMORY: dict[str, tuple[list[dict[str, str]], int | None, list[int]]] = {
    "one key": ([{}, {}, {}, {}], None, [0, 1, 2]),
    "accepted": ([{}, {}, {}, {}], 1, [1, 2]),
    "the first of an upgrade": ([{"image": "old"}, {}, {}, {"image": "new"}], None, [1, 2]),
    "the second of an upgrade": ([{}, {}, {"image": "new"}, {"image": "new"}], None, [2]),
    "other Sparks": ([{"hosts": "x"}, {"hosts": "x"}, {}], None, []),
}


@pytest.mark.parametrize(("keys", "accepted", "judges"), MEMORY.values(), ids=MEMORY)
def test_an_upgrade_is_judged_by_the_runs_before_it(
    tmp_path: Path, keys: list[dict[str, str]], accepted: int | None, judges: list[int]
) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(len(keys))]
    for number, (file, change) in enumerate(zip(files, keys, strict=True)):
        record = run_record(f"2026-11-2{number}T10:00:00Z", id=f"{number:012x}", key=KEY | change)
        file.write_text(text(record, CELL, END))
    if accepted is not None:
        assert main.main(["bench", "accept", str(files[accepted]), "clocks are capped for the noise"]) == 0
        assert evidence.read(files[accepted]).accepted == "clocks are capped for the noise"
    assert [run.file for run in verdict.earlier(evidence.read(files[-1]), tmp_path)] == [files[one] for one in judges]


def test_a_slower_upgrade_is_worse_and_says_what_changed() -> None:
    before = parsed(run_record(), cell_record({"decode": [60.0, 60.1, 60.0]}))
    slower = cell_record({"decode": [52.0, 52.1, 52.0]})
    sentence = verdict.verdict(
        parsed(run_record(key=KEY | {"image": "sha256:a230ccccccccdddd"}), slower), [before]
    ).sentence
    assert sentence.startswith("worse: decode of ")
    assert "(-13.3 % against the runs before image 0c53aaaaaaaa… → a230cccccccc…)" in sentence


def test_longer_gaps_are_told() -> None:
    runs = [parsed(run_record(), cell_record({"decode": [60.0, 60.1], "gap_p99": [gap, gap]})) for gap in (5.8, 79.5)]
    assert "are 14 times as long (gap_p99)" in verdict.verdict(runs[1], runs[:1]).sentence


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
