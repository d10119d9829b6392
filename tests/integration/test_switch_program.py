"""vllm-switch on a Spark, with a fake systemctl and a fake engine on the port that two deployments share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_http import QuietServer
from vllm_spark.node import deployment_state, edge_admin, lease, starts, switch
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.lease import Lease
from vllm_spark.node.state_writer import StateOf

GIB = 1 << 30

# Stores its units in units.json in its own folder and records its arguments. A unit of `dies` fails at its start.
SYSTEMCTL = """#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
kept = json.loads((here / "units.json").read_text())
verb, *words = sys.argv[1:]
names = [word for word in words if word.startswith("vllm@")]
(here / "calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
if verb == "show":
    print("\\n\\n".join("\\n".join(f"{k}={v}" for k, v in {"Id": n, **kept["units"][n]}.items()) for n in names))
for name in names:
    unit = kept["units"][name]
    if verb in ("start", "restart"):
        unit["ActiveState"] = "failed" if name in kept["dies"] else "active"
        unit["Result"] = "exit-code" if name in kept["dies"] else "success"
    elif verb == "stop":
        unit["ActiveState"] = "inactive"
    elif verb in ("enable", "disable"):
        unit["UnitFileState"] = verb + "d"
if verb == "stop" and kept["stuck"]:
    sys.exit("Job for a stop timed out")
(here / "units.json").write_text(json.dumps(kept))
"""


class FakeSpark:
    """A fake Spark: its deployments, the responses of their engines, and its free memory."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.available = 100 * GIB
        self.busy = [0.0]
        self.served: dict[str, str] = {}
        self.requested: list[tuple[str, str]] = []
        self.kept: dict[str, Any] = {"units": {}, "dies": [], "stuck": False}
        self.write()

    def add(self, name: str, active: bool = False, api: bool = True, **room: float) -> None:
        config = self.folder / "etc" / name
        config.mkdir(parents=True)
        (config / "launch").write_text("#!/bin/sh\n")
        (config / "deployed.json").write_text(json.dumps({"recipe": f"r-{name}", "port": self.port, "room": room}))
        (config / "gates.json").write_text(json.dumps({"deadline_s": 60, "unit": f"vllm@{name}.service"}))
        if api:
            requested = {"address": "127.0.0.1", "port": self.port, "model": f"m-{name}", "deadline_s": 60}
            (config / "liveness.json").write_text(json.dumps(requested))
            (config / "env").write_text("VLLM_API_KEY=key\n")
        self.kept["units"][f"vllm@{name}.service"] = {
            "ActiveState": "active" if active else "inactive",
            "UnitFileState": "enabled" if active else "disabled",
            "Result": "success",
        }
        self.write()

    def write(self) -> None:
        (self.folder / "units.json").write_text(json.dumps(self.kept))

    def unit(self, name: str) -> tuple[str, str]:
        kept = json.loads((self.folder / "units.json").read_text())["units"][f"vllm@{name}.service"]
        return kept["ActiveState"], kept["UnitFileState"]

    def running(self) -> list[str]:
        units = json.loads((self.folder / "units.json").read_text())["units"]
        return [name[5:-8] for name, unit in units.items() if unit["ActiveState"] == "active"]

    def calls(self) -> list[str]:
        """Return the calls of systemctl except queries."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [line for line in lines if not line.startswith("show")]

    def answer(self, path: str, body: str) -> tuple[int, str]:
        """Respond like vLLM: the running model answers requests with its own name only."""
        if path == "/metrics":
            count = self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]
            return (
                200,
                f'vllm:num_requests_running{{engine="0"}} {count}\nvllm:num_requests_waiting{{engine="0"}} 0.0\n',
            )
        model = json.loads(body)["model"]
        names = {self.served.get(name, f"m-{name}") for name in self.running()}
        self.requested.append((model, ",".join(sorted(names))))
        return (200, '{"choices": [{"text": "a"}]}') if model in names else (404, "NotFoundError")


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*fake.answer(self.path, ""))

        def do_POST(self) -> None:
            self.reply(*fake.answer(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: Any) -> None:
            del words

    server = QuietServer(("127.0.0.1", 0), Engine)
    fake = FakeSpark(tmp_path, server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setattr(switch, "CONFIG_DIR", tmp_path / "etc")
    places = Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))
    monkeypatch.setattr(switch, "PLACES", places)
    monkeypatch.setattr(switch, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(switch, "memory", lambda: (128 * GIB, fake.available))
    monkeypatch.setattr(switch.os, "geteuid", lambda: 0)
    yield fake
    server.shutdown()


def test_the_other_deployment_replaces_the_first(spark: FakeSpark, capsys: pytest.CaptureFixture[str]) -> None:
    spark.add("a", active=True)
    spark.add("b", share=0.5, bytes=0, floor_bytes=8 * GIB)
    assert switch.main(["--inside", "b"]) == 0
    assert (spark.unit("a"), spark.unit("b")) == (("inactive", "disabled"), ("active", "enabled"))
    assert [call.split()[0] for call in spark.calls()] == [
        "stop",
        "reset-failed",
        "reset-failed",
        "start",
        "disable",
        "enable",
    ]
    # Each engine got requests for its own model only.
    assert {model for model, _ in spark.requested} == {"m-b"}
    message = capsys.readouterr().out
    assert "b answers" in message
    for phase in ("stop ", "memory back ", "start ", "until a token ", "Drained for "):
        assert phase in message


@pytest.mark.parametrize(
    ("dies", "part"), [(True, "ended (exit-code)"), (False, "its API answers status 404: NotFoundError")]
)
def test_a_failed_switch_restores_the_old_deployment(
    dies: bool, part: str, spark: FakeSpark, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.add("a", active=True)
    spark.add("b")
    if dies:
        spark.kept["dies"] = ["vllm@b.service"]
    else:
        spark.served["b"] = "m-of-another"
    spark.write()
    assert switch.main(["--inside", "b"]) == 1
    assert spark.unit("a") == ("active", "enabled")
    assert spark.unit("b") == ("inactive", "disabled")
    message = capsys.readouterr().out
    assert part in message
    assert "a, which ran before, serves again" in message


def test_without_enough_memory_only_the_old_deployment_starts(
    spark: FakeSpark, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.add("a", active=True, share=0.9, bytes=0, floor_bytes=0)
    spark.add("b", share=0, bytes=90 * GIB, floor_bytes=20 * GIB)
    assert switch.main(["--inside", "b", "--memory-s", "0.05"]) == 1
    assert "start vllm@b.service" not in spark.calls()
    assert spark.unit("a") == ("active", "enabled")
    message = capsys.readouterr().out
    assert "100.0 GiB of memory are available" in message
    assert "b needs 110.0" in message


def test_the_switch_waits_for_memory_that_is_freed_late(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.add("b", share=0, bytes=50 * GIB, floor_bytes=GIB)
    seen = iter([10 * GIB, 30 * GIB, 51 * GIB])
    monkeypatch.setattr(switch, "memory", lambda: (128 * GIB, next(seen)))
    done = switch.change([], "b", 60)
    assert (done["ok"], list(seen)) == (True, [])


def test_a_server_that_runs_already_holds_its_memory_itself(spark: FakeSpark) -> None:
    spark.add("b", active=True, share=0, bytes=120 * GIB, floor_bytes=GIB)
    done = switch.change([], "b", 0.0, "restart")
    assert (done["ok"], spark.calls()[-1]) == (True, "restart vllm@b.service")


@pytest.mark.parametrize(
    ("busy", "within_s", "left"),
    [([2.0, 1.0, 0.0], 60.0, 0), ([3.0], 0.05, 3), ([0.0], 60.0, 0)],
)
def test_drain(busy: list[float], within_s: float, left: int, spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.busy = busy
    assert switch.drain("a", within_s, "for b")["left"] == left
    assert len(spark.busy) == 1  # every value but the last was read


def test_a_deployment_without_an_api_is_not_drained(spark: FakeSpark) -> None:
    spark.add("worker", api=False)
    spark.add("dead")
    path = spark.folder / "etc" / "dead" / "liveness.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "port": 1}))
    assert [switch.drain(name, 5, "for b")["left"] for name in ("worker", "dead")] == [0, 0]


def test_a_stop_that_fails_starts_nothing(spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.add("b")
    spark.kept["stuck"] = True
    spark.write()
    done = switch.change(["a"], "b", 1)
    assert (done["ok"], done["said"]) == (False, "Job for a stop timed out")
    assert [call.split()[0] for call in spark.calls()] == ["stop"]


def test_a_failed_switch_restores_the_deployment_that_an_interrupted_run_stopped(spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.add("b")
    spark.kept["units"]["vllm@a.service"]["ActiveState"] = "inactive"  # stopped and still enabled
    spark.kept["dies"] = ["vllm@b.service"]
    spark.write()
    assert switch.main(["--inside", "b"]) == 1
    assert spark.unit("a") == ("active", "enabled")


def test_a_rank_without_an_api_waits_for_its_pair(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.add("pair", api=False)
    monkeypatch.setattr(switch, "PEER_S", 0.05)
    spark.kept["units"]["vllm@pair.service"]["ActiveState"] = "active"
    spark.write()
    state = StateOf("pair", switch.PLACES)
    state.write("serving", peers=["spark2"])
    assert switch.ready("pair") == ""
    state.write("wanted", "it waits for spark2")
    assert "still wanted: it waits for spark2, after " in switch.ready("pair")


def test_what_is_lent_is_not_switched_to(spark: FakeSpark, capsys: pytest.CaptureFixture[str]) -> None:
    spark.add("a", active=True)
    spark.add("b")
    lease.write(Lease("spark1", 40, 1800000000, "ada", ("b",)), switch.PLACES)
    StateOf("b", switch.PLACES).write("lent", "until 18:30")
    assert switch.main(["--inside", "b", "--by=ada"]) == 2
    assert "b is lent: until 18:30 — expected: a deployment that is not lent. Fix: vllm-spark lend spark1 --end" in (
        capsys.readouterr().out
    )
    assert spark.running() == ["a"]


def test_what_is_replaced_drains_and_says_for_what(spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.add("b")
    StateOf("a", switch.PLACES).write("serving")
    assert switch.main(["--inside", "b", "--by=a request of ada"]) == 0
    # The unit writes that it is stopped (unit_events), with this reason.
    assert [(one["state"], one["why"]) for one in deployment_state.history("a", switch.PLACES)] == [
        ("serving", ""),
        ("draining", "for b, by a request of ada"),
    ]


def test_a_stop_that_fails_leaves_it_serving(spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.kept["stuck"] = True
    spark.write()
    StateOf("a", switch.PLACES).write("serving")
    switch.drain("a", 0.0, "for b")
    assert not switch.change(["a"], "", 1)["ok"]
    assert deployment_state.present("a", switch.PLACES)["state"] == "serving"


def test_a_replaced_deployment_that_gave_up_is_stopped(spark: FakeSpark) -> None:
    spark.add("a")
    spark.add("b", active=True)
    StateOf("a", switch.PLACES).write("gave up", "5 starts")
    (spark.folder / "run" / "operator.lock").write_text('{"user": "ann", "controller": "desk", "verb": "switch"}')
    assert switch.main(["--step=settle", "--stop=a", "b"]) == 0
    now = deployment_state.present("a", switch.PLACES)
    assert (now["state"], now["why"]) == ("stopped", "by ann@desk with switch")


@pytest.mark.parametrize("argv", [["--step=settle", r"--stop=\1"], [r"\1"], ["../a"]])
def test_what_is_no_name_of_a_deployment_leaves_no_folder(
    spark: FakeSpark, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(spark.folder.rglob("*"))
    with pytest.raises(SystemExit):
        switch.main(argv)
    assert "is not a deployment's name. Fix:" in capsys.readouterr().err
    assert sorted(spark.folder.rglob("*")) == before


def test_a_switch_by_hand_ends_with_the_states_that_it_reports(spark: FakeSpark) -> None:
    spark.add("a")
    spark.kept["units"]["vllm@a.service"]["UnitFileState"] = "enabled"
    spark.add("b")
    spark.write()
    StateOf("a", switch.PLACES).write("gave up", "5 starts")
    StateOf("b", switch.PLACES).write("loading")
    assert switch.main(["--inside", "b", "--by=ada"]) == 0
    found = [deployment_state.present(name, switch.PLACES) for name in ("a", "b")]
    assert [(now["state"], now["why"]) for now in found] == [("stopped", "for b, by ada"), ("serving", "")]


def test_a_pair_that_gave_up_is_restarted_because_its_supervisor_runs(spark: FakeSpark) -> None:
    spark.add("pair", active=True)
    state = StateOf("pair", switch.PLACES)
    state.write("gave up", "5 failed starts in a row", peers=["spark2"])
    assert switch.ready("pair").startswith("vllm@pair.service ended (success)")
    spark.served["pair"] = "m-pair"
    assert switch.change([], "pair", 1.0)["ok"]
    assert spark.calls()[-1] == "restart vllm@pair.service"


def test_two_failed_starts_end_the_wait(spark: FakeSpark) -> None:
    spark.add("a", active=True)
    spark.served["a"] = "m-of-another"
    starts.change("a", switch.PLACES, lambda old: starts.replace(old, count=starts.Count(failures=("1", "2"))))
    StateOf("a", switch.PLACES).write("failed", "its container ended with status 1")
    assert "ended (its container ended with status 1)" in switch.ready("a")


def test_steps_print_json(spark: FakeSpark, capsys: pytest.CaptureFixture[str]) -> None:
    spark.add("a", active=True)
    spark.add("b")
    assert switch.main(["--step=drain", "a"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == 0
    assert switch.main(["--inside", "--step=change", "--stop=a", "b"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["ok"], done["said"], done["gates"]["unit"]) == (True, "", "vllm@b.service")
    # A boot starts the old one until the gates have passed.
    assert (spark.unit("a"), spark.unit("b")) == (("inactive", "enabled"), ("active", "disabled"))
    assert switch.main(["--step=settle", "--stop=a", "b"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert (spark.unit("a"), spark.unit("b")) == (("inactive", "disabled"), ("active", "enabled"))


def test_a_unit_that_cannot_be_enabled_fails_the_step(
    spark: FakeSpark, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.add("b", active=True)
    monkeypatch.setattr(switch, "systemctl", lambda *_: "no such unit")
    assert switch.main(["--step=settle", "b"]) == 1
    assert json.loads(capsys.readouterr().out) == {"ok": False, "said": "no such unit"}


def test_a_spark_that_only_stops_its_rank_starts_nothing(spark: FakeSpark, capsys: pytest.CaptureFixture[str]) -> None:
    spark.add("a", active=True)
    assert switch.main(["--inside", "--step=change", "--stop=a"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == ""
    assert spark.running() == []


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["--inside", "c"], 2, "c is not on this Spark — expected: one of a, b"),
        (["--inside", "a"], 0, "a runs already"),
        ([], 0, "a           serving  starts   r-a"),
    ],
)
def test_messages_of_the_command(
    words: list[str], status: int, part: str, spark: FakeSpark, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.add("a", active=True)
    spark.add("b")
    StateOf("a", switch.PLACES).write("serving")
    assert switch.main(words) == status
    assert part in capsys.readouterr().out
    assert spark.calls() == []


def test_only_root_switches(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.add("b")
    monkeypatch.setattr(switch.os, "geteuid", lambda: 1000)
    assert switch.main(["b"]) == 2
    assert "sudo vllm-switch b" in capsys.readouterr().out


def test_the_switch_waits_for_the_lock_of_the_spark(spark: FakeSpark, capsys: pytest.CaptureFixture[str]) -> None:
    spark.add("a", active=True)
    spark.add("b")
    (spark.folder / "run").mkdir()
    (spark.folder / "run" / "operator.lock").write_text(
        json.dumps({"user": "ann", "controller": "desk", "verb": "deploy"})
    )
    assert switch.main(["--inside", "b"]) == 2
    assert "this Spark is held by ann@desk with deploy" in capsys.readouterr().out
    assert spark.running() == ["a"]
    # The verb holds the lock, so its steps do not check it.
    assert switch.main(["--step=drain", "a"]) == 0
    assert switch.main(["--inside", "b", "--anyway"]) == 0
    assert spark.running() == ["b"]


@pytest.mark.parametrize(("own", "status", "runs"), [("inactive", 0, True), ("activating", 2, False)])
def test_the_switch_runs_in_a_separate_unit(
    own: str, status: int, runs: bool, spark: FakeSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    (spark.folder / "systemctl").write_text(f"#!/bin/sh\necho {own}\n")
    (spark.folder / "systemd-run").write_text('#!/bin/sh\necho "ran: $*"\n')
    (spark.folder / "systemd-run").chmod(0o755)
    assert switch.main(["b", "--memory-s", "5"]) == status
    message = capfd.readouterr().out
    assert ("--unit=vllm-switch.service" in message) == runs
    assert ("--inside b --memory-s 5" in message) == runs
    assert ("another switch runs on this Spark" in message) != runs


def shared(spark: FakeSpark, available: int) -> None:
    """Add three deployments that fit together, and one that fits beside none. Each of the three holds 20 GiB."""
    for name, active in (("a", True), ("b", True), ("c", False)):
        spark.add(name, active=active, share=0.1, bytes=20 * GIB, floor_bytes=8 * GIB)
        record = spark.folder / "etc" / name / "deployed.json"
        others = [other for other in ("a", "b", "c") if other != name]
        record.write_text(json.dumps({**json.loads(record.read_text()), "beside": others}))
    spark.add("big", share=0.8, bytes=0, floor_bytes=8 * GIB)
    spark.available = available


def test_a_deployment_that_fits_beside_the_others_stops_none(spark: FakeSpark) -> None:
    shared(spark, 50 * GIB)
    spark.served = dict.fromkeys(("a", "b", "c"), "m-c")
    assert switch.main(["--inside", "c"]) == 0
    assert sorted(spark.running()) == ["a", "b", "c"]
    assert [call.split()[0] for call in spark.calls()] == ["reset-failed", "start", "enable"]


def test_the_least_recently_used_gives_way_where_memory_is_short(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the plan does not know holds 20 GiB."""
    shared(spark, 18 * GIB)
    spark.served = dict.fromkeys(("a", "b", "c"), "m-c")
    monkeypatch.setattr(edge_admin, "idle_s", {"a": 5.0, "b": 600.0, "c": float("inf")}.__getitem__)
    stops = switch.systemctl

    def systemctl(*argv: str) -> str:
        spark.available += 20 * GIB * (argv[0] == "stop" and any(word.startswith("vllm@") for word in argv))
        return stops(*argv)

    monkeypatch.setattr(switch, "systemctl", systemctl)
    assert switch.main(["--inside", "c"]) == 0
    assert sorted(spark.running()) == ["a", "c"]


def test_nobody_gives_way_if_all_of_them_would_not_do(spark: FakeSpark) -> None:
    shared(spark, -30 * GIB)
    assert switch.main(["--inside", "--memory-s=0.05", "c"]) == 1
    assert sorted(spark.running()) == ["a", "b"]


def test_what_fits_beside_none_replaces_all_and_all_come_back(spark: FakeSpark) -> None:
    shared(spark, 120 * GIB)
    spark.kept["dies"] = ["vllm@big.service"]
    spark.write()
    assert switch.main(["--inside", "big"]) == 1
    started = [call for call in spark.calls() if call.startswith(("start", "restart"))]
    assert started == ["start vllm@big.service", "start vllm@a.service", "start --no-block vllm@b.service"]
