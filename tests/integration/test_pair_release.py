"""A rank of this toolkit with one of release 0.1.0, whose process goes on after a deploy has replaced its program: both
real supervisors. The old one counts by its own rules and gets only messages that it knows, until its process ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pair_link import HEAD, KEY, WORKER, api, port  # noqa: F401  fixtures

from fakes.rank_process import TIMES, RankProcess
from vllm_spark.core import paths
from vllm_spark.node import host_layout
from vllm_spark.node.supervise import attempt
from waiting import until

RELEASE = "v0.1.0"
PRINT = """import json
from vllm_spark.deploy import files
print(json.dumps({file.path: file.content for file in files.supervisor()}))"""
# Old and new rank, and which one is the head.
Mixed = tuple[RankProcess, RankProcess, bool]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the release's supervisor: place -> content."""
    try:
        argv = ["git", "-C", str(paths.ROOT), "archive", RELEASE]
        tree = subprocess.run(argv, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"git has no {RELEASE} here")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        archive.extractall(folder, filter="data")
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    printed = subprocess.run(
        [sys.executable, "-c", PRINT], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return dict(json.loads(printed.stdout))


class FormerRank(RankProcess):
    """A rank of the release."""

    placed: dict[str, str]

    def _install(self) -> None:
        for path, content in self.placed.items():
            place = self.folder / Path(path).relative_to(host_layout.PROGRAM_DIR)
            place.parent.mkdir(parents=True, exist_ok=True)
            folders = {"/etc/vllm-spark": "etc", "/run/vllm-spark": "run", "/var/lib/vllm-spark/states": "states"}
            for own, name in folders.items():
                content = content.replace(f'"{own}"', repr(str(self.folder / name)))  # noqa: PLW2901  one text
            for old, new in (TIMES["link"], TIMES["meeting"]):
                content = content.replace(old, new)  # noqa: PLW2901
            place.write_text(content)


@pytest.fixture(params=["the head is old", "the worker is old"])
def mixed(request: pytest.FixtureRequest, release: dict[str, str], tmp_path: Path) -> Iterator[Mixed]:
    """An old and a new rank that serve together."""
    FormerRank.placed = release
    at, answers = request.getfixturevalue("port"), request.getfixturevalue("api")
    old_head = request.param == "the head is old"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = FormerRank(tmp_path / "old", KEY), RankProcess(tmp_path / "new", KEY)
    old.says("show", "0\n")  # how often systemd has restarted it
    head, worker = (old, new) if old_head else (new, old)
    head.start(0, HEAD, WORKER, at, answers)
    until(lambda: head.state["state"] == "wanted")
    worker.start(1, WORKER, HEAD, at)
    until(lambda: head.state["state"] == worker.state["state"] == "serving")
    yield old, new, old_head
    for rank in (old, new):
        rank.end()


@pytest.mark.parametrize("whose", [0, 1])
def test_they_end_together_and_the_new_one_counts_it(mixed: Mixed, whose: int) -> None:
    old, new, _ = mixed
    (old, new)[whose].kill_container()
    until(lambda: old.status is not None and new.status is not None)
    assert [old.status, new.status] == [attempt.FAULT] * 2
    assert new.count["failures"] == [new.start_id]


def test_a_goodbye_of_either_is_no_failure(mixed: Mixed) -> None:
    old, new, _ = mixed
    new.end()
    until(lambda: old.state["state"] == "wanted")
    assert old.status is None
    new.again()
    until(lambda: old.state["state"] == new.state["state"] == "serving")
    old.end()
    until(lambda: new.status is not None)
    assert (new.status, new.count["failures"]) == (attempt.OVER, [])


def test_a_give_up_of_the_new_one_ends_the_old_process(mixed: Mixed) -> None:
    old, new, _ = mixed
    record = new.folder / "starts" / "demo.json"
    document = json.loads(record.read_text())
    document["count"]["failures"] = ["1", "2", "3", "4"]
    record.write_text(json.dumps(document))
    new.kill_container()
    until(lambda: new.state["state"] == "gave up" and old.status is not None)
    # With the program of this toolkit it starts again, and hears of it.
    assert old.status == attempt.FAULT
