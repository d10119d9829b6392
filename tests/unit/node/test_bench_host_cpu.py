"""The load of other processes: what the engine and the bench use is not foreign, and an unknown value is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_spark.node.bench.host_cpu import HostCpu

ENGINE = "4f" * 32
ID = {"vllm-demo": ENGINE}


@dataclass
class Proc:
    """A folder like /proc of a host with two CPUs, after one second with them."""

    folder: Path
    busy: int = 0
    idle: int = 0
    waited_us: int = 0
    own_s: float = 0.0
    at: float = 0.0
    engine: dict[int, int] = field(default_factory=dict)
    container: str = ENGINE

    def cpu(self, container: str = "vllm-demo") -> HostCpu:
        self.write()
        return HostCpu(
            container, self.folder, find=lambda name: ID.get(name, ""), own=lambda: self.own_s, clock=lambda: self.at
        )

    def write(self) -> None:
        (self.folder / "pressure").mkdir(exist_ok=True)
        # The fields of guests are part of the first two.
        words = [self.busy - 30, 10, 5, self.idle - 3, 3, 5, 5, 5, 7, 7]
        (self.folder / "stat").write_text(f"cpu  {' '.join(map(str, words))}\ncpu0 1 2 3\n")
        pressure = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self.waited_us}\nfull avg10=0.00 total=9\n"
        (self.folder / "pressure" / "cpu").write_text(pressure)
        for process, ticks in self.engine.items():
            (self.folder / str(process)).mkdir(exist_ok=True)
            (self.folder / str(process) / "cgroup").write_text(f"0::/system.slice/docker-{self.container}.scope\n")
            text = f"{process} (VLLM: Engine) R 1 " + "0 " * 9 + f"{ticks} {ticks} 0 0 20\n"
            (self.folder / str(process) / "stat").write_text(text)

    def second(self, *, busy: int, engine: int, own_s: float = 0.0, waited_us: int = 0) -> None:
        """Let a second pass: of its 200 ticks the CPUs were busy for `busy`, and half of `engine` was user time."""
        self.busy, self.idle, self.at = self.busy + busy, self.idle + 200 - busy, self.at + 1
        self.own_s, self.waited_us = self.own_s + own_s, self.waited_us + waited_us
        self.engine = {process: ticks + engine // 2 for process, ticks in self.engine.items()}
        self.write()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path, busy=1000, idle=1000, engine={41: 100})


def test_an_engine_that_uses_every_cpu_is_no_foreign_load(proc: Proc) -> None:
    cpu = proc.cpu()
    proc.second(busy=200, engine=190, own_s=0.1, waited_us=900_000)
    assert cpu.read() == {"foreign_cpu": 0.0, "cpu_wait": 0.9}


def test_what_others_use_is_foreign(proc: Proc) -> None:
    cpu = proc.cpu()
    proc.second(busy=200, engine=100, own_s=0.2, waited_us=500_000)
    assert cpu.read() == {"foreign_cpu": 0.4, "cpu_wait": 0.5}
    proc.second(busy=100, engine=100)
    assert cpu.read() == {"foreign_cpu": 0.0, "cpu_wait": 0.0}


def test_a_process_of_the_engine_that_begins_or_ends_counts_as_its_own(proc: Proc) -> None:
    cpu = proc.cpu()
    proc.engine = {41: 150, 42: 50}
    proc.second(busy=200, engine=0)
    assert cpu.read()["foreign_cpu"] == 0.0
    for name in ("stat", "cgroup"):
        (proc.folder / "42" / name).unlink()
    (proc.folder / "42").rmdir()
    proc.engine = {41: 150}
    proc.second(busy=100, engine=100)
    assert cpu.read()["foreign_cpu"] == 0.0


def test_an_engine_that_restarts_is_found_again(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = proc.cpu()
    proc.container = "a7" * 32
    monkeypatch.setitem(ID, "vllm-demo", proc.container)
    (proc.folder / "41" / "stat").unlink()
    proc.engine = {43: 0}
    proc.second(busy=100, engine=100)
    assert cpu.read()["foreign_cpu"] == 0.0


@pytest.mark.parametrize("container", ["", "vllm-other"])
def test_without_the_engine_no_load_is_foreign(proc: Proc, container: str) -> None:
    cpu = proc.cpu(container)
    proc.second(busy=200, engine=0, waited_us=500_000)
    assert cpu.read() == {"cpu_wait": 0.5}


def test_a_kernel_without_these_files_has_no_values(proc: Proc) -> None:
    cpu = proc.cpu()
    (proc.folder / "pressure" / "cpu").unlink()
    proc.at += 1
    assert cpu.read() == {}
    (proc.folder / "stat").write_text("cpu 1 2\n")
    assert cpu.read() == {}
