"""A rollback by hand: its target, its refusals, and the exchange of the two launches in spite of an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from fakes.installed_states import container, deployment, derived, holdings, launch, pulled, record
from project_files import load_module
from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import rollback, rollback_target

FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")
IMAGES = (pulled("a"), pulled("c"))
UP = {"vllm@demo.service": "active"}
GOOD = {"current": launch("c"), "previous": launch("a")}


def held(launches: dict[str, Any] | None = None, images: Any = IMAGES, **more: Any) -> dict[str, Any]:
    return holdings({"demo": deployment(**(launches or GOOD))}, images, **{"units": UP, **more})


def pair(peer: str, mark: str = "a", derived: bool = False, **more: Any) -> dict[str, Any]:
    needs = {"pair": True, "peers": [peer] if peer else []}
    return {"current": launch("c", needs=needs), "previous": launch(mark, derived, needs=needs), **more}


SOLO = {"spark1": held()}
PAIR = {"spark1": held(pair("spark2")), "spark2": held(pair("spark1"))}
# The same images in two stores of Docker, which give them different ids.
CONTAINERD = [{**pulled("a"), "id": "sha256:manifest"}, {**derived("a"), "id": "sha256:manifest-derived"}]
TWO_STORES = {"spark1": PAIR["spark1"], "spark2": held(pair("spark1"), CONTAINERD)}
TWO_STORES_DERIVED = {
    "spark1": held(pair("spark2", derived=True), [derived("a")]),
    "spark2": held(pair("spark1", derived=True), CONTAINERD),
}


# The edge and the firewall table are units with links of their own.
WANTED = {
    "multi-user.target.wants": ("vllm@demo.service", "vllm-edge.service"),
    "sysinit.target.wants": ("vllm-spark-firewall.service",),
}
CLOSED = held(
    units={name: "active" for names in WANTED.values() for name in names},
    unit_files=[f"/etc/systemd/system/{folder}/{name}" for folder, names in WANTED.items() for name in names],
)


@pytest.mark.parametrize(
    ("hosts", "name", "result"),
    [
        ({"spark1": CLOSED}, "", {"spark1": ("a", "c", False)}),
        (SOLO, "", {"spark1": ("a", "c", False)}),
        (SOLO, "demo", {"spark1": ("a", "c", False)}),
        ({**SOLO, "spark2": holdings()}, "", {"spark1": ("a", "c", False)}),
        (PAIR, "demo", {"spark1": ("a", "c", False), "spark2": ("a", "c", False)}),
        (TWO_STORES, "demo", {"spark1": ("a", "c", False), "spark2": ("a", "c", False)}),
        (TWO_STORES_DERIVED, "demo", {"spark1": ("a", "c", False), "spark2": ("a", "c", False)}),
        # Interrupted on the head, before or after its files were placed, and not started on the worker.
        (
            {"spark1": held(pair("spark2", swapping=launch("a"))), "spark2": PAIR["spark2"]},
            "",
            {"spark1": ("a", "c", True), "spark2": ("a", "c", True)},
        ),
        (
            {"spark1": held({"current": launch("a"), "previous": launch("c"), "swapping": launch("a")})},
            "",
            {"spark1": ("a", "c", True)},
        ),
    ],
)
def test_rollback_targets(hosts: dict[str, Any], name: str, result: dict[str, tuple[str, str, bool]]) -> None:
    ways = rollback_target.targets(hosts, name)
    assert {host: (way.to[0], way.back[0], way.finishing) for host, way in ways.items()} == result
    assert {way.record["recipe"] for way in ways.values()} == {"recipe-a"}


OTHER = deployment("other", current=launch("c"))
REFUSED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("no such deployment", SOLO, "absent", ["rollback-unknown"]),
    ("nothing there", {"spark1": holdings()}, "", ["rollback-which"]),
    ("two run", {**SOLO, "spark2": held(units={"vllm@two.service": "active"})}, "", ["rollback-which"]),
    ("nothing before", {"spark1": held({"current": launch("c")})}, "", ["rollback-nothing-before"]),
    ("no script", {"spark1": held({**GOOD, "previous": launch("a", runnable=False)})}, "", ["rollback-nothing-before"]),
    ("image gone", {"spark1": held(images=[pulled("c")])}, "", ["rollback-image-gone"]),
    (
        "derived image gone, though its base is there",
        {"spark1": held({**GOOD, "previous": launch("a", True)})},
        "",
        ["rollback-image-gone"],
    ),
    (
        "files gone",
        {"spark1": held({**GOOD, "previous": launch("a", path_faults=["X is empty"])})},
        "",
        ["rollback-files-gone"],
    ),
    ("no gates", {"spark1": held({**GOOD, "previous": launch("a", gates=False)})}, "", ["rollback-no-gates"]),
    ("never judged", {"spark1": held(history={"demo": []})}, "", ["rollback-never-held"]),
    (
        "missed its gates",
        {"spark1": held(history={"demo": [{"launch": "a" * 64, "holds": False, "gates": {"missed": ["ready"]}}]})},
        "",
        ["rollback-never-held"],
    ),
    ("no docker", {"spark1": held() | {"docker": {"error": "gone"}}}, "", ["rollback-no-docker"]),
    ("another runs", {"spark1": held(units={"vllm@other.service": "active"})}, "demo", ["rollback-another-runs"]),
    (
        "another would with the next boot",
        {"spark1": held(unit_files=["/etc/systemd/system/multi-user.target.wants/vllm@other.service"])},
        "demo",
        ["rollback-another-runs"],
    ),
    ("half a pair", {"spark1": PAIR["spark1"]}, "", ["rollback-half-a-pair"]),
    (
        "halves of two pairs",
        {"spark1": PAIR["spark1"], "spark2": held(pair("spark1", "d"), (*IMAGES, pulled("d")))},
        "",
        ["rollback-two-launches"],
    ),
    (
        "two images of one name",
        {
            "spark1": held(pair("spark2", derived=True), [derived("a")]),
            "spark2": held(pair("spark1", derived=True), [{**derived("a"), "identity": "content sha256:other"}]),
        },
        "",
        ["rollback-two-images"],
    ),
    (
        "every reason at once",
        {"spark1": held({**GOOD, "previous": launch("a", path_faults=["X", "Y"])}, [])},
        "",
        ["rollback-image-gone", "rollback-files-gone", "rollback-files-gone"],
    ),
]


@pytest.mark.parametrize(("hosts", "name", "ids"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refusals(hosts: dict[str, Any], name: str, ids: list[str]) -> None:
    with pytest.raises(RefusedError) as error:
        rollback_target.targets(hosts, name)
    assert [refusal.id for refusal in error.value.refusals] == ids


@pytest.mark.parametrize(
    ("uses", "today", "gone"),
    [
        ({"previous": ["HF_TOKEN", "VLLM_API_KEY"]}, ["HF_TOKEN", "VLLM_API_KEY", "MORE"], []),
        ({"previous": ["HF_TOKEN", "VLLM_API_KEY"]}, ["HF_TOKEN"], ["VLLM_API_KEY"]),
        # It returns, if the launch before it misses its gates.
        ({"current": ["HF_TOKEN"], "previous": ["VLLM_API_KEY"]}, [], ["HF_TOKEN", "VLLM_API_KEY"]),
    ],
)
def test_a_secret_without_a_value_today_is_refused(
    uses: dict[str, list[str]], today: list[str], gone: list[str]
) -> None:
    marks = {"current": "c", "previous": "a"}
    hosts = {"spark1": held({place: launch(mark, secrets=uses.get(place, [])) for place, mark in marks.items()})}
    if not gone:
        assert list(rollback_target.targets(hosts, "", {"spark1": today})) == ["spark1"]
        return
    with pytest.raises(RefusedError) as error:
        rollback_target.targets(hosts, "demo", {"spark1": today})
    assert [refusal.id for refusal in error.value.refusals] == ["rollback-secret-gone"] * len(gone)
    assert all(f"the secret {name}," in str(error.value) for name in gone)


def test_what_is_lent_does_not_go_back() -> None:
    lent = {"spark": "spark1", "gib": 40, "until": 1800000000, "by": "ada@desk", "lent": ["demo"]}
    with pytest.raises(RefusedError) as refused:
        rollback_target.targets({"spark1": held(lease=lent)}, "demo")
    (refusal,) = refused.value.refusals
    assert (refusal.id, refusal.command) == ("lent", "vllm-spark lend spark1 --end")
    assert "demo is lent on spark1: until 2027-01-15 " in refusal.what
    # Another one of the Spark is lent, or the file is no lease.
    for other in (lent | {"lent": ["other"]}, {"lent": ["demo"]}, None):
        assert rollback_target.targets({"spark1": held(lease=other)}, "demo")


def test_several_deployments_of_which_none_runs_are_named() -> None:
    with pytest.raises(RefusedError, match="on spark1 demo, other exist and none runs — expected: one"):
        rollback_target.targets({"spark1": holdings({"demo": deployment(**GOOD), "other": OTHER})}, "")


def test_a_derived_image_is_identified_by_its_name() -> None:
    images = [pulled("c"), derived("a")]
    hosts = {"spark1": held({**GOOD, "previous": launch("a", True)}, images, containers=[container("x", "y")])}
    assert rollback_target.targets(hosts)["spark1"].to[0] == "a"


WAY = {"deployment": "demo", "record": record("a"), "current": record("c")}
MISS = {"holds": False, "missed": "no token"}


@pytest.mark.parametrize(
    ("judged", "again", "parts", "never"),
    [
        ([{"holds": True}], {}, ["recipe-a", "gates hold", "second rollback"], ["missed"]),
        ([{"holds": True}, MISS], {"holds": True}, ["no token", "recipe-c", "serves again", "rolled-back.md"], []),
        ([MISS], {"holds": False, "missed": "nor here"}, ["no token", "nor here"], ["serves again"]),
    ],
)
def test_ended(judged: list[dict[str, Any]], again: dict[str, Any], parts: list[str], never: list[str]) -> None:
    outcome = rollback.ended(WAY, judged, again)
    assert [part for part in parts if part not in outcome] == []
    assert [part for part in never if part in outcome] == []


# --- the files


def write(folder: Path, mark: str, names: tuple[str, ...] = FILES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(json.dumps({"launch": mark}))
        (folder / name).chmod(0o600 if name == "env" else 0o755 if name == "launch" else 0o644)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A deployment that has had three launches: c runs, b before it, a before that."""
    write(tmp_path, "c")
    write(tmp_path / "previous", "b")
    write(tmp_path / "previous" / "previous", "a")
    return tmp_path


