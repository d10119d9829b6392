"""The generated pages of docs/reference match the toolkit's data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_spark.cli import main
from vllm_spark.docs import pages, prediction
from vllm_spark.sizing import constants, measured_rows, reported_speeds


@pytest.fixture(autouse=True, scope="module")
def each_page_is_generated_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages, "PAGES", {name: functools.cache(page) for name, page in pages.PAGES.items()})
        yield


def test_no_page_is_stale() -> None:
    assert main.main(["docs", "--check"]) == 0


def test_a_stale_page_is_refused_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    reference = tmp_path / "docs" / "reference"
    assert main.main(["docs", "--check"]) == 1
    assert "docs/reference/prediction.md is out of date" in capsys.readouterr().err
    assert not reference.exists()
    assert main.main(["docs"]) == 0
    assert {file.name for file in reference.iterdir()} == set(pages.PAGES)
    assert main.main(["docs", "--check"]) == 0
    (reference / "prediction.md").write_text("by hand")
    assert main.main(["docs", "--check"]) == 1


def test_the_page_has_fitted_and_left_out_errors_apart_and_every_constant() -> None:
    text = prediction.text()
    assert "| family | fitted rows | mean | inside 15 % | first token rows" in text
    for name, family in constants.hardware()["gb10"]["families"].items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} |") and line.count("|") > 10)
        held = family["held_out"]
        assert f"| {held['rows']} | {held['mean']:.1%} | {held['inside']:.0%} | ±{held['spread']:.0%} |" in line
    for name in constants.hardware()["gb10"]["constants"]:
        assert f"| `{name}` |" in text
    for row in [*reported_speeds.rows("seeds"), *reported_speeds.rows("held_back")]:
        assert f"| {row.id} |" in text
    for entry in measured_rows.configurations():
        assert entry.source in text
    for group in measured_rows.dropped():
        assert group["reason"] in text
