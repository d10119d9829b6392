"""Each setting of vllm_edge reaches a file of the edge; one that changes nothing would be a promise without effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from fakes import edge_cases
from vllm_spark.edge import config, switch_request
from vllm_spark.inventory.edge import EdgeLimits, EdgeSettings

# Another value for each setting, and the golden case that it changes.
VALUES: Mapping[str, tuple[str, Any]] = {
    "names": ("one-spark", ["models.home"]),
    "allow_from": ("one-spark", ["10.0.0.0/8"]),
    "origins": ("one-spark", ["https://chat.home"]),
    "tls": ("tls-off-with-metrics", "own-ca"),
    "metrics_from": ("one-spark", ["10.0.0.5"]),
    "metrics_port": ("tls-off-with-metrics", 9999),
    "site": ("one-spark", edge_cases.SITE),
    "site_port": ("site", 9999),
    "switch_by_request": ("switch-by-request", False),
    "fair": ("fair", False),
}
# An open edge has no files, `chosen` says who chose, the limits follow below, and the deploy places the certificate.
ELSEWHERE = {"open", "chosen", "limits", "certificate", "private_key"}


def files(case: str, **changed: Any) -> list[str]:
    """Return the texts of the edge's files."""
    deployments, settings, address = edge_cases.GOLDEN[case]
    edge = edge_cases.edge_of(deployments, {**settings, **changed})
    return [
        config.config(edge, address),
        config.route(edge),
        *config.names(edge, address),
        *(f.content for f in switch_request.files(edge)),
    ]


def test_every_setting_has_a_case() -> None:
    assert {one.name for one in fields(EdgeSettings)} == {*VALUES, *ELSEWHERE}


@pytest.mark.parametrize("setting", VALUES)
def test_a_setting_changes_a_file(setting: str) -> None:
    case, value = VALUES[setting]
    assert files(case, **{setting: value}) != files(case)


@pytest.mark.parametrize("limit", [one.name for one in fields(EdgeLimits)])
def test_a_limit_changes_a_file(limit: str) -> None:
    case = "fair" if limit.startswith("batch_") else "switch-by-request"
    assert files(case, limits={limit: getattr(EdgeLimits(), limit) + 1}) != files(case, limits={})