def marks(folder: Path) -> str:
    """Return the mark of the launch in a folder. All files must be of one launch."""
    [mark] = {json.loads((folder / name).read_text())["launch"] for name in FILES}
    return str(mark)


def stack(folder: Path) -> str:
    return "".join(marks(folder / below) for below in ("", "previous", "previous/previous"))


def restore(folder: Path, capsys: pytest.CaptureFixture[str], launch: str = "", **more: Any) -> dict[str, Any]:
    module = load_module("vllm_restore")
    args = {"folder": str(folder), "launch": launch, "env_content": "", **more}
    with patch_module_args(args), pytest.raises(SystemExit):
        module.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


def test_the_two_change_places_and_a_second_rollback_returns(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = restore(three, capsys, "b")
    assert (outcome["changed"], outcome["restored"]["launch"], outcome["gates"]) == (True, "b", {"launch": "b"})
    assert outcome["restored"]["previous"] == {"launch": "c"}
    assert stack(three) == "bca"
    assert not (three / "failed").exists()
    assert [oct((three / name).stat().st_mode & 0o777) for name in ("env", "launch")] == ["0o600", "0o755"]
    assert marks(three / "swapping") == "b"
    restore(three, capsys, state="settled")
    assert sorted(path.name for path in three.iterdir()) == sorted([*FILES, "current", "launches", "previous"])
    restore(three, capsys, "c")
    assert stack(three) == "cba"


def test_launches_are_saved_and_put_back(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = three / "saved"
    of_copy = {"copy": str(copy), "state": "saved"}
    assert restore(three, capsys, _ansible_check_mode=True, **of_copy)["changed"] is False
    assert not copy.exists()
    assert restore(three, capsys, **of_copy)["changed"] is True
    restore(three, capsys)
    assert (marks(three), marks(three / "failed")) == ("b", "c")
    (three / "current").unlink()
    (three / "current").symlink_to("launches/3")
    assert restore(three, capsys, **(of_copy | {"state": "put_back"}))["changed"] is True
    assert stack(three) == "cba"
    assert not (three / "failed").exists()
    assert restore(three, capsys, **(of_copy | {"state": "put_back"}))["changed"] is False


def test_a_rollback_to_the_installed_launch_changes_nothing(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert restore(three, capsys, "c")["changed"] is False
    assert stack(three) == "cba"


def test_a_rollback_to_a_missing_launch_changes_nothing(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert restore(three, capsys, "x")["failed"]
    assert stack(three) == "cba"


def test_check_mode_shows_the_launch_and_changes_nothing(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = restore(three, capsys, "b", _ansible_check_mode=True, _ansible_diff=True)
    assert (outcome["changed"], outcome["restored"]["launch"]) == (True, "b")
    assert (outcome["diff"]["before"], outcome["diff"]["after"]) == ('{"launch": "c"}', '{"launch": "b"}')
    assert stack(three) == "cba"


def test_a_file_that_the_previous_launch_did_not_have_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "c")
    write(tmp_path / "previous", "b", ("launch", "env", "deployed.json"))
    restore(tmp_path, capsys, "b")
    assert not (tmp_path / "gates.json").exists()
    assert marks(tmp_path / "previous") == "c"


def test_one_of_two_deployments_of_a_spark_goes_back_beside_the_other() -> None:
    """The launch before was placed beside it; one that had the Spark alone is refused."""
    beside = launch("a")
    beside["record"]["beside"] = ["other"]
    units = {**UP, "vllm@other.service": "active"}
    state = held({**GOOD, "previous": beside}, units=units)
    assert rollback_target.targets({"spark1": state}, "demo")["spark1"].to[0] == "a"
    with pytest.raises(RefusedError, match="rollback-refused") as refused:
        rollback_target.targets({"spark1": held(units=units)}, "demo")
    assert "expected: demo alone, which its launch before needs" in str(refused.value)
    # Two run, so one has to be named.
    with pytest.raises(RefusedError, match="-e deployment=demo"):
        rollback_target.targets({"spark1": state})
