"""A request that starts a model: the queue, the backoff, rights, the plan's list and what is refused."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from fakes.edge_cases import DEMO, OTHER, PAIR, REPLICA, SITE, SPARE, edge_of
from fakes.root_socket import RootSocket
from project_files import load_module
from vllm_spark.core import paths
from vllm_spark.core.host_file import File
from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import config, switch_request
from vllm_spark.node import edge_key, edge_switch, host_layout
from vllm_spark.node.deployment_state import ACTIVE
from vllm_spark.node.edge_key import KeyEntry
from vllm_spark.node.edge_switch import StartQueue, Worker

CLOSED = {"open": False, "switch_by_request": True}


def files_of(deployments: list[dict[str, Any]], edge: dict[str, Any]) -> dict[str, File]:
    return {file.path: file for file in switch_request.files(edge_of(deployments, edge))}


def queue(places: int = 1, stay_s: float = 60) -> StartQueue:
    return StartQueue(places, stay_s)


def code(queue: StartQueue, target: str, now: float) -> str:
    answer = queue.ask(target, f"model-{target}", now)
    assert answer.retry_s > 0
    assert json.loads(answer.body("api_error"))["error"]["code"] == answer.code
    return answer.code


def test_one_target_is_started_at_a_time_and_each_once() -> None:
    one = queue(places=2)
    assert [code(one, "a", 0), code(one, "a", 0)] == ["model_starting"] * 2
    assert (one.begin(0), one.begin(0)) == ("a", "")
    assert [code(one, target, 1) for target in ("a", "b", "b", "c", "d")] == [
        "model_starting",
        "model_waiting",
        "model_waiting",
        "model_waiting",
        "switch_queue_full",
    ]
    assert (one.waiting, one.begin(1)) == (["b", "c"], "")
    one.end("", 100)
    # The first one stays a while.
    assert (one.begin(159), one.pause(150)) == ("", 10)
    assert code(one, "b", 159) == "model_waiting"
    assert code(one, "b", 160) == "model_starting"
    assert (one.begin(160), one.waiting) == ("b", ["c"])


@pytest.mark.parametrize("places", [0, 1, 3])
def test_so_many_wait_as_the_inventory_says(places: int) -> None:
    one = queue(places)
    codes = [code(one, f"t{number}", 0) for number in range(6)]
    assert codes == ["model_starting"] + ["model_waiting"] * places + ["switch_queue_full"] * (5 - places)
    one.begin(0)
    assert len(one.waiting) == places


def test_a_failing_target_is_tried_more_and_more_seldom_and_a_success_forgets_it() -> None:
    one, now, pauses = queue(), 0.0, []
    for _ in range(8):
        assert code(one, "a", now) == "model_starting"
        assert one.begin(now) == "a"
        one.end("no memory", now)
        answer = one.ask("a", "model-a", now)
        assert (answer.code, answer.status) == ("switch_failed", 503)
        assert "model-a could not be started: no memory The next attempt" in answer.message
        assert one.begin(now) == ""
        pauses.append(answer.retry_s)
        now += answer.retry_s
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    # Another target is not affected.
    assert code(one, "b", now) == "model_starting"
    one.begin(now)
    one.end("", now)
    one.failures["b"] = edge_switch.Failure("x", now, 5)
    now += 100
    code(one, "b", now)
    one.begin(now)
    one.end("", now + 7)
    assert "b" not in one.failures
    assert one.took_s["b"] == 7


def test_the_time_that_is_left_comes_from_the_last_start() -> None:
    one = queue(stay_s=0)
    code(one, "a", 0)
    one.begin(0)
    assert one.ask("a", "m", 5).message == "m is being started: ask again."
    one.end("", 95)
    assert one.ask("a", "m", 96).message == "m has just been started: ask again."
    first = one.ask("a", "m", 200)
    assert (first.message, first.retry_s) == ("m is being started; it serves in about 95 s.", 95)
    one.begin(200)
    assert one.ask("a", "m", 260).retry_s == 35
    # It takes longer than last time.
    assert one.ask("a", "m", 900).retry_s == 1


def test_nothing_waits_for_nothing() -> None:
    one = queue()
    assert (one.begin(0), one.pause(0)) == ("", None)
    code(one, "a", 0)
    assert one.pause(0) == 0
    one.begin(0)
    code(one, "b", 0)
    # The end of the start wakes the program.
    assert one.pause(0) is None


def worker(folder: Path, script: str = "exit 0") -> Worker:
    program = folder / "vllm-switch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (folder / "other").mkdir()
    (folder / "other" / "launch").touch()
    (folder / "list").write_text(files_of([DEMO, OTHER], CLOSED)[host_layout.EDGE_SWITCH_LIST].content)
    root, lock, states = (folder / name for name in ("root.sock", "operator.lock", "states.map"))
    RootSocket(root, ["--list", str(folder / "list"), "--switch", str(program)])
    return Worker(queue(), {"other": ["m"]}, ["pair"], ACTIVE, root, lock, folder, states)


def test_the_error_of_the_switch_is_kept_as_one_short_line(tmp_path: Path) -> None:
    ended = worker(tmp_path, "printf 'first\\n\\033[31m%0400d\\nthe reason\\n' 0 >&2; exit 1").run("other", "ada")
    assert ended.endswith("0 the reason")
    assert len(ended) == edge_switch.SHOWN + 1
    assert ended.isprintable()
    assert office_error(tmp_path / "silent", "exit 3") == "vllm-switch ended with 3."
    assert "No such file" in office_error(tmp_path / "gone", "exit 0", remove="vllm-switch")
    ended = office_error(tmp_path / "no-root", "exit 0", remove="root.sock")
    assert ended == "root does not start it: [Errno 2] No such file or directory"


def office_error(folder: Path, script: str, remove: str = "") -> str:
    folder.mkdir()
    one = worker(folder, script)
    if remove:
        (folder / remove).unlink()
    return one.run("other", "ada")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "other\n",
        "other a b\n",
        "third ada\n",
        "../other ada\n",
        "-h ada\n",
        "--help ada\n",
        "other \x1b[2J\n",
    ],
)
def test_root_starts_only_a_deployment_of_the_list_for_a_person(line: str, tmp_path: Path) -> None:
    said = edge_switch.as_root(line, {"other": ["m"]}, tmp_path / "never-started")
    assert said == "This is no deployment of the list, or no person.\n2\n"
    assert "never-started" in edge_switch.as_root("other ada\n", {"other": ["m"]}, tmp_path / "never-started")


def test_an_operator_who_comes_ends_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = worker(tmp_path, f'echo "$*" > {tmp_path}/ran')
    assert one.ask("ada", "other", "m").code == "model_starting"
    one.lock.touch()
    assert one.ask("ada", "other", "m").code == "spark_held"
    one.changed.wait = lambda _=None: True  # type: ignore[method-assign,assignment]
    one.step()
    assert (one.queue.waiting, (tmp_path / "ran").exists()) == ([], False)
    one.lock.unlink()
    one.ask("a b", "other", "m")
    one.step()
    assert (tmp_path / "ran").read_text() == "other --by=a request of ada\n"
    assert capsys.readouterr().out.splitlines() == [
        "ada asked for m of other: 503 model_starting",
        "ada asked for m of other: 503 spark_held",
        "an operator holds this Spark: other will not be started",
        "- asked for m of other: 503 model_starting",
        "starting other",
        "other was started",
    ]


@pytest.mark.parametrize(("target", "model"), [("../other", "m"), ("other", "n"), ("", ""), ("-h", "m"), ("other", "")])
def test_a_name_that_is_not_of_the_plan_is_a_404_and_not_repeated(
    target: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = worker(tmp_path)
    assert one.ask("ada", target, model).status == 404
    assert (one.queue.waiting, capsys.readouterr().out) == ([], "")


def test_the_plan_lists_the_deployments_of_one_spark() -> None:
    files = files_of([DEMO, OTHER], {**CLOSED, "limits": {"switches_waiting": 2}})
    listed = files[host_layout.EDGE_SWITCH_LIST]
    assert json.loads(listed.content) == {
        "deployments": {"demo": ["model"], "other": ["other-model", "o/1"]},
        "pairs": [],
        "active_states": ["wanted", "loading", "serving", "failed"],
        "waiting": 2,
        "stay_s": 60,
    }
    assert listed.mode == "0640"
    assert set(files) == set(spark_edge.switch_files())
    assert files_of([DEMO, OTHER], {"open": False}) == {}


def test_the_list_is_what_the_program_reads(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(files_of([DEMO, OTHER], CLOSED)[host_layout.EDGE_SWITCH_LIST].content)
    read = edge_switch.read_list(tmp_path / "list")
    assert (read.queue.places, read.queue.stay_s, list(read.models)) == (4, 60, ["demo", "other"])


def test_constants_of_the_host_are_the_same_everywhere() -> None:
    assert str(edge_switch.LIST) == host_layout.EDGE_SWITCH_LIST == spark_edge.SWITCH_LIST
    assert str(edge_switch.SOCKET) == host_layout.EDGE_SWITCH_SOCKET
    assert str(edge_switch.SWITCH) == host_layout.SWITCH_PROGRAM
    unit = files_of([DEMO], CLOSED)[host_layout.EDGE_SWITCH_UNIT_FILE].content
    assert f" {host_layout.EDGE_SWITCH}\n" in unit
    assert f"Group={host_layout.EDGE_GROUP}\n" in unit
    assert f"RuntimeDirectory={Path(host_layout.EDGE_SWITCH_SOCKET).parent.name}\n" in unit


def test_a_pair_that_shares_no_spark_is_no_target() -> None:
    own = edge_of([PAIR], {**CLOSED, "names": []})
    assert switch_request.routes(own) == []
    assert "edge_switch" not in config.config(own, "192.168.1.20")


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_a_pair_that_shares_a_spark_is_known_and_no_target(host: str) -> None:
    second = {**REPLICA, "name": "second", "active": False}
    own = edge_of([PAIR, {**DEMO, "active": False}, second], CLOSED, host)
    listed = json.loads({file.path: file for file in switch_request.files(own)}[host_layout.EDGE_SWITCH_LIST].content)
    assert (list(listed["deployments"]), listed["pairs"]) == (["demo" if host == "spark1" else "second"], ["pair"])


@pytest.mark.parametrize("state", ACTIVE)
def test_no_request_stops_a_pair(tmp_path: Path, state: str) -> None:
    one = worker(tmp_path)
    one.states.write_text(f"other stopped\npair {state}\n")
    answer = one.ask("ada", "other", "m")
    assert (answer.status, answer.code, one.queue.waiting) == (503, "pair_active", [])
    assert answer.message == "m is not started: this Spark is a part of the pair pair, which no request stops."
    one.states.write_text("other stopped\npair stopped\npair-2 serving\n")
    assert one.ask("ada", "other", "m").code == "model_starting"


def test_a_model_that_loads_by_itself_is_not_started_again(tmp_path: Path) -> None:
    one = worker(tmp_path)
    one.states.write_text("other loading\n")
    assert (one.ask("ada", "other", "m").code, one.queue.waiting) == ("model_loading", [])
    one.states.write_text("other gave_up\n")
    assert one.ask("ada", "other", "m").code == "model_starting"


def test_a_model_that_is_lent_is_not_started_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(tmp_path)
    monkeypatch.setattr(edge_switch.time, "time", lambda: 1800000000.0)
    for until, left in ((1800003600, 3600), (1800000030, 60), (1799990000, 60)):
        one.states.write_text(f"demo serving\nother lent_{until}\n")
        answer = one.ask("ada", "other", "m")
        assert (answer.status, answer.code, answer.retry_s, one.queue.waiting) == (503, "lent", left, [])
        assert answer.message == f"m is not started: its memory is lent for {left} s."


def test_a_model_that_waits_says_for_what() -> None:
    one = queue(places=2)
    for target in ("a", "b"):
        one.ask(target, "m", 0)
    assert one.ask("b", "m", 0).message == "m waits: a was asked for first."
    one.begin(0)
    assert one.ask("b", "m", 1).message == "m waits: a is being started."
    one.end("", 10)
    assert one.ask("b", "m", 30).message == (
        "m waits: a was started 20 s ago, and stays for 60 s (vllm_edge.limits.switch_stay_s)."
    )


def test_an_open_site_has_no_such_requests() -> None:
    with pytest.raises(RefusedError, match="switch_by_request: true, and open is true"):
        edge_of([DEMO], {"open": True, "switch_by_request": True})


def test_every_spark_of_a_site_has_the_setting_alike() -> None:
    from vllm_spark.inventory.edge_backends import OtherEdge  # noqa: PLC0415

    other = {"spark2": OtherEdge({"open": False, "site": SITE}, "/site/edge")}
    with pytest.raises(RefusedError, match="switch_by_request of spark2 is not that of spark1"):
        edge_of([DEMO, REPLICA], {**CLOSED, "site": SITE}, others=other)


def test_a_site_forwards_to_the_spark_of_the_deployment() -> None:
    own = edge_of([DEMO, OTHER, REPLICA, SPARE | {"active": False}], {**CLOSED, "site": SITE})
    assert [(route.backend, route.deployments, route.address) for route in switch_request.routes(own)] == [
        ("edge_switch", ("demo", "other"), ""),
        ("edge_switch_1", ("replica", "spare"), "192.168.1.21:9465"),
    ]


@pytest.mark.parametrize(
    ("state", "name", "right", "expected"),
    [
        ("present", "ada", False, {"2": "bob/switch", "9": "ada"}),
        ("present", "bob", False, {"1": "ada", "9": "bob"}),
        ("present", "bob", True, {"1": "ada", "9": "bob/switch"}),
        ("absent", "bob", False, {"1": "ada"}),
        ("absent", "bo", False, {"1": "ada", "2": "bob/switch"}),
    ],
)
def test_a_right_comes_and_goes_with_its_key(state: str, name: str, right: bool, expected: dict[str, str]) -> None:
    module = load_module("vllm_edge_key_file")
    assert module.desired({"1": "ada", "2": "bob/switch"}, state, KeyEntry(name, right), "9") == expected


def test_who_may_switch_is_listed(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.map")
    spark_edge.write_keys({"2": "bob/switch", "1": "ada"}, file)
    keys = spark_edge.read_keys(file)
    assert (edge_key.persons(keys), spark_edge.may_switch(keys)) == (["ada", "bob"], ["bob"])


# What the key has, which vllm_edge the edge here was deployed with (None: an older toolkit), and why it is refused.
WAITS: list[tuple[dict[str, Any], dict[str, Any] | None, str]] = [
    ({"may_switch": True}, None, "is of an older toolkit"),
    ({"may_switch": True}, {}, ""),
    ({"tokens_a_day": 5}, None, "is of an older toolkit"),
    ({"tokens_a_day": 5}, {}, ""),
    ({"class": "batch"}, None, "is of an older toolkit"),
    ({"class": "batch"}, {}, "has no share for keys of the class batch — expected: vllm_edge.fair true"),
    ({"class": "batch"}, {"fair": True}, ""),
    ({}, None, ""),
]


@pytest.mark.parametrize("case", WAITS)
def test_what_a_key_has_waits_for_an_edge_that_knows_it(
    case: tuple[dict[str, Any], dict[str, Any] | None, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more, settings, why = case
    edge = edge_of([DEMO], {"open": False, **(settings or {})})
    texts = {"CONFIG": config.config(edge, "spark1"), "ROUTE": config.route(edge)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text if settings is not None else "var(txn.key),field(1,/)\n")
        monkeypatch.setattr(spark_edge, name, str(tmp_path / name))
    written: list[dict[str, str]] = []
    monkeypatch.setattr(spark_edge, "read_keys", lambda: {"1": "ada"})
    monkeypatch.setattr(spark_edge, "write_keys", written.append)
    monkeypatch.setattr(spark_edge, "apply_keys", lambda _: True)
    arguments = {"state": "present", "name": "bob", "hash": "9", **more}
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        load_module("vllm_edge_key_file").main()
    result = json.loads(capsys.readouterr().out)
    entry = KeyEntry("bob", "may_switch" in more, "class" in more, more.get("tokens_a_day", 0))
    assert ended.value.code == (1 if why else 0)
    assert written == ([] if why else [{"1": "ada", "9": str(entry)}])
    assert why in result.get("msg", "")


def test_a_connection_without_a_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have a place, and nothing else ends them before the unit's own deadline, which is for the slowest start."""
    listed = tmp_path / "switch.json"
    document = {"waiting": 1, "stay_s": 1, "deployments": {}, "pairs": [], "active_states": []}
    listed.write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(edge_switch, "CLIENT_TIMEOUT_S", 1.0)
    silent, held = os.pipe()
    with open(silent, encoding="utf-8") as standard_input, open(held, "w", encoding="utf-8"):
        monkeypatch.setattr(sys, "stdin", standard_input)
        with pytest.raises(SystemExit) as ended:
            edge_switch.main(["--as-root", f"--list={listed}"])
    assert ended.value.code == 0
    unit = (paths.TEMPLATES / "vllm-switch-root@.service").read_text(encoding="utf-8")
    found = re.search(r"^RuntimeMaxSec=(\d+)$", unit, re.MULTILINE)
    assert found
    assert int(found[1]) > edge_switch.SWITCH_TIMEOUT_S


def test_a_pair_that_fits_beside_the_target_is_no_hindrance(tmp_path: Path) -> None:
    one = worker(tmp_path)
    one.states.write_text("pair serving\n")
    folder = one.config_dir / "other"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deployed.json").write_text('{"beside": ["pair"]}')
    assert one.ask("ada", "other", "m").code == "model_starting"
    (folder / "deployed.json").write_text('{"beside": ["third"]}')
    assert one.ask("ada", "other", "m").code == "pair_active"
