"""Keys added and revoked in a running HAProxy by the code of the module vllm_edge_key."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge
from test_streams import events, open_stream

from conftest import EVENTS, Start
from fakes.running_edge import HASH
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.edge import persons
from waiting import until


def test_a_key_is_added_and_revoked_at_once_and_survives_a_reload(start: Start, engine: ScriptedEngine) -> None:
    engine.turns = threading.Semaphore(0)
    edge = start()
    key = persons.new_key()
    keys, admin = edge.files.keys, edge.files.admin_socket
    stream = open_stream(edge)

    def set_keys(wanted: dict[str, str]) -> None:
        spark_edge.write_keys(wanted, keys)
        assert spark_edge.apply_keys(wanted, keys, admin)

    assert edge.ask("GET", "/v1/models", key=key).status == 401
    set_keys({HASH: "ada", persons.key_hash(key): "bob"})
    assert edge.ask("GET", "/v1/models", key=key).status == 200
    set_keys({persons.key_hash(key): "bob"})
    assert edge.ask("GET", "/v1/models").status == 401
    # Ada's stream was open before.
    engine.turns.release(len(EVENTS))
    assert events(stream) == len(EVENTS)
    before = edge.worker()
    edge.reload()
    until(lambda: edge.has_reloaded(before))
    assert [edge.ask("GET", "/v1/models", key=one).status for one in (key, "sk-of-ada")] == [200, 401]
    assert spark_edge.read_keys(keys) == {persons.key_hash(key): "bob"}
    assert key not in Path(keys).read_text()


def test_a_revoked_key_fails_from_the_next_request_on(start: Start) -> None:
    """A client asks all the time. Prints the seconds from the revocation to its first refusal."""
    edge = start(limits={"requests_per_minute": 100_000})
    statuses: list[tuple[float, float, int]] = []
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            began = time.monotonic()
            status = edge.ask("GET", "/v1/models").status
            statuses.append((began, time.monotonic(), status))

    client = threading.Thread(target=ask_on)
    client.start()
    until(lambda: len(statuses) > 20)
    revoked = time.monotonic()
    spark_edge.write_keys({}, edge.files.keys)
    assert spark_edge.apply_keys({}, edge.files.keys, edge.files.admin_socket)
    done = time.monotonic()
    until(lambda: statuses[-1][0] > done)
    stop.set()
    client.join()
    first = next(ended for _, ended, status in statuses if status == 401)
    print(f"\nrevoked in {done - revoked:.3f} s; first refusal {first - revoked:.3f} s after its begin")
    assert {status for began, _, status in statuses if began > done} == {401}
    assert {status for _, ended, status in statuses if ended < revoked} == {200}


def test_an_edge_that_does_not_run_reads_the_file_later(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.map")
    spark_edge.write_keys({HASH: "ada"}, keys)
    assert not spark_edge.apply_keys({HASH: "ada"}, keys, str(tmp_path / "admin.sock"))
    assert spark_edge.read_keys(keys) == {HASH: "ada"}


def test_a_map_that_does_not_follow_is_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = start()
    ask = spark_edge.ask_admin
    monkeypatch.setattr(
        spark_edge, "ask_admin", lambda command, socket: "" if command[:3] == "add" else ask(command, socket)
    )
    with pytest.raises(spark_edge.EdgeError, match="HAProxy has the keys of"):
        spark_edge.apply_keys({HASH: "ada", "5" * 64: "eve"}, edge.files.keys, edge.files.admin_socket)
