"""What the toolkit says of its own decisions is a finding; what the host logs beside a server that runs is none."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import verb_documents
from project_files import DATA
from vllm_spark.cli import main
from vllm_spark.doctor import command, support_bundle
from vllm_spark.doctor.support_bundle import Collected, Examination

FOLDER = "deployments/pair-ray"
UNIT = {"ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "0"}
FAILED = {**UNIT, "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
SYSTEMD = "2026-11-25T20:58:39.300000+00:00 spark2 systemd[1]: vllm@pair-ray.service: "
SUPERVISOR = "2026-11-25T20:58:39.100000+00:00 spark2 vllm-pair-ray[9801]: vllm-spark: "
START = f"{SUPERVISOR}launch 5114c72e7905\n"
ENDS = f"{SYSTEMD}Main process exited, code=exited, status=1/FAILURE\n{SYSTEMD}Failed with result 'exit-code'.\n"
GAVE_UP = (
    f"{SUPERVISOR}giving up: 5 failed starts in a row, the last ended because spark2 is lost: silent for 10 s "
    "— expected: a start that serves. Fix: find the cause in the lines above; `sudo vllm-switch pair-ray` or a deploy "
    "starts it again. See docs/runbooks/gave-up.md\n"
)
HANGS = (
    "2026-11-25T20:58:38.000000+00:00 spark2 vllm-liveness-pair-ray[77]: vllm@pair-ray.service hangs: 2 requests for a "
    "token had no answer (timed out); ending its container. See docs/runbooks/engine-hangs.md\n"
)

# The end of a journal -> the first finding, and words of its cause
WORDS = {
    GAVE_UP + ENDS: (
        "pair-gave-up",
        "gave up and stays down: 5 failed starts in a row, the last ended because",
    ),
    # As release 0.1.0 wrote it.
    GAVE_UP.replace("5 failed starts in a row", "5 starts within 60 min") + ENDS: (
        "pair-gave-up",
        "gave up and stays down: 5 starts within 60 min, the last ended because",
    ),
    # A server of one Spark.
    f"{SUPERVISOR}the start failed: its container ended with status 1; {GAVE_UP.partition(SUPERVISOR)[2]}{ENDS}": (
        "pair-gave-up",
        "the last ended because spark2 is lost",
    ),
    f"{SUPERVISOR}giving up: not started at boot, because this Spark went down without a shutdown 2 times\n": (
        "pair-gave-up",
        "not started at boot, because this Spark went down",
    ),
    f"{SUPERVISOR}ending rank 1: spark1 is lost: silent for 10 s\n{ENDS}": ("peer-ended", "silent for 10 s"),
    f"{SUPERVISOR}ending rank 0: spark2 restarted\n{ENDS}": ("peer-ended", "because spark2 ended: restarted"),
    f"{SUPERVISOR}waiting for spark1 at 10.0.0.1:25000: No route to host\n": ("waits-for-peer", "waits for spark1"),
    f"{SUPERVISOR}ending rank 0: its container ended with status 1\n{ENDS}": ("rank-ended", "ended with status 1"),
    f"{SUPERVISOR}ending rank 0: its container ended with status 137\n": ("rank-ended", "rank 0 was killed"),
    f"{ENDS}{SYSTEMD}Start request repeated too quickly.\n{ENDS}": ("unit-gave-up", "pair-ray gave up and stays down"),
    "2026-11-25T20:00:00+00:00 spark2 vllm-switch[5]: tiny does not serve: vllm@tiny.service ended (exit-code).\n": (
        "switch-failed",
        "vllm@tiny.service ended",
    ),
    HANGS: ("liveness-ended-it", "2 requests for a token had no answer"),
}


def examined(files: dict[str, str], unit: dict[str, str] = UNIT) -> Examination:
    manifest: dict[str, Any] = {"time": 1.0, "deployments": {"pair-ray": unit}}
    return support_bundle.examine(Collected(files, {**manifest, "weak_secrets": [], "notes": []}))  # type: ignore[typeddict-item]


@pytest.mark.parametrize("end", WORDS)
def test_the_own_last_word_comes_before_what_systemd_says(end: str) -> None:
    current = examined({f"{FOLDER}/journal.log": START + end}, FAILED).current
    signature, words = WORDS[end]
    assert current.findings[0].signature == signature
    assert words in current.findings[0].cause
    assert current.unrecognised == ()


def test_a_hang_is_the_cause_of_the_container_that_liveness_ended() -> None:
    files = {
        f"{FOLDER}/journal.log": f"{START}{SUPERVISOR}ending rank 0: its container ended with status 137\n",
        f"{FOLDER}/liveness.log": HANGS,
    }
    first = examined(files).current.findings[0]
    assert (first.signature, first.severity) == ("liveness-ended-it", "cause")


def test_an_exception_of_the_engine_comes_before_the_own_last_word() -> None:
    memory = "ValueError: Free memory on device cuda:0 (16.72/139.8 GiB) on startup is less than desired GPU memory"
    journal = f"{START}(EngineCore pid=9) {memory} utilization (0.5, 69.9 GiB).\n{GAVE_UP}{ENDS}"
    found = [finding.signature for finding in examined({f"{FOLDER}/journal.log": journal}, FAILED).current.findings]
    assert found == ["not-enough-free-memory", "pair-gave-up"]


def test_an_orderly_stop_of_the_peer_is_no_fault() -> None:
    journal = f"{START}{SUPERVISOR}spark1 serves\n{SUPERVISOR}ending rank 1: spark1 is lost: it was stopped (rank 0)\n"
    assert examined({f"{FOLDER}/journal.log": journal}).current.findings == ()


# What the hosts of the sandbox and Docker print beside a server that serves.
HOST = {
    "host/kernel.log": "$ dmesg --time-format iso\ndmesg: read kernel buffer failed: Operation not permitted\n",
    "host/docker.log": '2026-11-25T20:00:00+00:00 spark2 dockerd[7]: time="2026-11-25T20:00:00.1Z" level=info '
    'msg="ignoring event" container=ab module=libcontainerd topic=/tasks/delete\n'
    '2026-11-25T20:00:01+00:00 spark2 dockerd[7]: time="2026-11-25T20:00:01.1Z" level=info '
    'msg="fetch failed" error="<nil>" host="registry:5000" remote.method=HEAD\n'
    '2026-11-25T20:00:02+00:00 spark2 dockerd[7]: time="2026-11-25T20:00:02.1Z" level=error '
    'msg="Handler for POST /v1.51/containers/vllm-x/stop returned error: No such container: vllm-x"\n',
    f"{FOLDER}/liveness.log": "2026-11-25T20:00:00+00:00 spark2 systemd[1]: vllm-liveness@pair-ray.service: "
    "Failed with result 'exit-code'.\n",
}


@pytest.mark.parametrize("word", ["spark1 serves", "the API answers"])
def test_the_host_of_a_rank_that_serves_raises_no_alarm(word: str) -> None:
    worker = (DATA / "engine-logs" / "ray-worker.log").read_text()
    examination = examined({f"{FOLDER}/journal.log": f"{START}{worker}{SUPERVISOR}{word}\n", **HOST})
    assert (examination.current.findings, examination.current.unrecognised) == ((), ())
    assert next(support_bundle.lines(examination)).startswith("no finding in ")


@pytest.mark.parametrize("name", ["26b-a4b-nvfp4-marlin.serve.log", "made/cpu.serve.log", "made/0.33-cached.serve.log"])
def test_the_host_of_an_engine_that_serves_raises_no_alarm(name: str) -> None:
    journal = (DATA / "engine-logs" / name).read_text()
    current = examined({f"{FOLDER}/journal.log": START + journal, **HOST}).current
    assert (current.findings, current.unrecognised) == ((), ())


def test_a_log_of_docker_alone_is_read_by_its_levels() -> None:
    log = command.judged("docker.log", io.BytesIO(HOST["host/docker.log"].splitlines()[1].encode()))
    assert log.unrecognised() == []


def test_a_known_line_of_the_host_is_still_a_finding() -> None:
    killed = "Out of memory: Killed process 42 (VLLM::EngineCor) total-vm:1kB\n"
    found = examined({f"{FOLDER}/journal.log": START, "host/kernel.log": killed}).current.findings
    assert [finding.signature for finding in found] == ["out-of-memory-killed"]


GONE = {"state": "gave up", "why": "5 starts, the last ended because spark2 is lost", "since": 1764104319.0}
STATE = f"{FOLDER}/run/state.json"


def collection(state: object) -> Collected:
    files = {f"{FOLDER}/journal.log": START + GAVE_UP + ENDS, STATE: json.dumps(state)}
    manifest: dict[str, Any] = {"time": 1.0, "deployments": {"pair-ray": FAILED}}
    return Collected(files, {**manifest, "weak_secrets": [], "notes": []})  # type: ignore[typeddict-item]


def test_a_bundle_begins_with_the_state_that_the_spark_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = collection(GONE)
    run = support_bundle.CollectRun("spark2", "0.1.0", requested_at=1.0, answered_at=1.0)
    path = support_bundle.write(tmp_path, content, support_bundle.examine(content), run)
    word = "gave up: 5 starts, the last ended because spark2 is lost (since 2025-11-25 20:58:39 UTC)"
    lines = list(support_bundle.report_lines(content, support_bundle.examine(content), run, path))
    assert lines[0] == f"pair-ray: {word}; its unit: failed (failed), result exit-code"
    assert main.main(["doctor", str(path)]) == 1
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == f"pair-ray on spark2: {word}"
    assert second.startswith("1. the deployment gave up and stays down")
    assert main.main(["doctor", str(path), "--json"]) == 1
    [said] = verb_documents.judged(json.loads(capsys.readouterr().out))["states"]
    assert (said["host"], said["deployment"], said["state"]["state"]) == ("spark2", "pair-ray", "gave up")
    assert support_bundle.states(content) == {"pair-ray": "gave up"}


@pytest.mark.parametrize("state", [{"state": "waiting", "why": "for spark1", "since": 1.0}, {}, [], "broken"])
def test_a_bundle_without_such_a_state_is_read_as_before(state: object) -> None:
    content = collection(state)
    assert list(support_bundle.units(content)) == ["pair-ray: failed (failed), result exit-code"]
    assert support_bundle.states(content) == {"pair-ray": "failed (failed)"}
