"""Samples of a host: lines of nvidia-smi, texts of /proc, several GPUs, and a host without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.bench_runs import run_record
from project_files import DATA
from vllm_spark.node.bench import gpu_reader, host_memory, job
from vllm_spark.node.bench.gpu_reader import GpuReader
from vllm_spark.node.bench.records import Sample

LINES: list[dict[str, Any]] = yaml.load((DATA / "bench_nvidia_smi.yml").read_text(), yaml.CSafeLoader)

MEMINFO = """\
MemTotal:       127600000 kB
MemFree:         1000000 kB
MemAvailable:   25600000 kB
Buffers:          524288 kB
Cached:          1572864 kB
SwapTotal:      16777216 kB
SwapFree:       15728640 kB
HugePages_Total:       0
"""
VMSTAT = "nr_free_pages 250000\npswpin {}\npswpout {}\npgfault 12345\n"
PAGE = 4096
PAGES_PER_MIB = (1 << 20) // PAGE


@pytest.mark.parametrize("case", LINES, ids=[case["line"][:40] for case in LINES])
def test_a_line_of_nvidia_smi_is_read(case: dict[str, Any]) -> None:
    reading = gpu_reader.parse(case["line"])
    if case["sample"] is None:
        assert reading is None
    else:
        assert reading is not None
        assert reading[1:] == (case["name"], case["sample"])


def test_the_gpus_of_a_host_are_one_sample() -> None:
    first: Sample = {"power_w": 400.0, "sm_mhz": 1755, "gpu_percent": 100, "throttle": "sw_power_cap"}
    second: Sample = {"power_w": 300.0, "sm_mhz": 1980, "temperature_c": 60, "gpu_percent": 50, "throttle": ""}
    assert gpu_reader.together([first, second]) == {
        "power_w": 700.0,
        "sm_mhz": 1755,
        "temperature_c": 60,
        "gpu_percent": 75.0,
        "throttle": "sw_power_cap",
    }
    assert gpu_reader.together([]) == {}


def test_memory_is_read_from_proc() -> None:
    sample = host_memory.memory(MEMINFO)
    assert sample == {
        "memory_gib": pytest.approx((127600000 - 25600000) / (1 << 20)),
        "cache_gib": pytest.approx(2.0),
        "swap_gib": pytest.approx(1.0),
    }


def test_unknown_forms_of_proc_leave_values_out() -> None:
    assert host_memory.memory("MemTotal: 5 kB\nno number here\n") == {}
    assert host_memory.swapped_mib("pswpin 5\n", PAGE) is None


def test_what_was_swapped_is_counted_from_reading_to_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory.os, "sysconf", lambda _name: PAGE)
    swapped = []
    (tmp_path / "vmstat").write_text(VMSTAT.format(0, 100 * PAGES_PER_MIB))
    memory = host_memory.HostMemory(tmp_path)
    for moved_in, moved_out in ((0, 100), (3, 102), (3, 102)):
        (tmp_path / "vmstat").write_text(VMSTAT.format(moved_in * PAGES_PER_MIB, moved_out * PAGES_PER_MIB))
        swapped.append(memory.read()["swapped_mib"])
    assert swapped == [0.0, 5.0, 0.0]


def test_a_host_without_nvidia_smi_has_no_values_of_a_gpu(tmp_path: Path) -> None:
    reader = GpuReader([str(tmp_path / "nvidia-smi")])
    assert (reader.read(), reader.name) == ({}, "")
    assert reader.problem.endswith("nvidia-smi: No such file or directory")
    reader.close()


def test_a_run_records_the_gpu_of_its_host() -> None:
    run: Any = run_record(host={"spark-2": {"driver": "580"}})
    host = job.with_gpu(run, "spark-2", "NVIDIA GB10")["host"]["spark-2"]
    assert (host["gpu"], host["driver"]) == ("NVIDIA GB10", "580")
    assert host["os"], "this machine has a name of its system"
