"""The program that writes the figures of a Spark. Commands are answered by texts."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from vllm_spark.core import paths
from vllm_spark.node import certificate, endings, metrics
from vllm_spark.node.deployment_state import STATES, Places
from vllm_spark.node.state_writer import StateOf

GOLDEN = paths.ROOT / "tests" / "data" / "metrics" / "spark.prom"
GOOD = "52.35, 71, 2405, 3003, 0x0000000000000000\n"
# Lines of public reports: NVIDIA/open-gpu-kernel-modules#1358, a Xid, an AER of each grade, and the OOM killer.
KERNEL = [
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359",
    "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
    "pcieport 0002:00:00.0: AER: Correctable error message received from 0002:01:00.0",
    "pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received from 0002:01:00.0",
    "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:160000000kB",
    "usb 1-1: new high-speed USB device",
]

Answers = dict[str, str]


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """A Spark with the deployment `demo`, which serves. Returns what its commands say, by their program."""
    places = Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))
    folder = tmp_path / "etc" / "demo"
    folder.mkdir(parents=True)
    (folder / "launch").touch()
    (folder / "deployed.json").write_text(json.dumps({"recipe": "gemma", "launch": "3f2a", "rank": 0}))
    os.utime(folder / "deployed.json", (1_796_000_000, 1_796_000_000))
    (tmp_path / "history").mkdir()
    lines = ({"time": "2026-12-01T10:00:00Z", "holds": False}, {"time": "2026-12-02T10:00:00Z", "holds": True})
    (tmp_path / "history" / "demo.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    StateOf("demo", places).write("serving")
    state = tmp_path / "run" / "demo" / "state.json"
    state.write_text(re.sub(r'"since": [\d.]+', '"since": 1796100000.0', state.read_text()))
    monkeypatch.setattr(metrics, "PLACES", places)
    monkeypatch.setattr(metrics, "HISTORY", str(tmp_path / "history"))
    monkeypatch.setattr(metrics, "FOLDER", tmp_path)
    answers = {
        "systemctl": "Id=vllm@demo.service\nNRestarts=1\n",
        "nvidia-smi": GOOD,
        "journalctl": "\n".join(KERNEL),
        "openssl": "notAfter=Mar 12 10:00:00 2029 GMT\n",
    }
    monkeypatch.setattr(endings, "output_of", lambda program, *_: answers.get(program, ""))
    return answers


def written(folder: Path) -> str:
    assert metrics.main() == 0
    return (folder / "spark.prom").read_text()


def test_it_writes_every_metric_of_its_list(spark: Answers, tmp_path: Path) -> None:
    text = written(tmp_path)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert set(re.findall(r"^# TYPE vllm_spark_(\S+)", text, re.MULTILINE)) == set(metrics.METRICS)


def test_a_spark_without_anything_has_its_kernel_alone(
    spark: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.clear()
    monkeypatch.setattr(metrics, "PLACES", Places(*(str(tmp_path / "none") for _ in range(5))))
    assert set(re.findall(r"^# TYPE (\S+)", written(tmp_path), re.MULTILINE)) == {"vllm_spark_kernel_events_total"}


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("[N/A], 71, 2405, 3003, 0x0000000000000000\n", {"gpu_power_watts"}),
        ("52.35, 71, 2405, [Not Supported], Not Active\n", {"gpu_clock_max_mhz", "gpu_throttled"}),
        ("No devices were found\n", {"gpu_throttled", *metrics.GPU}),
        ("", {"gpu_throttled", *metrics.GPU}),
    ],
)
def test_a_figure_that_the_driver_does_not_have_is_left_out(
    spark: Answers, tmp_path: Path, said: str, missing: set[str]
) -> None:
    spark["nvidia-smi"] = said
    found = set(re.findall(r"^# TYPE vllm_spark_(\S+)", written(tmp_path), re.MULTILINE))
    assert set(metrics.METRICS) - found == missing


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        ("0x0000000000000002", ["setting"]),
        ("0x0000000000000060", ["heat"]),
        ("0x0000000000000084", ["power-brake", "power-cap"]),
        ("0x0000000000000001", []),
    ],
)
def test_the_bits_of_the_driver_become_reasons(spark: Answers, tmp_path: Path, mask: str, reasons: list[str]) -> None:
    spark["nvidia-smi"] = GOOD.replace("0x0000000000000000", mask)
    assert (
        sorted(re.findall(r'^vllm_spark_gpu_throttled\{reason="(\S+)"\} 1$', written(tmp_path), re.MULTILINE))
        == reasons
    )


def test_lines_of_the_kernel_count_once_and_only_faults_do(spark: Answers, tmp_path: Path) -> None:
    def count() -> dict[str, str]:
        return dict(re.findall(r'kind="(\S+)"\} (\d+)', written(tmp_path)))

    assert count() == {"xid": "1", "aer": "1", "no-memory": "1", "killed": "1"}
    # The cursor leads behind these lines.
    spark["journalctl"] = KERNEL[1]
    assert count() == {"xid": "2", "aer": "1", "no-memory": "1", "killed": "1"}


@pytest.mark.parametrize("state", STATES)
def test_one_state_is_true(spark: Answers, tmp_path: Path, state: str) -> None:
    StateOf("demo", metrics.PLACES).write(state, "why")
    assert re.findall(r'state="([^"]+)"\} 1$', written(tmp_path), re.MULTILINE) == [state]


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", '{"time": 3}', '{"time": "soon", "holds": true}', '{"time": "2026-12-02T10:00:00Z"']
)
def test_a_broken_history_has_no_gates(spark: Answers, tmp_path: Path, line: str) -> None:
    (tmp_path / "history" / "demo.jsonl").write_text(line)
    assert "gates_passed" not in written(tmp_path)


def test_the_end_of_a_certificate(spark: Answers) -> None:
    assert certificate.end("tls.pem") == 1_868_004_000.0
    spark["openssl"] = ""
    assert certificate.end("tls.pem") is None


def test_the_page_has_every_metric() -> None:
    page = (paths.ROOT / "docs" / "operations" / "metrics.md").read_text()
    assert [name for name in metrics.METRICS if f"`{metrics.PREFIX}{name}`" not in page] == []
    assert [meaning for _, meaning in metrics.METRICS.values() if meaning not in page] == []
