"""The spread of reports that plan and README show."""

from __future__ import annotations

from typing import Any

import pytest

from lab.forecast.measured_rows import UNMET
from vllm_spark.core import strict_yaml
from vllm_spark.recipe import loader
from vllm_spark.sizing import forecast, reference_spark, reports
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

GATHERED = strict_yaml.load_own((UNMET / "spread.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", reports.entries(), ids=lambda entry: f"{entry['repository']} {entry['drafted']}")
def test_a_spread_is_of_one_gathered_row_with_all_its_owners(entry: dict[str, Any]) -> None:
    speeds = {(owner, speed) for owner, some in entry["owners"].items() for speed in some}
    drafter = f"mtp{entry['drafted']}" if entry["drafted"] else "none"
    rows = [
        {(one["owner"].partition(",")[0], one["decode"]) for one in row["owners"]}
        for row in GATHERED
        if row["sparks"] == entry["sparks"] and row["drafter"] == drafter
    ]
    assert speeds in rows
    assert len(entry["owners"]) >= 2


def test_plan_shows_the_spread_beside_the_figure_of_the_recipe() -> None:
    recipe = loader.load("qwen3.6-35b-a3b-nvfp4-mtp").document
    facts = {"spark1": {"memory": reference_spark.MEMORY}}
    notes = forecast.forecast("demo", recipe, facts, ForecastRequest(), ForecastContext()).notes
    assert "reported: 94.1 to 118.1 of 5 owners, in tok/s of one stream on texts of their own" in notes
    assert reports.spread({**recipe, "topology": {"nodes": 2}}) == ""
