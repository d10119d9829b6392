"""The bundle: its files and their order, its mode, and the doctor's findings in it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verb_documents
from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.doctor import command, diagnosis, support_bundle
from vllm_spark.doctor.support_bundle import Collected, CollectRun

PORT = "OSError: [Errno 98] Address already in use"
KILLED = "Out of memory: Killed process 42 (VLLM::EngineCor) total-vm:1kB"
UNIT = {"ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "2"}
FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "NRestarts": "0"}
STOPPED = {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "NRestarts": "0"}
FILES = {
    "deployments/gemma/launch": f"#!/bin/sh\n# {PORT}\n",
    "deployments/gemma/journal.log": "calm\n",
    "deployments/gemma/journal-previous.log": f"calm\n{PORT}\n",
    "host/kernel.log": f"{KILLED}\n{KILLED}\n",
    "host/memory.txt": "Mem: 1\n",
}
RUN = CollectRun("spark1", "0.1.0 (abc)", requested_at=1000.0, answered_at=1010.0)


def collected(files: dict[str, str] | None = None, **changes: Any) -> Collected:
    manifest = {"time": 1009.0, "deployments": {"gemma": UNIT}, "notes": []}
    return Collected(FILES if files is None else files, {"weak_secrets": [], **manifest, **changes})


def written(folder: Path, content: Collected) -> Path:
    return support_bundle.write(folder, content, support_bundle.examine(content), RUN)


def packed(document: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()


@pytest.mark.parametrize(
    ("judged", "status"),
    [
        ('{"time": "2026-01-02T04:00:00Z", "gates": {"held": ["ready", "garbage"], "missed": []}}', 0),
        ('{"time": "2026-01-02T02:00:00Z", "gates": {"held": ["ready", "garbage"], "missed": []}}', command.WARNINGS),
        ('{"time": "2026-01-02T04:00:00Z", "gates": {"held": ["ready"], "missed": ["garbage"]}}', command.WARNINGS),
        ('{"time": "soon", "gates": {"held": ["garbage"]}}', command.WARNINGS),
        ("", command.WARNINGS),
    ],
)
def test_a_gate_that_found_the_answers_of_this_start_good_turns_a_known_issue_into_a_note(
    judged: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = time.mktime((2026, 1, 2, 3, 0, 0, 0, 0, 0)) - time.timezone  # 03:00 UTC
    files = {
        "deployments/gemma/journal.log": (
            "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['VLLM_CUTLASS'].\n"
            "INFO:     Application startup complete.\n"
        ),
        "deployments/gemma/run/state.json": json.dumps({"state": "serving", "since": since}),
        "deployments/gemma/judged.jsonl": f'{{"time": "2025-01-01T00:00:00Z"}}\n{judged}\n',
    }
    content = collected(files)
    places = support_bundle.places(content, "spark1", {}, [])
    run = CollectRun("spark1", "0.1.0 (abc)", requested_at=1000.0, answered_at=1010.0, places=places)
    examination = support_bundle.examine(content, places)
    path = support_bundle.write(tmp_path, content, examination, run)
    assert main.main(["doctor", str(path)]) == status
    text = capsys.readouterr().out
    assert ("note: the experts run on VLLM_CUTLASS" in text) == (status == 0)
    assert ("the gate garbage has found its answers good" in text) == (status == 0)
    assert bool(examination.current.findings) == (status != 0)


def test_the_bundle(tmp_path: Path) -> None:
    path = written(tmp_path, collected(notes=["no dmesg"]))
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(1010))
    assert path == tmp_path / f"collect-spark1-{stamp}.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        texts = {member.name: archive.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]
    assert [member.name for member in members] == [
        "FINDINGS.txt",
        "findings.json",
        "manifest.json",
        "deployments/gemma/journal-previous.log",
        "deployments/gemma/journal.log",
        "deployments/gemma/launch",
        "host/kernel.log",
        "host/memory.txt",
    ]
    assert {member.mode for member in members} == {0o600}
    front = texts["FINDINGS.txt"]
    assert front.startswith("spark1, 1970-01-01 ")
    parts = [
        "gemma: active (running), 2 restarts",
        "1. the kernel",
        "host/kernel.log:1 and 1 more",
        "Before that",
        "port",
    ]
    places = [front.index(part) for part in (*parts, "no dmesg")]
    assert places == sorted(places)
    findings = json.loads(texts["findings.json"])
    assert [finding["signature"] for finding in findings["findings"]] == ["out-of-memory-killed"]
    assert [finding["signature"] for finding in findings["before"]["findings"]] == ["port-in-use"]
    assert json.loads(texts["manifest.json"])["toolkit"] == "0.1.0 (abc)"


def test_the_doctor_reads_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, collected())
    (tmp_path / "other.log").write_text("calm\n")
    assert main.main(["doctor", str(path), str(tmp_path / "other.log"), "--json"]) == 1
    shown = verb_documents.judged(json.loads(capsys.readouterr().out))
    assert [(finding["signature"], finding["file"], finding["count"]) for finding in shown["findings"]] == [
        ("out-of-memory-killed", f"{path}/host/kernel.log", 2),
        ("port-in-use", f"{path}/deployments/gemma/journal-previous.log", 1),
    ]
    # The launch and the table of memory are not logs.
    assert [(Path(log["file"]).name, log["lines"]) for log in shown["logs"]] == [
        ("journal-previous.log", 2),
        ("journal.log", 1),
        ("kernel.log", 2),
        ("other.log", 1),
    ]


def test_the_findings_of_a_bundle_are_those_of_its_logs(tmp_path: Path) -> None:
    logs = (tmp_path / "a.log", tmp_path / "b.log")
    source = Path(__file__).parents[2] / "data" / "engine-logs" / "31b-fp8-tp2-ray.two-nodes.log"
    logs[0].write_bytes(source.read_bytes())
    logs[1].write_text(f"{KILLED}\n")
    path = written(tmp_path, collected({log.name: log.read_text() for log in logs}, deployments={}))
    one = command.to_json(*_judged(command.read_bundle(str(path)).logs))
    other = command.to_json(*_judged([command.read(str(log)) for log in logs]))
    assert json.dumps(one).replace(f"{path}/", "") == json.dumps(other).replace(f"{tmp_path}/", "")
    assert one["findings"]


def _judged(logs: list[Any]) -> tuple[Any, list[Any]]:
    return diagnosis.judge(logs), logs


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_bundle_that_is_cut_off_is_refused(share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"{number} {os.urandom(20).hex()}\n" for number in range(5000))
    path = written(tmp_path, collected({"host/kernel.log": text}))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert main.main(["doctor", str(path)]) == 2
    stderr = capsys.readouterr().err
    assert f"{path}: not a complete bundle" in stderr
    assert stderr.rstrip().endswith("See `vllm-spark runbook log-unreadable`")


@pytest.mark.parametrize("make", [lambda file: None, lambda file: file.mkdir(), lambda file: file.write_text("text")])
def test_a_file_that_is_not_a_bundle_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "a.tar.gz"
    make(file)
    assert main.main(["doctor", str(file)]) == 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_logs_of_a_bundle(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        path = written(tmp_path, collected({"host/kernel.log": "calm, and nothing to say of it\n" * lines}))
        tracemalloc.start()
        assert command.read_bundle(str(path)).logs[0].lines == lines
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(100)  # fill the caches
    assert peak(600_000) < 1.5 * peak(150_000)


def test_an_answer_is_unpacked() -> None:
    answer = {"files": {"a/b.log": "x"}, "manifest": {"deployments": {}}}
    assert support_bundle.unpack(packed(answer)) == Collected(answer["files"], answer["manifest"])


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../x", "a//b", "", ".ssh/x", "a/.b", "FINDINGS.txt", "a\n", "a b", "x/" * 20]
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid names"):
        support_bundle.unpack(packed({"files": {name: "x"}, "manifest": {}}))


@pytest.mark.parametrize("answer", ["", "%%", base64.b64encode(b"no gzip").decode(), packed({"files": {}})[:20]])
def test_invalid_answers(answer: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be unpacked|is cut off"):
        support_bundle.unpack(answer)


def test_an_answer_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="cut off"):
        support_bundle.unpack(packed({"files": {"a": "x" * 2000}, "manifest": {}}))


def test_the_folder_is_created(tmp_path: Path) -> None:
    support_bundle.prepare(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (support_bundle.prepare, lambda folder: written(folder, collected())):
        with pytest.raises(RefusedError) as refused:
            attempt(tmp_path / "file" / "reports")
        assert f"nothing can be written to {tmp_path}/file/reports on this machine: Not a directory" in str(
            refused.value
        )
        assert "Fix: name another, -e vllm_report_dir=FOLDER" in str(refused.value)
        assert str(refused.value).endswith("See docs/runbooks/bundle-not-written.md")


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(support_bundle, "_add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, collected())
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_partial_files_of_the_same_host(tmp_path: Path) -> None:
    (tmp_path / ".collect-spark1@abc.part").write_text("")
    (tmp_path / ".collect-spark1-b@abc.part").write_text("")
    path = written(tmp_path, collected())
    assert {file.name for file in tmp_path.iterdir()} == {path.name, ".collect-spark1-b@abc.part"}


# manifest -> a note
NOTES = [
    ({"time": 990.0}, "the clock of the host is 10 s behind this machine's"),
    ({"time": 1100.0}, "the clock of the host is 90 s ahead of this machine's"),
    ({"weak_secrets": ["PIN_KEY"]}, "PIN_KEY is too short"),
    ({"notes": ["no nvidia-smi"]}, "no nvidia-smi"),
]


@pytest.mark.parametrize(("manifest", "note"), NOTES)
def test_notes(manifest: dict[str, Any], note: str) -> None:
    [line] = support_bundle.notes(collected(**manifest), RUN)
    assert line.startswith(note)
    assert list(support_bundle.notes(collected(), RUN)) == []


def test_the_output_of_the_play(tmp_path: Path) -> None:
    content = collected(deployments={"gemma": FAILED})
    path = written(tmp_path, content)
    lines = list(support_bundle.report_lines(content, support_bundle.examine(content), RUN, path))
    assert lines[0] == "gemma: failed (failed), result exit-code"
    assert lines[1].startswith("1. the kernel")
    assert lines[-1].startswith(f"bundle: {path} (")


def test_a_restart_without_a_finding_is_not_called_clean(tmp_path: Path) -> None:
    unit = {"ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "4"}
    for deployments, clean in (({"demo": unit}, False), ({"demo": {**unit, "NRestarts": "0"}}, True)):
        content = collected({}, deployments=deployments)
        path = written(tmp_path, content)
        text = "\n".join(support_bundle.report_lines(content, support_bundle.examine(content), RUN, path))
        assert ("no finding" in text) is clean
        assert ("demo was restarted, and no line of the logs explains why. Fix: " in text) is not clean


def test_logs_of_a_stopped_deployment_are_earlier_logs() -> None:
    files = {"deployments/a/journal.log": PORT, "deployments/ab/journal.log": KILLED}
    examination = support_bundle.examine(collected(files, deployments={"a": STOPPED, "ab": UNIT}))
    assert [finding.file for finding in examination.current.findings] == ["deployments/ab/journal.log"]
    assert [finding.file for finding in examination.earlier.findings] == ["deployments/a/journal.log"]


PAIR = {"name": "big", "hosts": ["spark1", "spark2"]}
BUNDLES = {"spark1": "/r/1.tar.gz", "spark2": "/r/2.tar.gz"}
# vllm_deployments, bundles by host, deployments by host -> a part of the line
RUNS, ENDED = "active (running)", "failed (failed)"
PAIRS: list[tuple[Any, dict[str, str], dict[str, dict[str, str]], str]] = [
    ([PAIR], BUNDLES, {"spark1": {"big": RUNS}}, "first: vllm-spark doctor /r/1.tar.gz /r/2.tar.gz"),
    (
        [PAIR],
        BUNDLES,
        {"spark1": {"big": ENDED}, "spark2": {"big": "inactive (dead)"}},
        "big is failed (failed) on spark1, inactive (dead) on spark2. Both",
    ),
    (
        [PAIR],
        {"spark1": "/r/1"},
        {"spark1": {"big": RUNS}},
        "there is no bundle of spark2. Next: ansible-playbook collect.yml",
    ),
    ([PAIR], BUNDLES, {"spark1": {"other": RUNS}}, ""),
    ([{"name": "one", "hosts": ["spark1"]}], BUNDLES, {"spark1": {"one": RUNS}}, ""),
    (None, BUNDLES, {}, ""),
    ("big", BUNDLES, {}, ""),
    (
        [None, 5, {}, {"hosts": 5}, {"name": ["x"], "hosts": ["spark1", "spark2"]}],
        BUNDLES,
        {"spark1": {"big": RUNS}},
        "",
    ),
]


@pytest.mark.parametrize(("deployments", "bundles", "known", "part"), PAIRS)
def test_pairs(deployments: Any, bundles: dict[str, str], known: dict[str, dict[str, str]], part: str) -> None:
    lines = list(support_bundle.pairs(deployments, bundles, known))
    assert len(lines) == bool(part)
    assert part in "".join(lines)
