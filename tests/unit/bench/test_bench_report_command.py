"""`vllm-spark bench report`: the file that it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.bench_evidence import DENSE, Bench, write
from vllm_spark.bench.evidence import read
from vllm_spark.cli.main import main


def few(bench: Bench) -> list[dict[str, Any]]:
    """Return a run of few cells: schema and page take a tenth of a second for the twenty of a standard run."""
    cells = [bench.cell(), bench.cell(streams=4)]
    return [bench.first(), *cells, bench.end(cells)]


def test_the_command_writes_the_report_beside_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", few(Bench(DENSE)))
    assert main(["bench", "report", str(file)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.html'}\n"
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    other = write(tmp_path / "b.jsonl", few(Bench(DENSE, 2, slower=1.2)))
    assert main(["bench", "report", str(file), str(other), "-o", str(tmp_path / "b.html")]) == 0
    assert "A / B" not in (tmp_path / "b.html").read_text()
    assert "B / A" in (tmp_path / "b.html").read_text()


def test_the_order_of_the_files_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = str(write(tmp_path / "b.jsonl", few(Bench(DENSE))))
    new = str(write(tmp_path / "a.jsonl", few(Bench(DENSE, 2, slower=1.2, started="2026-03-03T08:15:00Z"))))
    printed, made = [], []
    for files in ([old, new], [new, old]):
        assert main(["bench", "compare", *files]) == 1
        printed.append(capsys.readouterr().out)
        assert main(["bench", "report", *files, "-o", str(tmp_path / "c.html")]) == 0
        made.append((tmp_path / "c.html").read_text())
        capsys.readouterr()
    assert printed[0] == printed[1]
    assert printed[0].startswith(f"A, the older run: {old}; B: {new}")
    assert made[0] == made[1]
    assert "▼ worse" in made[0]


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "a.jsonl", few(Bench(DENSE))))
    assert main(["bench", "report", file, file]) == 1
    assert "each run once" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


BAD: dict[str, Any] = {"empty": "", "text": "no JSON\n", "cell first": '{"record": "cell"}\n', "list": "[1]\n"}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_that_is_not_evidence_is_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    assert main(["bench", "report", str(file)]) == 1
    assert "Fix:" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_more_runs_than_markers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "a.jsonl", few(Bench(DENSE))))
    assert main(["bench", "report", *[file] * 7]) == 1
    assert "7 evidence files — expected: 6 or fewer" in capsys.readouterr().err


def test_a_repeated_cell_replaces_the_earlier_one(tmp_path: Path) -> None:
    bench = Bench(DENSE)
    cell = bench.cell()
    again = cell | {"runs": 7}
    loaded = read(write(tmp_path / "a.jsonl", [bench.first(), cell, again]))
    assert [each["runs"] for each in loaded.cells.values()] == [7]
    assert loaded.end is None
