"""A lease as a file: what is one and what counts as none; and which deployments come back at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.node import lease
from vllm_spark.node.deployment_state import FAILED, LENT, LOADING, SERVING, STOPPED, WANTED, Places
from vllm_spark.node.lease import Lease
from vllm_spark.node.lend import Placed, due

GIB = 1 << 30
GOOD: dict[str, Any] = {"spark": "spark1", "gib": 40, "until": 1800000000, "by": "ada@desk", "lent": ["chat", "embed"]}


def places(folder: Path) -> Places:
    return Places(*(str(folder / name) for name in ("run", "states", "wants", "etc", "starts")))


def test_a_lease_is_read_as_it_was_written(tmp_path: Path) -> None:
    here, noted = places(tmp_path), Lease("spark1", 40.0, 1800000000.0, "ada@desk", ("chat", "embed"))
    assert lease.read(here) is None
    lease.write(noted, here)
    assert lease.read(here) == lease.parsed(GOOD) == noted
    assert (tmp_path / "lease.json").stat().st_mode & 0o777 == 0o644
    assert lease.of("chat", here) == noted
    assert lease.of("other", here) is None


def broken() -> dict[str, str]:
    """Return the texts of files that are no lease."""
    changes: dict[str, Any] = {
        "a missing key": {key: value for key, value in GOOD.items() if key != "until"},
        "another key": GOOD | {"more": 1},
        "a time in words": GOOD | {"until": "18:30"},
        "a time before 1970": GOOD | {"until": -1},
        "true for a time": GOOD | {"until": True},
        "a name for a list": GOOD | {"lent": "chat"},
        "a number in the list": GOOD | {"lent": ["chat", 7]},
        "an empty name": GOOD | {"lent": [""]},
        "a line break in a name": GOOD | {"spark": "spark1\nlent"},
        "a list": [GOOD],
    }
    texts = {name: json.dumps(document) for name, document in changes.items()}
    return {
        **texts,
        "nothing": "",
        "half a file": json.dumps(GOOD)[:30],
        "NaN": json.dumps(GOOD | {"gib": float("nan")}),
    }


@pytest.mark.parametrize("name", broken())
def test_what_is_no_lease_counts_as_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text(broken()[name])
    assert lease.read(places(tmp_path)) is None
    assert lease.of("chat", places(tmp_path)) is None


def placed(state: str, takes: int, *, starts: bool = True) -> Placed:
    return Placed(state, (takes + 8) * GIB, takes * GIB, starts)


@pytest.mark.parametrize(
    ("lent", "here", "available", "expected"),
    [
        pytest.param(
            ["chat", "embed"],
            {"chat": placed(LENT, 60), "embed": placed(LENT, 20)},
            110,
            (["chat", "embed"], [], []),
            id="all fit",
        ),
        pytest.param(
            ["chat", "embed"],
            {"chat": placed(LENT, 60), "embed": placed(LENT, 20)},
            40,
            (["embed"], ["chat"], []),
            id="what fits comes back, the rest waits",
        ),
        pytest.param(["chat"], {"chat": placed(LENT, 60)}, 67, ([], ["chat"], []), id="nothing into a full Spark"),
        pytest.param(
            ["chat", "embed"],
            {"chat": placed(LENT, 60), "embed": placed(LENT, 60)},
            90,
            (["chat"], ["embed"], []),
            id="the first one has the memory",
        ),
        *(
            pytest.param(
                ["embed"],
                {"chat": placed(state, 60), "embed": placed(LENT, 20)},
                80,
                ([], ["embed"], []) if state != SERVING else (["embed"], [], []),
                id=f"a neighbour that is {state}",
            )
            for state in (WANTED, LOADING, FAILED, SERVING)
        ),
        pytest.param(
            ["spare", "chat"],
            {"spare": placed(LENT, 60, starts=False), "chat": placed(LENT, 60)},
            110,
            (["chat"], [], ["spare"]),
            id="what no boot starts stays stopped",
        ),
        pytest.param(["gone"], {"chat": placed(STOPPED, 60)}, 110, ([], [], []), id="what was removed"),
    ],
)
def test_at_the_end_starts_what_fits(
    lent: list[str], here: dict[str, Placed], available: int, expected: tuple[list[str], list[str], list[str]]
) -> None:
    assert due(lent, here, available * GIB) == expected
