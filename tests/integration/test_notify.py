"""The program that tells the owner, with real targets: a receiver of HTTP in a process of its own, and a command. A
script stands in for systemctl; it starts the real program as the unit does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import loopback
from fakes.fake_http import own_certificate
from vllm_spark.core import paths
from vllm_spark.inventory import notify as inventory
from vllm_spark.node import delivery, notify, troubles
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf

RECEIVER = paths.ROOT / "molecule" / "shared" / "files" / "receiver.py"
NAME, SECRET = "NTFY_TOKEN", "tk_7Hq2v9secretsecret"
TOPIC = "/spark-5f1c"
# `show` prints the units, `start` runs the program as the unit does.
SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then cat "$0.show" 2>/dev/null; exit 0; fi
[ ! -e "$0.fails" ] || {{ cat "$0.fails" >&2; exit 1; }}
echo "$@" >>"$0.started"
exec {python} -c "import runpy, sys; sys.argv = ['notify']; sys.path.insert(0, '{src}'); import json, pathlib
from vllm_spark.node import notify
from vllm_spark.node.deployment_state import Places
places = json.load(open('{folder}/places.json'))
notify.PLACES = Places(**places['places'])
for name in ('SETTINGS', 'KEPT', 'TEST'): setattr(notify, name, pathlib.Path(places[name]))
notify.CERTIFICATE = places['CERTIFICATE']
sys.exit(notify.main([]))"
"""
EDGE = "Id=vllm-edge.service\nActiveState={}\nUnitFileState=enabled\n\nId=vllm-edge-route.service\nActiveState=active\n"


