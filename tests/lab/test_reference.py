"""The generated files match the toolkit's data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.forecast import measured_rows as rows
from lab.forecast import reported_speeds
from lab.pages import generated
from vllm_spark.sizing import constants

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def each_page_is_generated_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generated, "PAGES", {name: functools.cache(page) for name, page in generated.PAGES.items()})
        yield


def test_no_page_is_stale() -> None:
    assert main(["--check"]) == 0


def test_a_stale_page_is_named_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    assert main(["--check"]) == 1
    assert "docs/reference/prediction.md is out of date" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([]) == 0
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert written == {*generated.PAGES, "recipes/schema.json"}
    assert main(["--check"]) == 0
    (tmp_path / "docs" / "reference" / "prediction.md").write_text("by hand")
    assert main(["--check"]) == 1


def test_the_page_has_fitted_and_left_out_errors_apart_and_every_constant() -> None:
    text = generated.PAGES["docs/reference/prediction.md"]()
    assert "| family | fitted rows | mean | inside 15 % | first token rows" in text
    for held in constants.spark()["held_out"].values():
        assert f"| {held['rows']} | {held['operators']} | {held['median']:.1%} | ±{held['spread']:.0%} |" in text
    for name in constants.spark()["constants"]:
        assert f"| `{name}` |" in text


def test_every_row_stands_beside_its_prediction_or_its_reason() -> None:
    text = generated.PAGES["lab/forecast/measured-rows.md"]()
    for row in [*reported_speeds.rows("seeds"), *reported_speeds.rows("held_back")]:
        assert f"| {row.id} |" in text
    for entry in rows.configurations():
        assert entry.source in text
    for group in rows.dropped():
        assert group["reason"] in text
