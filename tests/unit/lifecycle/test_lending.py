"""The verb lend: tests/data/leases.yml, the end of a lease, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail

from fakes.fake_ansible import FakeRun
from project_files import DATA
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Facts
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.lifecycle import lending
from vllm_spark.lifecycle.lending import Part, Wish
from vllm_spark.node import host_layout, lease
from vllm_spark.node.lease import Lease

CASES = yaml.load((DATA / "leases.yml").read_text(), yaml.CSafeLoader)
GIB = 1 << 30
# 15 January 2027, 17:00 UTC.
NOW = 1800032400.0


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def facts(takes: dict[str, int], runs: list[str], available: int, held: dict[str, Any] | None = None) -> Facts:
    room = {"share": 0, "beside_bytes": 0, "floor_bytes": 8 * GIB}
    return {
        "memory": {"total": 128 * GIB, "available": available * GIB},
        "placed": [*takes],
        "running_units": [f"vllm@{name}.service" for name in runs],
        "records": {name: {"room": {**room, "bytes": size * GIB}} for name, size in takes.items()},
        "status": {"deployments": {}, "lock": None, "lease": held},
    }  # type: ignore[typeddict-item]


def deployments(case: dict[str, Any]) -> list[Deployment]:
    both, one = ("spark1", "spark2"), ("spark1",)
    return [Deployment(name, "recipe", both if name in case.get("pair", []) else one) for name in case["here"]]


def parts_of(case: dict[str, Any]) -> dict[str, Part]:
    own = facts({**case["here"], **case.get("others", {})}, case["runs"], case["available"])
    other = facts(dict.fromkeys(case.get("pair", []), 50), case.get("pair", []), 60)
    wish = Wish("spark1", case["gib"], 3)
    return lending.parts(wish, deployments(case), {"spark1": own, "spark2": other}, NOW)


@pytest.mark.parametrize("case", [case for case in CASES if "stops" in case], ids=lambda case: case["name"])
def test_the_last_of_the_inventory_stops_first_and_none_that_need_not(case: dict[str, Any]) -> None:
    found = parts_of(case)
    own, other = found["spark1"], found["spark2"]
    assert own.lease is not None
    assert sorted(own.stop) == sorted(case["stops"])
    assert [*own.lease.lent] == case["lent"]
    assert own.lease == Lease("spark1", case["gib"], NOW + 3 * 3600, own.lease.by, own.lease.lent)
    expected = case.get("spark2", [])
    assert [*other.stop] == expected
    assert (other.lease is not None) == bool(expected)
    if other.lease:
        assert (other.lease.spark, [*other.lease.lent]) == ("spark1", expected)
    # Its program reads what it gets.
    assert lease.parsed(json.loads(own.begin[-1])) == own.lease


@pytest.mark.parametrize("case", [case for case in CASES if "most" in case], ids=lambda case: case["name"])
def test_more_than_there_is_cannot_be_lent(case: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        parts_of(case)
    (refusal,) = refused.value.refusals
    assert (refusal.id, refusal.runbook) == ("lend-too-much", "lease")
    assert f"spark1 would have {case['most']}.0 GiB for another program" in refusal.what
    assert refusal.command == f"vllm-spark lend spark1 --gib {case['most']} --hours 3"


def test_the_steps_drain_and_stop_all_and_start_nothing() -> None:
    steps = Part(None, stop=("rerank", "embed")).steps(30.0)
    assert steps.drain[-4:] == ["--step=drain", "--drain-s=30.0", "rerank", "--stop=embed"]
    assert steps.change[-2:] == ["--stop=rerank", "--stop=embed"]
    assert Part(None).steps(30.0).change == []


@pytest.mark.parametrize(
    ("hours", "until", "end"),
    [
        (3, "", NOW + 3 * 3600),
        (0.5, "", NOW + 1800),
        (0, "18:30", NOW + 5400),
        # Tomorrow, because it is 17:00.
        (0, "16:00", NOW + 23 * 3600),
        (0, "2027-01-31 18:30", NOW + 16 * 86400 + 5400),
        (0, "2027-01-31T18:30", NOW + 16 * 86400 + 5400),
    ],
)
def test_a_lease_has_an_end(hours: float, until: str, end: float) -> None:
    own = facts({"chat": 60}, ["chat"], 60)
    found = lending.parts(Wish("spark1", 40, hours, until), [], {"spark1": own}, NOW)["spark1"].lease
    assert found is not None
    assert found.until == end


@pytest.mark.parametrize(
    ("gib", "hours", "until"),
    [
        (0, 3, ""),
        (-1, 3, ""),
        (40, 0, ""),
        (40, -1, ""),
        (40, 3, "18:30"),
        (40, 9000, ""),
        (40, 0, "tomorrow"),
        (40, 0, "2027-01-14 18:30"),
        (40, 0, "25:00"),
        (float("nan"), 3, ""),
    ],
)
def test_a_lease_without_an_end_or_a_size_is_refused(gib: float, hours: float, until: str) -> None:
    with pytest.raises(RefusedError) as refused:
        lending.parts(Wish("spark1", gib, hours, until), [], {"spark1": facts({}, [], 60)}, NOW)
    assert [one.id for one in refused.value.refusals] == ["lend-time"]


def refused_id(wish: Wish, known: dict[str, Facts], placed: list[Deployment]) -> str:
    with pytest.raises(RefusedError) as refused:
        lending.parts(wish, placed, known, NOW)
    (refusal,) = refused.value.refusals
    return refusal.id


def test_what_cannot_be_lent_is_refused() -> None:
    pair = [Deployment("big", "recipe", ("spark1", "spark2"))]
    own = facts({"big": 100}, ["big"], 10)
    assert refused_id(Wish("spark3", 40, 3), {"spark1": own}, pair) == "lend-unknown"
    assert refused_id(Wish("", 40, 3), {"spark1": own}, pair) == "lend-unknown"
    assert refused_id(Wish("spark1", 40, 3), {"spark1": own}, pair) == "lend-outside"
    theirs = {"spark": "spark2", "gib": 10, "until": NOW + 60, "by": "ada", "lent": ["big"]}
    held = facts({"big": 100}, [], 110, theirs)
    assert (
        refused_id(Wish("spark1", 40, 3), {"spark1": held, "spark2": facts({"big": 100}, [], 1)}, pair) == "lend-twice"
    )


def test_a_second_lease_of_a_spark_is_longer_and_keeps_what_is_down() -> None:
    first = {"spark": "spark1", "gib": 10, "until": NOW + 60, "by": "ada", "lent": ["embed"]}
    own = facts({"chat": 60, "embed": 20}, ["chat"], 50, first)
    placed = [Deployment(name, "recipe", ("spark1",)) for name in ("chat", "embed")]
    found = lending.parts(Wish("spark1", 20, 5), placed, {"spark1": own}, NOW)["spark1"]
    assert found.lease is not None
    assert (found.stop, found.lease.lent, found.lease.until) == ((), ("embed",), NOW + 5 * 3600)


def test_an_early_end_ends_the_lease_on_each_spark_that_has_it() -> None:
    of_one, of_three = (
        {"spark": spark, "gib": 10, "until": NOW + 60, "by": "ada", "lent": ["big"]} for spark in ("spark1", "spark3")
    )
    known = {
        "spark1": facts({"big": 50}, [], 60, of_one),
        "spark2": facts({"big": 50}, [], 60, of_one),
        "spark3": facts({"big": 50}, [], 60, of_three),
        "spark4": facts({}, [], 60),
    }
    # A pair is named on either of its Sparks.
    for named in ("spark1", "spark2"):
        found = lending.parts(Wish(named, end=True), [], known, NOW)
        assert [host for host, part in found.items() if part.ends] == ["spark1", "spark2"]
        assert found["spark1"].begin[-1] == "--end"
        assert found["spark4"].begin == []
    assert not any(part.ends for part in lending.parts(Wish("spark4", end=True), [], known, NOW).values())


def test_the_lines_say_what_stopped_until_when_and_what_is_free() -> None:
    wish, noted = Wish("spark1", 40, 3), Lease("spark1", 40, NOW, "ada", ("embed", "rerank"))
    part, stays = Part(noted, stop=("rerank", "embed")), "embed, rerank stay down and come back at the end"
    assert lending.line(part, acts=True) == f"lent until 2027-01-15 17:00 UTC: rerank and embed stopped; {stays}"
    assert lending.line(part, acts=False) == f"lent until 2027-01-15 17:00 UTC: rerank and embed would stop; {stays}"
    assert (
        lending.line(Part(replace(noted, lent=())), acts=True) == "lent until 2027-01-15 17:00 UTC: nothing has to stop"
    )
    assert lending.line(Part(), acts=True) == lending.line(Part(ends=True), acts=True) == ""
    assert lending.line(Part(ends=True), acts=False).startswith("the lease would end")
    told = {"available": 20 * GIB, "holder": "python3 (pid 42) holds 90 GiB"}
    assert lending.free(wish, told) == "20.0 GiB are available, and python3 (pid 42) holds 90 GiB"
    assert lending.free(wish, told | {"available": 41 * GIB}) == "41.0 GiB are available"
    assert lending.ended({"started": ["embed"], "waits": ""}) == "the lease has ended: embed start again"
    assert lending.ended({"started": [], "waits": "it waits"}) == "the lease has ended: nothing starts now; it waits"


# --- the action


DEPLOYMENTS = [{"name": name, "recipe": "everything", "hosts": ["spark1"]} for name in ("chat", "embed")]
WISH = {"spark": "spark1", "gib": 40, "hours": 3, "until": "", "end": False, "deployments": DEPLOYMENTS, "drain_s": 30}


def run_of(host: str, **printed: str) -> FakeRun:
    known = {"spark1": facts({"chat": 60, "embed": 50}, ["chat", "embed"], 10), "spark2": facts({}, [], 100)}
    boxes = {
        name: {"vllm_lend_box": {"facts": {**one, "files": {}}}, "spark_lock_verb": "lend"}
        for name, one in known.items()
    }
    boxes[host] |= {f"__vllm_lend_{name}": {"stdout": text} for name, text in printed.items()}
    return FakeRun(host, boxes, {"vllm_files": {"changed": True, "changed_paths": []}})


def test_the_spark_gets_the_program_the_lease_and_the_stops() -> None:
    run = run_of("spark1")
    done = run.act("vllm_lend", phase="decide", **WISH)
    assert done["involved"]
    assert done["begin"][:2] == ["/usr/local/lib/vllm-spark/lend", "--begin"]
    assert lease.parsed(json.loads(done["begin"][2])) is not None
    assert (done["drain"][-1], done["change"][-1]) == ("embed", "--stop=embed")
    assert done["await"][1:] == ["--await", "40"]
    placed = [file["path"] for file in run.calls[0][1]["files"]]
    assert {host_layout.LEND, host_layout.STATE_PROGRAM, f"{host_layout.UNIT_DIR}/vllm-lease.timer"} <= set(placed)
    # Its program finds every module that it imports.
    assert f"{host_layout.MODULES}/vllm_spark/node/lease.py" in placed
    run.hostvars["spark1"] |= {
        "vllm_lend_part": done,
        "__vllm_lend_begun": {"stdout": '{"started": [], "waits": ""}'},
        "__vllm_lend_stopped": {"stdout": '{"ok": true, "said": ""}'},
        "__vllm_lend_free": {"stdout": json.dumps({"available": 45 * GIB, "holder": ""})},
    }
    run.act("vllm_lend", phase="report", **WISH)
    assert run.lines[-1] == "spark1  45.0 GiB are available"
    run.hostvars["spark1"]["__vllm_lend_stopped"] = {"stdout": '{"ok": false, "said": "timed out"}'}
    with pytest.raises(AnsibleActionFail, match="did not stop: timed out"):
        run.act("vllm_lend", phase="report", **WISH)


def test_a_spark_without_a_part_gets_nothing() -> None:
    run = run_of("spark2")
    done = run.act("vllm_lend", phase="decide", **WISH)
    assert (done["involved"], done["begin"], done["change"], run.calls) == (False, [], [], [])


def test_an_end_without_a_lease_says_so() -> None:
    run = run_of("spark1")
    done = run.act("vllm_lend", phase="decide", **{**WISH, "end": True})
    assert (done["involved"], run.lines) == (False, ["spark1  nothing is lent here"])


def test_check_mode_says_what_would_stop() -> None:
    run = run_of("spark1")
    run.check_mode = True
    run.act("vllm_lend", phase="decide", **WISH)
    assert run.lines[0].startswith("spark1  lent until ")
    assert ": embed would stop; embed stay down" in run.lines[0]
