"""The program by which deployments of one Spark load one after another, as processes (issue 52)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fakes import placed_spark
from fakes.placed_spark import GIB, PlacedSpark
from vllm_spark.core import paths
from vllm_spark.node.deployment_state import LOADING, SERVING, WANTED
from vllm_spark.node.state_writer import StateOf
from waiting import until

PROGRAM = f"""{placed_spark.BEGINS}
from vllm_spark.node import turn
turn.POLL_S, turn.ROOM_S = 0.05, 0.5
from vllm_spark.node import take_turn
take_turn.STOP_S = float(sys.argv[2])
sys.exit(take_turn.main(sys.argv[3:]))
"""


class FakeSpark(PlacedSpark):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("chat", "fast"), {"share": 0.1, "bytes": 20 * GIB}, available=100)

    def run(self, *words: str, stop_s: float = 60) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROGRAM, str(self.folder), str(stop_s), *words]
        self.processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=paths.ROOT / "src"))
        return self.processes[-1]

    def start(self, name: str, command: Sequence[str] = ("sleep", "60")) -> subprocess.Popen[str]:
        return self.run(name, "--", "sh", "-c", f'touch "{self.folder}/{name}"; exec "$@"', "sh", *command)

    def began(self, name: str) -> bool:
        return (self.folder / name).exists()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[FakeSpark]:
    fake = FakeSpark(tmp_path)
    yield fake
    fake.end()


def test_the_second_one_loads_when_the_first_one_serves(spark: FakeSpark) -> None:
    spark.start("chat")
    until(lambda: spark.began("chat"))
    assert spark.state("chat") == (LOADING, "")
    spark.start("fast")
    until(lambda: spark.state("fast") == (WANTED, "it waits for its turn to load: chat loads on this Spark"))
    assert not spark.began("fast")
    StateOf("chat", spark.places).write(SERVING)
    until(lambda: spark.began("fast"))
    assert spark.state("fast") == (LOADING, "")


def test_a_crash_gives_the_turn_back(spark: FakeSpark) -> None:
    first = spark.start("chat")
    until(lambda: spark.began("chat"))
    spark.start("fast")
    until(lambda: spark.state("fast")[0] == WANTED)
    first.kill()
    until(lambda: spark.began("fast"))


def test_the_status_of_the_command_is_that_of_the_program(spark: FakeSpark) -> None:
    assert spark.start("chat", ("sh", "-c", "exit 7")).wait() == 7
    # Nothing is left that holds the turn.
    spark.start("fast")
    until(lambda: spark.began("fast"))


def test_a_start_waits_for_its_memory_and_ends_without_it(spark: FakeSpark) -> None:
    spark.available(27)
    waiting = spark.start("chat")
    until(lambda: spark.state("chat")[1].startswith("it waits for memory: 27.0 GiB"))
    spark.available(28)
    until(lambda: spark.began("chat"))
    waiting.kill()
    spark.available(27)
    lacking = spark.start("fast")
    said, _ = lacking.communicate()
    assert lacking.returncode == 1
    assert "27.0 GiB of memory are available, and fast needs 28.0" in said
    assert "Fix: ps axo rss,comm" in said
    assert not spark.began("fast")


def test_a_stop_waits_for_a_neighbour_that_loads_and_not_for_itself(spark: FakeSpark) -> None:
    assert spark.run("--stop", "chat").wait() == 0
    spark.start("chat")
    until(lambda: spark.began("chat"))
    assert spark.run("--stop", "chat").wait() == 0
    stop = spark.run("--stop", "fast")
    with pytest.raises(subprocess.TimeoutExpired):
        stop.wait(1)
    StateOf("chat", spark.places).write(SERVING)
    assert stop.wait() == 0


def test_a_stop_does_not_wait_for_ever(spark: FakeSpark) -> None:
    spark.start("chat")
    until(lambda: spark.began("chat"))
    stop = spark.run("--stop", "fast", stop_s=0.3)
    said, _ = stop.communicate()
    assert (stop.returncode, said) == (0, "vllm-spark: fast stops though chat loads, after 0 s\n")