class Receiver:
    """A receiver and its messages."""

    def __init__(self, file: Path, port: int, scheme: str) -> None:
        self._file, self.url = file, f"{scheme}://127.0.0.1:{port}"

    def answers(self, status: int) -> None:
        self._file.with_name(f"{self._file.name}.status").write_text(str(status))

    @property
    def got(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []


@contextmanager
def receiving(folder: Path, certificate: str = "") -> Iterator[Receiver]:
    words = ["--certificate", certificate] if certificate else []
    command = [sys.executable, str(RECEIVER), str(folder / "got"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield Receiver(folder / "got", int(process.stdout.readline()), "https" if certificate else "http")
        finally:
            process.kill()


class Spark:
    """A Spark in a folder, with the deployment `chat`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.places = Places(*(str(folder / name) for name in ("run", "states", "wants", "etc")))
        self.kept = folder / "notify" / "kept.json"
        own = {"SETTINGS": folder / "etc" / "notify.json", "KEPT": self.kept, "TEST": folder / "notify" / "test"}
        for name, path in own.items():
            monkeypatch.setattr(notify, name, path)
        monkeypatch.setattr(notify, "PLACES", self.places)
        monkeypatch.setattr(notify, "CERTIFICATE", str(folder / "tls.pem"))
        names = ("run", "histories", "wants", "config")
        described = {name: str(path) for name, path in own.items()} | {"CERTIFICATE": str(folder / "tls.pem")}
        described |= {"places": {name: getattr(self.places, name) for name in names}}  # type: ignore[dict-item]
        (folder / "places.json").write_text(json.dumps(described))
        (folder / "etc" / "chat").mkdir(parents=True)
        (folder / "etc" / "chat" / "launch").touch()
        (folder / "etc" / "chat" / "deployed.json").write_text(json.dumps({"rank": 0}))
        (folder / "etc" / "chat" / "gates.json").write_text(json.dumps({"deadline_s": 600}))
        (folder / "notify").mkdir()
        script = SYSTEMCTL.format(python=sys.executable, src=paths.ROOT / "src", folder=folder)
        (folder / "systemctl").write_text(script)
        (folder / "systemctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)

    def set_up(self, **variable: Any) -> None:
        """Write the settings as a deploy does."""
        checked = inventory.parse(variable, {"NTFY_TOKEN": True})
        notify.SETTINGS.write_text(inventory.settings(checked, "spark1", {"NTFY_TOKEN": SECRET}))

    def does(self, state: str, why: str = "", **more: Any) -> None:
        StateOf("chat", self.places).write(state, why, **more)

    def looks(self) -> dict[str, Any]:
        """Run the program once. Returns what it keeps."""
        assert notify.main([]) == 0
        return dict(json.loads(self.kept.read_text()))

    def later(self) -> None:
        """Let the pause after a failure be over."""
        kept = json.loads(self.kept.read_text())
        kept["failure"]["next"] = 0
        self.kept.write_text(json.dumps(kept))


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(tmp_path, monkeypatch)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path) as running:
        yield running


def test_a_topic_of_ntfy_gets_a_trouble_once_and_its_end(spark: Spark, receiver: Receiver) -> None:
    spark.set_up(url=receiver.url + TOPIC, secret=NAME)
    spark.does("serving")
    spark.looks()
    spark.does("gave up", "5 starts within 60 min, the last ended because of a wrong flag")
    for _ in range(3):
        spark.looks()
    spark.does("loading")
    spark.looks()
    spark.does("serving")
    assert spark.looks()["wait"] == []
    gave_up, again = receiver.got
    assert gave_up["path"] == TOPIC
    assert gave_up["headers"]["Authorization"] == f"Bearer {SECRET}"
    assert gave_up["headers"]["Title"] == "chat on spark1 gave up"
    assert "the last ended because of a wrong flag. Fix: `vllm-spark collect -l spark1`" in gave_up["body"]
    assert (gave_up["headers"]["Priority"], again["headers"]["Priority"]) == ("4", "3")
    assert again["headers"]["Title"] == "chat on spark1 serves again"


def test_a_webhook_gets_every_field(spark: Spark, receiver: Receiver) -> None:
    spark.set_up(url=receiver.url, kind="webhook")
    spark.does("gave up", "no “quote” is lost")
    spark.looks()
    (got,) = receiver.got
    assert got["headers"]["Content-Type"] == "application/json"
    assert "Authorization" not in got["headers"]
    document = json.loads(got["body"])
    assert document["since"].endswith("Z")
    assert document["text"].startswith("chat on spark1 gave up. Since ")
    assert document | {"since": "", "text": ""} == {
        "schema": "vllm-spark/message/1",
        "event": "gave-up",
        "what": "chat on spark1 gave up",
        "why": "no “quote” is lost",
        "since": "",
        "deployment": "chat",
        "host": "spark1",
        "fix": "`vllm-spark collect -l spark1` has the cause; `vllm-spark deploy` starts it again.",
        "resolved": False,
        "text": "",
    }


def test_a_hang_between_two_looks_is_found_in_the_history(spark: Spark, receiver: Receiver) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    spark.does("failed", "it hung: of a time before the first look")
    spark.does("serving")
    spark.looks()
    spark.does("failed", "it hung: 2 requests for a token had no answer (status 0)")
    spark.does("loading")
    spark.does("serving")
    spark.looks()
    titles = [got["headers"]["Title"] for got in receiver.got]
    assert titles == ["chat on spark1 hung and is started again", "chat on spark1 serves again"]


def test_a_command_gets_text_fields_and_secret(spark: Spark, tmp_path: Path) -> None:
    program = tmp_path / "tell"
    program.write_text(f'#!/bin/sh\n{{ cat; env; echo "$@"; }} >{tmp_path}/told\n')
    program.chmod(0o755)
    spark.set_up(command=[str(program), "--to", "ben"], secret=NAME)
    spark.does("gave up", "because")
    assert spark.looks()["wait"] == []
    told = (tmp_path / "told").read_text()
    assert told.startswith("chat on spark1 gave up\n\nSince ")
    assert told.endswith("--to ben\n")
    assert {"VLLM_NOTIFY_EVENT=gave-up", "VLLM_NOTIFY_RESOLVED=False", f"NTFY_TOKEN={SECRET}"} <= set(told.splitlines())


# Name -> the target, the status of the receiver, and what the journal says. {refused}: a port that refuses.
FAILURES: dict[str, tuple[dict[str, Any], int, str]] = {
    "status": ({"url": "{receiver}/topic"}, 403, "it answers status 403 Forbidden"),
    "redirect": ({"url": "{receiver}/topic"}, 302, "it answers status 302 Found"),
    "name": ({"url": "http://nobody.invalid/topic"}, 200, "Name or service not known|Temporary failure|No address"),
    "refused": ({"url": "http://127.0.0.1:{refused}/topic"}, 200, "Connection refused"),
    "no TLS": ({"url": "https://127.0.0.1:{port}/topic"}, 200, "WRONG_VERSION_NUMBER|record layer"),
    "edited by hand": ({"url": "http://[:/topic"}, 200, "a character that cannot be sent"),
    "no program": ({"command": ["/nonexistent/tell"]}, 200, "No such file or directory"),
    "command": (
        {"command": ["/bin/sh", "-c", "echo first; echo it says $NTFY_TOKEN >&2; exit 3"]},
        200,
        "it ended with status 3: it says <masked>",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_in_the_journal_without_secret_and_the_message_waits(
    name: str, spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    target, status, why = FAILURES[name]
    receiver.answers(status)
    with loopback.refusing_port() as refused:
        found = {**target}
        if "url" in found:
            ports = {"{refused}": str(refused), "{port}": receiver.url.rpartition(":")[2], "{receiver}": receiver.url}
            for word, value in ports.items():
                found["url"] = found["url"].replace(word, value)
        shown = found["command"][0] if "command" in found else found["url"].removesuffix("/topic")
        settings = {**found, "kind": "ntfy", "secret": NAME, "value": SECRET, "host": "spark1", "target": shown}
        notify.SETTINGS.write_text(json.dumps(settings))
        spark.does("gave up", "because")
        kept = spark.looks()
    said = capsys.readouterr().err
    assert any(text in said for text in why.split("|")), said
    assert said.startswith(f"<4>vllm-spark: {shown} took no message, so 1 wait: ")
    assert said.count("\n") == 1
    assert said.endswith("Fix: vllm-spark notify --test. See docs/runbooks/notify.md\n")
    assert SECRET not in said + json.dumps(kept)
    assert "/topic" not in said
    assert [waiting["event"] for waiting in kept["wait"]] == ["gave-up"]


def test_a_certificate_that_the_spark_does_not_trust(
    spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_certificate(tmp_path)
    (tmp_path / "both.pem").write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    with receiving(tmp_path, str(tmp_path / "both.pem")) as receiver:
        spark.set_up(url=receiver.url + TOPIC)
        spark.does("gave up")
        spark.looks()
        assert receiver.got == []
    assert "this Spark does not trust its certificate: self-signed certificate" in capsys.readouterr().err


def test_what_waits_survives_a_boot_and_comes_in_order(
    spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    receiver.answers(503)
    spark.does("gave up")
    spark.looks()
    first = json.loads(spark.kept.read_text())["failure"]
    # The pause is not over: nothing is sent, and the journal has no second line.
    spark.looks()
    assert len(receiver.got) == 1
    assert capsys.readouterr().err.count("wait") == 1
    spark.later()
    spark.looks()
    second = json.loads(spark.kept.read_text())["failure"]
    assert (first["tries"], second["tries"]) == (1, 2)
    # A boot empties /run.
    os.unlink(spark.places.present("chat"))
    receiver.answers(200)
    spark.does("loading")
    spark.does("serving")
    spark.later()
    assert spark.looks() | {"memory": {}} == {"memory": {}, "wait": [], "failure": {}, "beat": ""}
    titles = [got["headers"]["Title"] for got in receiver.got if got["status"] == 200]
    assert titles == ["chat on spark1 gave up", "chat on spark1 serves again"]


def test_the_oldest_of_many_messages_makes_room(
    spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    receiver.answers(503)
    for _ in range(notify.QUEUE):
        spark.does("gave up")
        spark.looks()
        spark.does("serving")
        kept = spark.looks()
    assert len(kept["wait"]) == notify.QUEUE
    assert f"a message is dropped, because {notify.QUEUE} newer ones wait: chat on spark1" in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"memory": 5}', '{"memory": {"more": 1}, "wait": [], "failure": {}}',
                                  '{"memory": {}, "wait": [{"x": 1}], "failure": {}}'])  # fmt: skip
def test_a_broken_file_of_what_was_told_begins_anew(kept: str, spark: Spark, receiver: Receiver) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    spark.kept.write_text(kept)
    spark.does("gave up")
    spark.looks()
    assert len(receiver.got) == 1


@pytest.mark.parametrize("settings", [None, "", "{", "5"])
def test_without_settings_the_journal_says_what_to_do(
    settings: str | None, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    if settings is not None:
        notify.SETTINGS.write_text(settings)
    assert notify.main([]) == 1
    assert "has no settings — expected: those of vllm_notify. Fix: vllm-spark deploy." in capsys.readouterr().err


@pytest.mark.parametrize("holds", ["lock", "old lock", "switch"])
def test_it_is_quiet_while_somebody_changes_the_spark(holds: str, spark: Spark, receiver: Receiver) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    spark.does("gave up")
    lock = Path(spark.places.run, "operator.lock")
    if holds == "switch":
        (spark.folder / "systemctl.show").write_text("Id=vllm-switch.service\nActiveState=active\n")
    else:
        lock.write_text("{}")
    if holds == "old lock":
        os.utime(lock, (0, lock.stat().st_mtime - notify.HELD_S))
    spark.looks()
    assert len(receiver.got) == (holds == "old lock")


def test_it_reads_the_units_and_the_certificate_of_the_edge(spark: Spark, tmp_path: Path) -> None:
    own_certificate(tmp_path)
    (tmp_path / "cert.pem").rename(tmp_path / "tls.pem")
    (spark.folder / "systemctl.show").write_text(EDGE.format("active"))
    seen = notify.look({"host": "spark1"}, 0.0, 1.0)
    assert seen.edge_fault == ""
    assert seen.certificate_end
    # openssl's default is 30 days.
    assert 29 * 86400 < seen.certificate_end - (tmp_path / "tls.pem").stat().st_mtime < 31 * 86400
    (spark.folder / "systemctl.show").write_text(EDGE.format("failed"))
    assert notify.look({"host": "spark1"}, 0.0, 1.0).edge_fault == "vllm-edge.service is failed"
    # The edge of an open site is disabled, and a Spark without one has no unit.
    for units in (EDGE.replace("enabled", "disabled").format("inactive"), ""):
        (spark.folder / "systemctl.show").write_text(units)
        seen = notify.look({"host": "spark1"}, 0.0, 1.0)
        assert (seen.edge_fault, seen.certificate_end) == (None, None)


def asked(option: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert notify.main([option]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_test_message_goes_through_the_unit(
    spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC, secret=NAME)
    found = asked("--test", capsys)
    assert (found["target"], found["why"]) == (receiver.url, "")
    assert [got["headers"]["Title"] for got in receiver.got] == ["a test message of spark1"]
    assert (spark.folder / "systemctl.started").read_text() == "start vllm-notify.service\n"


def test_a_test_message_that_does_not_arrive_says_why_and_does_not_wait(
    spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC, secret=NAME)
    receiver.answers(401)
    assert asked("--test", capsys)["why"] == "it answers status 401 Unauthorized"
    assert asked("--show", capsys)["wait"] == []
    (spark.folder / "systemctl.fails").write_text("Unit vllm-notify.service is masked.")
    assert asked("--test", capsys)["why"] == "Unit vllm-notify.service is masked."
    assert not notify.TEST.exists()


def test_a_test_message_comes_after_those_that_wait(
    spark: Spark, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    receiver.answers(503)
    spark.does("gave up")
    spark.looks()
    capsys.readouterr()
    shown = asked("--show", capsys)
    assert (shown["memory"]["told"]["vllm@chat"][0], len(shown["wait"])) == ("gave-up", 1)
    receiver.answers(200)
    assert asked("--test", capsys)["why"] == ""
    titles = [got["headers"]["Title"] for got in receiver.got if got["status"] == 200]
    assert titles == ["chat on spark1 gave up", "a test message of spark1"]


def test_another_word_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert notify.main(["--tets"]) == 2
    assert "notify --test" in capsys.readouterr().out


# --- other Sparks, the heartbeat and Alertmanager


class Answering(BaseHTTPRequestHandler):
    """A server that answers each path with the status that stands in it, and keeps the paths."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(int(self.path.strip("/").split("/")[0]))
        self.end_headers()
        self.wfile.write(json.dumps(HELD).encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


HELD = [
    {
        "labels": {"alertname": "SocHot", "spark": "spark2"},
        "annotations": {"summary": "the chip of spark2 is hot", "runbook": "gpu-clocks"},
        "startsAt": "2027-01-15T08:00:00.123Z",
    },
    {"labels": {"alertname": "GaveUp", "told": "spark"}, "annotations": {}, "startsAt": ""},
]


@pytest.fixture
def server() -> Iterator[str]:
    Answering.seen.clear()
    with loopback.running(ThreadingHTTPServer((loopback.ADDRESS, 0), Answering)) as running:
        yield f"http://{loopback.ADDRESS}:{running.server_address[1]}"


@pytest.mark.parametrize("path", ["200", "302", "401", "403", "421", "503"])
def test_any_status_is_an_answer_of_a_spark_that_is_on(server: str, path: str) -> None:
    assert delivery.answers(f"{server}/{path}", "/nonexistent")


def test_a_refused_connection_and_an_unknown_certificate_are_answers(tmp_path: Path) -> None:
    assert delivery.answers(f"http://{loopback.ADDRESS}:{loopback.held_port()}/health", "/nonexistent")
    own_certificate(tmp_path)
    (tmp_path / "both.pem").write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    with receiving(tmp_path, str(tmp_path / "both.pem")) as secure:
        assert delivery.answers(f"{secure.url}/health", "/nonexistent")


def test_a_frozen_spark_and_a_name_that_is_gone_give_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a frozen Spark takes a connection, and no program answers."""
    monkeypatch.setattr(delivery, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server((loopback.ADDRESS, 0)) as frozen:
        for scheme in ("http", "https"):
            assert not delivery.answers(
                f"{scheme}://{loopback.ADDRESS}:{frozen.getsockname()[1]}/health", "/nonexistent"
            )
    assert not delivery.answers("https://nobody.invalid:8000/health", "/nonexistent")


def test_the_first_spark_that_answers_tells_of_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(host: str, *silent: str) -> dict[str, bool | None]:
        monkeypatch.setattr(delivery, "answers", lambda url, _: url not in silent)
        return notify.others({"host": host, "site": {name: name for name in ("a", "b", "c")}})

    assert seen("b", "c") == {"a": True, "c": None}
    assert seen("a", "c") == {"b": True, "c": False}
    assert seen("b", "a") == {"a": False, "c": True}
    assert seen("c", "a", "b") == {"a": False, "b": False}
    assert notify.others({"host": "a"}) == {}


def test_a_silent_spark_is_told_and_its_end(spark: Spark, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.set_up(url=receiver.url + TOPIC)
    settings = json.loads(notify.SETTINGS.read_text())
    notify.SETTINGS.write_text(json.dumps({**settings, "site": {"spark1": "", "spark2": ""}}))
    monkeypatch.setattr(troubles, "SILENT_S", 0.0)
    for answers in (True, False, False, True):
        monkeypatch.setattr(delivery, "answers", lambda *_, _answers=answers: _answers)
        spark.looks()
    titles = [got["headers"]["Title"] for got in receiver.got]
    assert titles == ["spark2 does not answer spark1", "spark2 answers spark1 again"]


def test_the_heartbeat_is_asked_each_time_and_its_failure_is_said_once(
    spark: Spark, receiver: Receiver, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.set_up(url=receiver.url + TOPIC, heartbeat=f"{server}/200/ping/{{host}}")
    spark.looks()
    spark.looks()
    assert Answering.seen == ["/200/ping/spark1"] * 2
    assert capsys.readouterr().err == ""
    spark.set_up(url=receiver.url + TOPIC, heartbeat=f"{server}/404/secret-key")
    spark.looks()
    spark.looks()
    said = capsys.readouterr().err
    assert said.count("the heartbeat URL does not answer: it answers status 404") == 1
    assert "secret-key" not in said
    # Nobody is told over the target, which may be fine.
    assert receiver.got == []


def test_what_alertmanager_holds_is_read_but_what_a_spark_tells_itself(server: str) -> None:
    held = delivery.alerts(f"{server}/200")
    assert held is not None
    ((key, message),) = held.items()
    assert (key, message.event, message.what) == ("alert SocHot spark2", "alert", "the chip of spark2 is hot")
    assert (message.since, message.fix) == (1_800_000_000.123, "see docs/runbooks/gpu-clocks.md.")
    assert Answering.seen == ["/200/api/v2/alerts?silenced=false&inhibited=false"]


def test_an_alertmanager_that_does_not_answer_is_no_end_of_an_alert(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert delivery.alerts(f"{server}/503") is None
    monkeypatch.setitem(HELD[0], "startsAt", "soon")
    assert delivery.alerts(f"{server}/200") is None
    assert delivery.alerts(f"http://{loopback.ADDRESS}:{loopback.held_port()}") is None
