"""Records on a host that a full disk, a loss of power or an editor has damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import (
    spark_holdings,
    spark_io,
    spark_launches,
    spark_lock,
    spark_records,
    spark_status,
    spark_units,
)

from fakes.cases import hosts_of, intents
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import operator_lock, rollback_target
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark.verify.gate_request import GateRequest

GOOD = {"deployment": "demo", "rank": 0, "recipe": "everything", "launch": "a" * 64, "previous": None}
# content of a deployed.json -> a part of the reason
BROKEN = {
    "": "it is empty",
    "\n": "it is empty",
    '{"launch": "a': "it is not one whole JSON object",
    "[1, 2]": "it is not one whole JSON object",
    '{"rank": NaN}': "it is not one whole JSON object",
    '{"a": ' + "[" * 10_000: "it is not one whole JSON object",
    '{"a": "\\ud800"}': "it is not one whole JSON object",
    "\0\0\0\0": "it is not one whole JSON object",
    json.dumps({**GOOD, "launch": 5}): "its launch is '5'",
    json.dumps({**GOOD, "rank": True}): "its rank is 'True'",
    json.dumps({**GOOD, "previous": {"image": []}}): "its image is '[]'",
    json.dumps({**GOOD, "derived": {"image": 1}}): "its derived is",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:20]))
def test_a_broken_record_is_reported_with_its_reason(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deployed.json"
    path.write_text(text)
    records, broken, _ = spark_units.records({"demo": str(path)})
    assert records == {}
    assert BROKEN[text] in broken[str(path)]
    assert spark_records.record_of(str(tmp_path)) == {}


def test_a_folder_in_place_of_a_record_is_broken_and_an_absent_record_is_not(tmp_path: Path) -> None:
    (tmp_path / "deployed.json").mkdir()
    assert spark_records.read_record(str(tmp_path / "deployed.json")) == (None, "it is not a file that can be read")
    assert spark_records.read_record(str(tmp_path / "none")) == (None, "")
    (tmp_path / "link").symlink_to("current/deployed.json")  # the runbook broken-record has moved its target away
    assert spark_records.read_record(str(tmp_path / "link")) == (None, "")


def test_a_good_record_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "deployed.json"
    path.write_text(json.dumps({**GOOD, "later": [1]}))
    assert spark_records.read_record(str(path)) == ({**GOOD, "later": [1]}, "")


def test_deploy_refuses_a_broken_record(resolve: Callable[..., Spec], facts: dict[str, Any], tmp_path: Path) -> None:
    spec = resolve()
    hosts = hosts_of({}, {"spark1": spec}, facts, tmp_path)
    hosts["spark1"]["broken_records"] = {"/etc/vllm-spark/demo/deployed.json": "it is empty"}
    with pytest.raises(RefusedError) as refused:
        plan.of_host(intents({"spark1": spec}), hosts, "spark1", "test")
    assert [refusal.id for refusal in refused.value.refusals] == ["broken-record"]
    assert "/etc/vllm-spark/demo/deployed.json on spark1 cannot be used: it is empty" in str(refused.value)
    assert "ssh -t spark1 sudo mv" in str(refused.value)


def launch_folder(folder: Path, record: str, gates: str) -> None:
    """Write the files of a launch."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launch").write_text("#!/bin/sh\nexec docker run image\n")
    (folder / "deployed.json").write_text(record)
    (folder / "gates.json").write_text(gates)


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:20]))
def test_a_broken_previous_launch_is_not_a_rollback_target(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/vllm-spark/demo"
    launch_folder(folder, json.dumps(GOOD), text)
    launch_folder(folder / "previous", text, text)
    deployments = spark_holdings.deployments(str(tmp_path), count=False)
    assert deployments["demo"]["launches"]["previous"]["record"] == {}
    docker = {"error": "", "images": [], "containers": []}
    state = {"deployments": deployments, "units": {}, "unit_files": [], "docker": docker, "history": {}, "pulled": []}
    with pytest.raises(RefusedError) as refused:
        rollback_target.targets({"spark1": state}, "demo")
    assert "spark1 has no launch of demo before this one" in str(refused.value)


# content of operator.lock
LOCKS = [*BROKEN, '{"since": "yesterday", "pid": "many", "connection": 5}', '{"connection": {"pid": 1}}', '{"run": []}']


@pytest.mark.parametrize("text", LOCKS, ids=lambda text: repr(text[:20]))
def test_a_broken_lock_is_held_until_it_is_broken(text: str, tmp_path: Path) -> None:
    (tmp_path / "operator.lock").write_text(text)
    holder = {"run": "mine", "user": "anna"}
    done, current = spark_lock.take(holder, None, str(tmp_path))
    assert not done
    assert current is not None
    known = LockHolder.from_json(current)
    assert "-e break_lock=true" in str(operator_lock.refusal("spark1", known, None))
    done, _ = spark_lock.take(holder, known.run, str(tmp_path))
    assert done
    assert spark_lock.give("mine", str(tmp_path)) == (True, None)


def test_status_reads_the_journal_of_what_has_failed_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, state = tmp_path / "etc/vllm-spark/demo", tmp_path / "run/vllm-spark/demo/state.json"
    for place in (folder, state.parent):
        place.mkdir(parents=True)
    (folder / "env").write_text("HF_TOKEN=one-long-secret-value\n")
    asked: list[tuple[str, ...]] = []

    def journalctl(*argv: str) -> spark_io.CommandResult:
        asked.append(argv)
        return spark_io.CommandResult(0, "start with one-long-secret-value\nOSError: no\n")

    monkeypatch.setattr(spark_status, "run", journalctl)
    for word, expected in (("serving", []), ("failed", ["OSError: no"]), ("gave up", ["OSError: no"])):
        state.write_text(json.dumps({"state": word, "since": 5}))
        found = spark_status.deployment("demo", str(tmp_path))["journal"]
        assert found[1:] == expected
        assert "one-long-secret-value" not in "".join(found)
    assert [argv[-1] for argv in asked] == ["vllm@demo.service"] * 2


def test_status_drops_what_has_another_type(tmp_path: Path) -> None:
    folder, run = tmp_path / "etc/vllm-spark/demo", tmp_path / "run/vllm-spark/demo"
    history = tmp_path / "var/lib/vllm-spark/history"
    for place in (folder, run, history):
        place.mkdir(parents=True)
    (folder / "liveness.json").write_text('{"address": 5, "port": "many"}')
    (run / "liveness.json").write_text('{"ready": "yes", "misses": []}')
    (history / "demo.jsonl").write_text('{"gates": 5, "holds": "yes", "verb": "deploy"}\n{"cut')
    read = spark_status.deployment("demo", str(tmp_path))
    assert read["address"] is None
    assert read["liveness"] is None
    assert read["judged"] == {"verb": "deploy"}


def test_counters_ignore_what_is_not_a_number() -> None:
    text = "vllm:num_requests_running 1e999\nvllm:generation_tokens_total 1.2.3\nvllm:num_requests_waiting 2\n"
    assert spark_status.counters(text) == {"waiting": 2.0}


def test_a_pipe_or_a_huge_file_in_place_of_a_record_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert spark_io.read_object(str(tmp_path / "pipe")) is None
    assert set(spark_launches.launches(str(tmp_path))) == set()


def test_gates_with_a_missing_key_are_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        GateRequest.from_json({"deadline_s": 60, "rank": 0})
    assert "gates.json of this launch has no state_path, unit, container" in str(refused.value)
