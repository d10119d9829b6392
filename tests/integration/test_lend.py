"""A lease on a Spark, as processes: its programs with a fake systemctl, from its begin to its end (issue 52)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import placed_spark
from fakes.placed_spark import GIB, PlacedSpark
from vllm_spark.core import paths
from vllm_spark.node import lease
from vllm_spark.node.deployment_state import LENT, SERVING, STOPPED
from vllm_spark.node.lease import Lease
from vllm_spark.node.state_writer import StateOf
from vllm_spark.node.unit_limits import NO_RESTART

PROGRAM = f"""{placed_spark.BEGINS}
import importlib
program = importlib.import_module("vllm_spark.node." + sys.argv[2])
if hasattr(program, "AWAIT_S"):
    program.AWAIT_S = 0.3
sys.exit(program.main(sys.argv[3:]))
"""
# It asks `state` before it starts a unit, as ExecCondition does.
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$0.calls"
"""


class FakeSpark(PlacedSpark):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("chat", "embed"), {"share": 0, "bytes": 40 * GIB}, available=20)
        (folder / "wants").mkdir()
        for name in ("chat", "embed"):
            (folder / "wants" / f"vllm@{name}.service").symlink_to("/etc/systemd/system/vllm@.service")
        for name, text in (("systemctl", SYSTEMCTL), ("docker", "#!/bin/sh\n"), ("nvidia-smi", "#!/bin/sh\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def run(self, program: str, *words: str, status: int = 0, **env: str) -> Any:
        """Run a program. Returns the JSON that it prints."""
        argv = [sys.executable, "-c", PROGRAM, str(self.folder), program, *words]
        path = f"{self.folder}:/usr/bin:/bin"
        own = {"PATH": path, "TZ": "UTC", "PYTHONPATH": str(paths.ROOT / "src"), **env}
        done = subprocess.run(argv, capture_output=True, text=True, env=own, check=False)
        assert done.returncode == status, done.stderr
        self.warned = done.stderr
        return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout

    def lend(self, *lent: str, until: float) -> None:
        noted = Lease("spark1", 40, until, "ada", lent)
        assert self.run("lend", "--begin", noted.text()) == {"started": [], "waits": ""}

    def ends(self) -> None:
        """Let the time of the lease pass."""
        held = lease.read(self.places)
        assert held is not None
        lease.write(Lease(held.spark, held.gib, time.time() - 60, held.by, held.lent), self.places)

    def borrower(self, gib: int) -> str:
        """Start a process that holds so much of the GPU. Returns what is said of it."""
        self.processes.append(process := subprocess.Popen(["sleep", "600"]))
        (self.folder / "nvidia-smi").write_text(f'#!/bin/sh\necho "{process.pid}, {gib << 10}"\n')
        return f"sleep (pid {process.pid}) holds {gib} GiB"

    def calls(self) -> list[str]:
        """Return the calls of systemctl, and forget them."""
        file = self.folder / "systemctl.calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def boots(self) -> None:
        shutil.rmtree(self.places.run, ignore_errors=True)


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[FakeSpark]:
    fake = FakeSpark(tmp_path)
    yield fake
    fake.end()


def test_a_lent_deployment_starts_neither_by_hand_nor_at_a_boot(spark: FakeSpark) -> None:
    StateOf("embed", spark.places).write(SERVING)
    spark.lend("embed", until=time.time() + 3600)
    assert "enable --now vllm-lease.timer" in spark.calls()
    # It serves until it is stopped.
    assert spark.state("embed")[0] == SERVING
    (spark.folder / "systemctl").write_text(
        '#!/bin/sh\n[ "$1" = list-jobs ] && echo "1 vllm@embed.service stop running"\n'
    )
    spark.run("unit_events", "ended", "embed", SERVICE_RESULT="success")
    state, why = spark.state("embed")
    assert state == LENT
    assert why.startswith("until 20")
    assert why.endswith("UTC: 40 GiB of spark1, by ada")
    spark.run("unit_events", "starts", "embed", status=NO_RESTART)
    assert (Path(spark.places.run) / "states.map").read_text().split()[3].startswith("lent_")
    spark.boots()
    spark.run("unit_events", "starts", "embed", status=NO_RESTART)
    assert spark.state("embed") == (LENT, why)
    spark.run("unit_events", "starts", "chat")
    assert spark.state("chat")[0] == "loading"


def test_a_lease_names_the_operator_who_holds_the_spark(spark: FakeSpark) -> None:
    Path(spark.places.run).mkdir()
    lock = {"user": "ann", "controller": "desk", "verb": "lend"}
    (Path(spark.places.run) / "operator.lock").write_text(json.dumps(lock))
    spark.lend("embed", until=time.time() + 3600)
    assert spark.state("embed")[1].endswith("40 GiB of spark1, by ann@desk with lend")


def test_the_timer_tells_the_state_of_what_no_boot_starts(spark: FakeSpark) -> None:
    (spark.folder / "wants" / "vllm@embed.service").unlink()
    spark.lend("embed", until=time.time() + 3600)
    spark.boots()
    assert spark.state("embed")[0] == STOPPED
    spark.run("lend")
    assert spark.state("embed")[0] == LENT
    spark.ends()
    spark.available(100)
    assert spark.run("lend") == {"started": [], "waits": ""}
    assert spark.state("embed") == (STOPPED, "its lease has ended")


def test_the_end_brings_back_what_fits_and_ends_the_timer(spark: FakeSpark) -> None:
    spark.lend("chat", "embed", until=time.time() + 3600)
    spark.available(100)
    # Its time is not over.
    assert spark.run("lend") == {"started": [], "waits": ""}
    assert not [call for call in spark.calls() if call.startswith(("start", "disable"))]
    spark.ends()
    assert spark.run("lend") == {"started": ["chat", "embed"], "waits": ""}
    assert spark.calls()[-2:] == [
        "start --no-block vllm@chat.service vllm@embed.service",
        "disable --now vllm-lease.timer",
    ]
    assert lease.read(spark.places) is None
    for name in ("chat", "embed"):
        spark.run("unit_events", "starts", name)
        assert spark.state(name)[0] == "loading"


def test_a_reboot_past_the_end_is_an_end(spark: FakeSpark) -> None:
    spark.lend("embed", until=time.time() + 3600)
    spark.ends()
    spark.boots()
    # The memory may be another program's that starts with the Spark too.
    spark.run("unit_events", "starts", "embed", status=NO_RESTART)
    spark.available(100)
    assert spark.run("lend")["started"] == ["embed"]


def test_a_borrower_that_stays_is_named_and_nothing_starts_into_its_memory(spark: FakeSpark) -> None:
    spark.lend("chat", "embed", until=time.time() + 3600)
    spark.calls()
    spark.ends()
    spark.available(50)
    borrower = spark.borrower(70)
    told = spark.run("lend")
    assert told["started"] == ["chat"]
    assert "embed: its lease has ended" in spark.warned
    # It loads, and has not taken its memory yet.
    assert spark.state("chat") == ("wanted", "its lease has ended")
    assert spark.run("lend")["started"] == []
    assert "it waits for 48 GiB of spark1; " in told["waits"]
    assert told["waits"].endswith(f"; {borrower}")
    assert spark.state("embed") == (LENT, told["waits"])
    assert told["waits"].startswith("its lease has ended (20")
    assert "start --no-block vllm@chat.service" in spark.calls()
    # chat has its memory now, and the other one waits on.
    StateOf("chat", spark.places).write(SERVING)
    spark.available(10)
    assert spark.run("lend")["started"] == []
    spark.run("unit_events", "starts", "embed", status=NO_RESTART)
    spark.available(60)
    assert spark.run("lend") == {"started": ["embed"], "waits": ""}
    assert "disable --now vllm-lease.timer" in spark.calls()


def test_an_early_end_is_an_end(spark: FakeSpark) -> None:
    spark.lend("embed", until=time.time() + 3600)
    spark.available(100)
    assert spark.run("lend", "--end") == {"started": ["embed"], "waits": ""}
    # A second one finds none.
    assert spark.run("lend", "--end") == {"started": [], "waits": ""}


@pytest.mark.parametrize("text", ["", "{", '{"spark": "spark1"}', "[]"])
def test_a_lease_that_cannot_be_read_counts_as_none(text: str, spark: FakeSpark) -> None:
    StateOf("chat", spark.places).write(SERVING)
    spark.lend("embed", until=time.time() + 3600)
    StateOf("embed", spark.places).write(LENT, "until a time")
    spark.calls()
    (spark.folder / "lease.json").write_text(text)
    spark.available(60)
    assert spark.run("lend") == {"started": ["embed"], "waits": ""}
    assert "is no lease, so it counts as none" in spark.warned
    assert not [call for call in spark.calls() if call.startswith("stop")]
    assert not (spark.folder / "lease.json").exists()
    spark.run("unit_events", "starts", "embed")
    assert spark.state("chat")[0] == SERVING


def test_the_wait_for_memory_ends_and_names_who_holds_it(spark: FakeSpark) -> None:
    borrower = spark.borrower(70)
    told = spark.run("lend", "--await", "40")
    assert told["available"] == 20 * GIB
    assert told["holder"] == borrower
    spark.available(40)
    assert spark.run("lend", "--await", "40") == {"available": 40 * GIB, "holder": ""}


@pytest.mark.parametrize("words", [["--begin", "{}"], ["--begin"], ["--later"]])
def test_another_command_does_nothing(words: list[str], spark: FakeSpark) -> None:
    assert spark.run("lend", *words, status=2) == ""
    assert lease.read(spark.places) is None
