"""`vllm-spark recipe import` of public files: what tests/data/imports expects of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import import_rows
from vllm_spark.cli import main

# Rows whose fault the checks of a recipe have to see.
UNSEEN = {
    "a07-mamba-block-no-prefix": "no rule knows --mamba-block-size without prefix caching",
    "a08-flashnext-fp8kv": "no rule knows the models whose cache has to be BF16",
    "a11-ninja-maxnum": "no rule knows the backend and the cache that gpt-oss cannot have",
    "a06-glm47flash-sdpa": "no rule knows which backends have latent attention",
    "a15-lmcache-hybrid": "no rule knows that a connector needs a package that the image has not",
    "pair-nccl-net-socket": "no rule knows that NCCL_NET takes RDMA away",
}


def _cases() -> list[Any]:
    return [
        pytest.param(
            kind,
            row,
            id=row["id"],
            marks=pytest.mark.xfail(strict=True, reason=UNSEEN[row["id"]]) if row["id"] in UNSEEN else (),
        )
        for kind in import_rows.KINDS
        for row in import_rows.rows(kind)
        if not row.get("held")
    ]


@pytest.mark.parametrize(("kind", "row"), _cases())
def test_a_public_file(kind: str, row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = import_rows.run(row, kind, tmp_path)
    assert import_rows.faults(row, outcome) == []
    assert "a-token-of-its-owner" not in f"{outcome.out}{outcome.err}{outcome.recipes}"
    for name in outcome.recipes:
        assert main.main(["check", str(tmp_path / "out" / f"{name}.yml")]) == 0, capsys.readouterr().err
