"""The generated pages of docs/reference match the toolkit's data."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_spark.cli import main
from vllm_spark.docs import pages, prediction
from vllm_spark.sizing import reported_speeds


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


def test_the_claim_is_the_share_of_the_held_back_rows() -> None:
    text = prediction.text()
    summary = reported_speeds.summary([row.error() for row in reported_speeds.rows("held_back")])
    assert summary.inside < summary.rows, "a claim of everything needs another sentence"
    assert f"{summary.inside} of {summary.rows} inside 15 %" in text
    claimed = [int(share) for share in re.findall(r"(\d+)% inside 15 %", " ".join(text.split()))]
    assert claimed == [round(summary.share_inside * 100)]
    for row in [*reported_speeds.rows("seeds"), *reported_speeds.rows("held_back")]:
        assert f"| {row.id} |" in text
