"""A bench whose operator has left: what the same command finds on the Spark, and that the evidence stays readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench_streams import steady, usage
from fakes import scripted_engine
from fakes.scripted_engine import MODEL, Stream
from vllm_spark.bench import evidence
from waiting import until

pytestmark = pytest.mark.integration

EVENTS = steady(8, first=0.02, gap=0.005)
KEY = dict.fromkeys(
    ("model", "commit", "layout", "image", "launch", "topology", "hosts", "toolkit", "protocol"), "as before"
)
NAMES = ("one", "two", "three")


def cell(name: str) -> dict[str, Any]:
    sizes = {"corpus": "code", "prompt": 5, "output": 8, "depth": 0, "streams": 1}
    return {"id": name, **sizes, "sampling": {}, "server": {}}


@dataclass
class Spark:
    """A head with an engine, and the bench's job as spark_host_job starts it."""

    url: str
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "demo-standard.jsonl"

    def start(self, run_id: str, *, launch: str = "as before", accepted: tuple[str, ...] = ("garbage",)) -> Any:
        subject = dict.fromkeys(("deployment", "recipe", "served_name", "url", "engine_version"), "demo")
        run = {"record": "run", "schema": 1, "id": run_id * 12, "started": f"2026-01-0{run_id}T00:00:00Z"}
        request = {
            "url": self.url,
            "model": MODEL,
            "env_path": "",
            "host": "spark1",
            "container": "",
            "path": str(self.path),
            "run": {
                **run,
                "profile": {"name": "standard"},
                "key": {**KEY, "launch": launch},
                "subject": subject,
                "host": {},
            },
            "cells": [cell(name) for name in NAMES],
            "rules": {"least_runs": 2, "most_runs": 2, "warm_up": 1},
            "accepted": list(accepted),
            "ends": True,
        }
        (self.folder / "bench.result").unlink(missing_ok=True)
        (self.folder / "bench.request").write_text(json.dumps(request))
        words = [sys.executable, "-m", "vllm_spark.node.bench.job", "bench"]
        return subprocess.Popen(words, env={**os.environ, "VLLM_SPARK_JOBS": str(self.folder)})

    def runs(self, run_id: str, **options: Any) -> str:
        """Run the job to its end and return what it says of the file that it found."""
        assert self.start(run_id, **options).wait() == 0
        assert json.loads((self.folder / "bench.result").read_text()) == {"ok": True, "failed": 0}
        progress = json.loads((self.folder / "bench.progress").read_text())
        assert progress["done"] == len(NAMES)
        return str(progress["note"])

    def records(self) -> list[dict[str, Any]]:
        complete = self.path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in complete.splitlines()]

    def names(self) -> list[str]:
        """Return the records in order: `run`, the ids of cells, `end`."""
        return [record.get("cell", {}).get("id", record["record"]) for record in self.records()]


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    with scripted_engine.process([Stream(EVENTS, usage(EVENTS))], tmp_path) as url:
        yield Spark(url, tmp_path)


def test_a_job_that_ended_alone_is_not_measured_again(spark: Spark) -> None:
    assert spark.runs("1") == ""
    before = spark.records()
    assert spark.runs("2") == "continues the run that began 2026-01-01T00:00:00Z: 3 of 3 cells are measured"
    assert spark.names() == ["run", *NAMES, "end"]
    assert spark.records()[:-1] == before[:-1]
    assert evidence.read(spark.path).end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_job_that_was_ended_in_a_cell_loses_that_cell_alone(spark: Spark, number: int) -> None:
    job = spark.start("1")
    until(lambda: spark.path.exists() and spark.path.read_bytes().count(b"\n") >= 2)
    job.send_signal(number)
    assert job.wait() != 0
    kept = [name for name in spark.names() if name in NAMES]
    assert spark.runs("2").endswith(f"{len(kept)} of 3 cells are measured")
    assert spark.names() == ["run", *NAMES, "end"]
    assert evidence.read(spark.path).notes == ()


def test_a_job_that_was_killed_between_two_cells_or_in_a_line_continues(spark: Spark) -> None:
    spark.runs("1")
    lines = spark.path.read_bytes().splitlines(keepends=True)
    for cut in (b"", lines[2][:50]):
        spark.path.write_bytes(b"".join(lines[:2]) + cut)
        assert spark.runs("2").endswith("1 of 3 cells are measured")
        assert spark.names() == ["run", *NAMES, "end"]


def test_cells_that_do_not_count_are_measured_again_after_the_end(spark: Spark) -> None:
    spark.runs("1")
    run, first, *rest = spark.records()
    worthless = {**first, "state": "worthless", "figures": {}}
    spark.path.write_text("".join(f"{json.dumps(record)}\n" for record in (run, worthless, *rest)))
    assert spark.runs("2").endswith("2 of 3 cells are measured")
    assert spark.names() == ["run", *NAMES, "one", "end"]
    read = evidence.read(spark.path)
    assert (read.cells["one"]["state"], read.end and read.end["measured"]) == ("measured", 3)


def test_a_file_with_two_ends_of_an_older_version_goes_on(spark: Spark) -> None:
    spark.runs("1")
    records = spark.records()
    spark.path.write_text("".join(f"{json.dumps(record)}\n" for record in (*records, *records[1:])))
    old = evidence.read(spark.path)
    assert old.notes == ("line 6 follows an end: the run went on, and its last end counts",)
    assert (list(old.cells), old.end) == (list(NAMES), records[-1])
    assert spark.runs("2").endswith("3 of 3 cells are measured")
    assert spark.names() == ["run", *NAMES, *NAMES, "end"]


def test_another_launch_begins_a_new_file(spark: Spark) -> None:
    spark.runs("1")
    before = spark.path.read_bytes()
    said = spark.runs("2", launch="of a rollback")
    old = spark.folder / "demo-standard.old.jsonl"
    assert said == f"{spark.path} is of a run with another launch: it is kept as {old}, and every cell is measured"
    assert old.read_bytes() == before
    assert [record["id"] for record in spark.records() if record["record"] == "run"] == ["2" * 12]
    assert spark.names() == ["run", *NAMES, "end"]


def test_a_line_that_a_crash_has_filled_with_zeros_does_not_block_a_run(spark: Spark) -> None:
    spark.runs("1")
    with spark.path.open("ab") as file:
        file.write(b"\0" * 64 + b"\n")
    assert spark.runs("2").startswith(f"line 6 of {spark.path} is no record: it is kept as ")
    assert spark.names() == ["run", *NAMES, "end"]
