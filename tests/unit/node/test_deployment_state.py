"""The state of a deployment: what one program writes, every other one reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_deployment_state

from vllm_spark.node import deployment_state as states
from vllm_spark.node import starts
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "wants").mkdir()
    return Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))


def written(places: Places, *words: str) -> list[tuple[str, str]]:
    """Write STATE or STATE: WHY, one after the other. Returns the history."""
    for word in words:
        state, _, why = word.partition(": ")
        StateOf("demo", places).write(state, why)
    return [(entry["state"], entry["why"]) for entry in states.history("demo", places)]


def test_readers_of_the_host_and_of_the_modules_see_what_was_written(places: Places) -> None:
    StateOf("demo", places).write(states.WANTED, "it waits for spark2", peers=["spark2"])
    StateOf("demo", places).write(states.FAILED, "spark2 is lost")
    StateOf("demo", places).write(states.LOADING)
    seen = spark_deployment_state.present("demo", spark_deployment_state.Places(places.run, places.histories, ""))
    assert seen == states.present("demo", places)
    assert seen | {"since": 0} == {
        "state": "loading",
        "why": "",
        "since": 0,
        "last_end": "spark2 is lost",
        "peers": ["spark2"],
        "start": "",
        "failed": 0,
        "written": True,
    }
    assert states.described(states.present("demo", places)) == "loading; before that: spark2 is lost"


def test_a_history_has_each_transition_once(places: Places) -> None:
    lines = written(places, "loading", "loading", "serving", "serving", "failed: status 1", "loading", "serving")
    assert lines == [("loading", ""), ("serving", ""), ("failed", "status 1"), ("loading", ""), ("serving", "")]
    # After a boot the present is empty, and the history goes on.
    os.unlink(places.present("demo"))
    assert written(places, "serving")[-2:] == [("loading", ""), ("serving", "")]
    assert written(places, "stopped: by hand")[-1] == ("stopped", "by hand")


def test_a_repeated_state_keeps_the_time_of_its_beginning(places: Places) -> None:
    first = StateOf("demo", places).write(states.WANTED, "it waits for spark2")
    again = StateOf("demo", places).write(states.WANTED, "spark2 has another launch")
    assert (again["since"], again["why"]) == (first["since"], "spark2 has another launch")
    assert StateOf("demo", places).write(states.LOADING)["since"] > first["since"]


def test_a_history_is_bounded(places: Places) -> None:
    for count in range(states.KEPT_LINES + 20):
        StateOf("demo", places).write(states.FAILED, str(count))
    lines = Path(places.history("demo")).read_text().splitlines()
    assert (len(lines), json.loads(lines[0])["why"]) == (states.KEPT_LINES, "20")
    assert [entry["why"] for entry in states.history("demo", places, last=2)] == ["218", "219"]
    assert states.history("demo", places, last=0) == []


def test_a_state_has_its_start_and_the_count_of_failed_ones(places: Places) -> None:
    now = starts.moment(places)
    for start in ("a", "b"):
        starts.change("demo", places, lambda old, start=start: starts.begun(old, start, now))
        state = StateOf("demo", places).write(states.LOADING)
        assert (state["start"], state["failed"]) == (start, {"a": 0, "b": 1}[start])
        starts.change("demo", places, lambda old: starts.failed(old, "status 1"))
    # A program that judged the start before leaves this one alone.
    assert StateOf("demo", places).write(states.SERVING, after=(states.LOADING,), start="a")["state"] == "loading"
    assert StateOf("demo", places).write(states.SERVING, after=(states.LOADING,), start="b")["state"] == "serving"


def test_what_is_wanted_again_has_ended_for_a_reason(places: Places) -> None:
    written(places, "serving", "wanted: Docker restarts")
    assert StateOf("demo", places).write(states.WANTED, "it waits for spark2")["last_end"] == "Docker restarts"


def test_a_state_of_the_former_release_is_read(places: Places) -> None:
    path = Path(places.present("demo"))
    path.parent.mkdir(parents=True)
    path.write_text('{"state": "wanted", "why": "", "since": 1.5, "last_end": "", "peer": "spark2"}')
    state = states.present("demo", places)
    assert (state["peers"], state["start"], state["failed"]) == (["spark2"], "", 0)
    path.write_text('{"state": "serving", "why": "", "since": 1.5, "last_end": "", "peer": ""}')
    assert states.present("demo", places)["peers"] == []


def test_a_give_up_lasts_over_a_boot_for_what_starts_with_it(places: Places) -> None:
    starts.change("demo", places, lambda old: starts.gives_up(old, "5 failed starts"))
    assert states.present("demo", places)["state"] == "stopped"
    os.symlink("/etc/systemd/system/vllm@.service", os.path.join(places.wants, "vllm@demo.service"))
    now = states.present("demo", places)
    assert (now["state"], now["why"], now["written"]) == ("gave up", "5 failed starts", False)


@pytest.mark.parametrize(
    "torn", ['{"time": 17', "\0\0\0\0", '{"time": NaN, "state": "failed"}', '{"state": "up"}', "[1]"]
)
def test_a_line_that_was_cut_off_hides_no_other(places: Places, torn: str) -> None:
    written(places, "loading", "serving")
    with open(places.history("demo"), "a") as file:
        file.write(torn)
    assert written(places, "stopped: by hand") == [("loading", ""), ("serving", ""), ("stopped", "by hand")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "waiting", "since": 1}', '{"state": "serving"}', "\xff"])
def test_a_broken_or_missing_file_is_what_a_boot_does(places: Places, content: str) -> None:
    path = Path(places.present("demo"))
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    assert (states.present("demo", places)["state"], states.present("demo", places)["written"]) == ("stopped", False)
    os.symlink("/etc/systemd/system/vllm@.service", os.path.join(places.wants, "vllm@demo.service"))
    assert states.present("demo", places)["state"] == "wanted"
    path.unlink()
    assert states.present("demo", places)["state"] == "wanted"


def test_a_program_that_knows_less_does_not_overwrite(places: Places) -> None:
    written(places, "stopped: by hand")
    late = StateOf("demo", places).write(states.SERVING, after=(states.LOADING,))
    assert late["state"] == states.present("demo", places)["state"] == "stopped"


def test_a_reason_is_one_printable_line(places: Places) -> None:
    StateOf("demo", places).write(states.FAILED, "\x1b[31mred\n" + "x" * 500)
    why = states.present("demo", places)["why"]
    assert (why[:10], len(why)) == ("?[31mred?x", states.REASON_LENGTH + 2)
    assert why.isprintable()


def test_a_history_that_cannot_be_written_fails_nobody(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    Path(places.histories).write_text("a file in its place")
    assert StateOf("demo", places).write(states.SERVING)["state"] == "serving"
    assert states.present("demo", places)["state"] == "serving"
    assert "<4>vllm-spark: the history of deployment demo lacks its state serving" in capsys.readouterr().err
