"""Which engine lacks which path."""

from __future__ import annotations

import pytest

from vllm_spark.recipe.engine_paths import COUNT_TOKENS, FIRST, MESSAGES, lacking


@pytest.mark.parametrize(
    ("version", "paths"),
    [
        ("0.10.2", {MESSAGES, COUNT_TOKENS}),
        ("0.11.0.post2", {MESSAGES, COUNT_TOKENS}),
        ("0.11.1", {COUNT_TOKENS}),
        ("0.16.0", {COUNT_TOKENS}),
        ("0.17.0", set()),
        ("0.23.1rc1.dev1020+g857c8f64a", set()),
        ("0.33.0", set()),
    ],
)
def test_an_older_engine_lacks_the_paths_of_anthropics_api(version: str, paths: set[str]) -> None:
    assert lacking(version) == {path: FIRST[path] for path in paths}
