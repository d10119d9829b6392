"""The column `reach` of status: an open engine, one for its own host, and one behind an edge in each of its states."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import edge_cases
from vllm_spark.deploy import launch
from vllm_spark.lifecycle import reach

EDGE: dict[str, Any] = {
    "program": True,
    "account": True,
    "files": {},
    "certificate": "",
    "keys": ["ada", "owner"],
    "may_switch": ["ada"],
    "batch": [],
    "unit": {"ActiveState": "active"},
    "route": {"ActiveState": "active"},
    "switch": {"ActiveState": "active"},
}
CLOSED = {"open": False, "allow_from": ["10.0.0.0/8"]}


def seen(settings: dict[str, Any], found: Any = None, known: bool = True, **more: Any) -> dict[str, Any] | None:
    spec = edge_cases.resolved([{**edge_cases.DEMO, **more}], settings)
    return reach.document(spec if known else None, launch.script(spec), found)


@pytest.mark.parametrize(
    ("bind", "is_open", "text"),
    [("0.0.0.0", True, "OPEN: all, http 8000"), ("127.0.0.1", False, "this Spark, http 8000")],  # noqa: S104
)
def test_an_engine_on_the_network_is_open(bind: str, is_open: bool, text: str) -> None:
    found = seen({"open": True}, bind=bind)
    assert found is not None
    assert (found["open"], found["bind"], found["port"]) == (is_open, bind, 8000)
    assert reach.cell(found).replace("\n", " ") == text


@pytest.mark.parametrize(
    ("change", "settings", "text"),
    [
        ({}, {}, "edge: ada, owner"),
        ({"keys": ["a", "b", "c"]}, {}, "edge: 3 keys"),
        ({"batch": ["owner"]}, {}, "edge: ada, owner (batch)"),
        ({}, {"tls": "off"}, "edge, http: ada, owner"),
        ({"unit": {"ActiveState": "failed"}}, {}, "nobody: edge failed"),
        ({"route": {"ActiveState": "activating"}}, {}, "nobody: edge activating"),
        ({}, {"switch_by_request": True}, "edge: ada, owner switch: ada"),
        ({"may_switch": []}, {"switch_by_request": True}, "edge: ada, owner switch: nobody"),
        ({"switch": {"ActiveState": "failed"}}, {"switch_by_request": True}, "edge: ada, owner switch: failed"),
    ],
)
def test_an_engine_behind_an_edge(change: dict[str, Any], settings: dict[str, Any], text: str) -> None:
    found = seen({**CLOSED, **settings}, {**EDGE, **change})
    assert found is not None
    assert (found["open"], found["from"]) == (False, ["10.0.0.0/8"])
    assert reach.cell(found).replace("\n", " ") == text


def test_what_is_unknown_is_shown_as_unknown() -> None:
    found = seen(CLOSED, None, known=False)
    assert found is not None
    assert {key: value for key, value in found.items() if value is not None} == {"open": False}
    assert reach.cell(found) == "edge"
    inactive = seen(CLOSED, EDGE, known=False)
    assert inactive is not None
    assert inactive["tls"] is None
    assert reach.cell(inactive) == "edge:\nada, owner"
    assert reach.document(None, "#!/bin/sh\n", None) is None
    assert reach.cell(None) == "—"
