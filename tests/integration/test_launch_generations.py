"""The launches of a deployment on its host: a loss of power before any step leaves the old or the new launch complete,
and the next run ends right."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_files, spark_launches

FILES = spark_files.DEPLOYMENT_FILES
CALLS = (
    *((os, name) for name in ("replace", "symlink", "unlink", "rmdir", "mkdir")),
    (shutil, "copy2"),
)


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write without waiting for the disk. tests/unit/node/test_state_files.py has the fsync."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class PowerCut(BaseException):
    """The process ends. Nothing that it does afterwards has an effect."""


@contextmanager
def power_until(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Cut the power before call number `step` of the file system. Yields the calls that were made."""
    done: list[str] = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(done) >= step:
                raise PowerCut
            done.append(real.__name__)
            return real(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for module, name in CALLS:
            patched.setattr(module, name, counted(getattr(module, name)))
        yield done


def write(folder: Path, mark: str, names: tuple[str, ...] = FILES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(json.dumps({"launch": mark}))
        (folder / name).chmod(0o600 if name == "env" else 0o644)


def place(folder: Path, mark: str, keep_as: str = "previous", names: tuple[str, ...] = FILES) -> None:
    """Install a launch as vllm_files does: nothing if it is there already."""
    files = [{"path": str(folder / name), "content": json.dumps({"launch": mark}), "mode": "0644"} for name in names]
    stale = [file for file in files if text(Path(file["path"])) != file["content"]]
    if stale:
        spark_files.install(str(folder), stale, keep_as)


def text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def older(folder: Path) -> None:
    """A folder of an older toolkit: c runs, b and a before it, x has failed."""
    for below, mark in (("", "c"), ("previous", "b"), ("previous/previous", "a"), ("failed", "x")):
        write(folder / below, mark)
    (folder / ".previous-half").mkdir()


def older_partly_replaced(folder: Path) -> None:
    """An older toolkit was interrupted while it replaced c by d: c is in previous/ already."""
    older(folder)
    for below, mark in (("previous", "c"), ("previous/previous", "b")):
        write(folder / below, mark)
    write(folder, "d", ("launch", "env"))


def older_in_a_rollback(folder: Path) -> None:
    """An older toolkit was interrupted in a rollback from x to c."""
    for below, mark in (("", "x"), ("previous", "c"), ("swapping", "c"), ("swapping/previous", "b")):
        write(folder / below, mark)
    write(folder / "swapping/previous/previous", "a")
    write(folder, "c", ("launch",))


def generations(folder: Path) -> None:
    """The same launches as in `older`, deployed one after the other."""
    folder.mkdir()
    for mark, keep_as in (("a", ""), ("b", "previous"), ("x", "previous"), ("b", "failed"), ("c", "previous")):
        place(folder, mark, keep_as)


def by_hand(folder: Path) -> None:
    """An editor has replaced the links of b by files of c."""
    folder.mkdir()
    for mark in ("a", "b", "y"):
        place(folder, mark)
    write(folder, "c")


def roll_back(folder: Path) -> None:
    if json.loads(text(folder / "deployed.json"))["launch"] == "c":
        spark_files.swap(str(folder), "")


def take_back(folder: Path) -> None:
    if json.loads(text(folder / "deployed.json"))["launch"] == "c":
        spark_files.restore_previous(str(folder), "")


def stack(folder: Path) -> str:
    """Return the marks of the current launch and of the two before it. All files of a launch have one mark."""
    marks = []
    for below in ("", "previous", "previous/previous"):
        if (folder / below / "launch").exists():
            [mark] = {json.loads((folder / below / name).read_text())["launch"] for name in FILES}
            marks.append(mark)
    return "".join(marks)


Run = Callable[[Path], object]
# name -> (state of the folder, run, mark of the launch before it, marks of the launches after it, of the failed one)
CASES: dict[str, tuple[Callable[[Path], None], Run, str, str, str]] = {
    f"{name}, {prepare.__name__}": (prepare, run, "c", after, failed)
    for prepare in (older, generations)
    for name, run, after, failed in (
        ("deploy", lambda folder: place(folder, "d"), "dcb", "x"),
        ("deploy over a launch that never served", lambda folder: place(folder, "d", "failed"), "dba", "c"),
        ("b returns over a launch that never served", lambda folder: place(folder, "b", "failed"), "ba", "c"),
        ("a launch fails its gates", take_back, "ba", "c"),
        ("manual rollback", roll_back, "bca", "x"),
    )
}
CASES |= {
    "a change beside the launch": (older, lambda folder: spark_files.adopt(str(folder)), "c", "cba", "x"),
    "partly replaced": (older_partly_replaced, lambda folder: place(folder, "e"), "", "ecb", "x"),
    "in a rollback": (older_in_a_rollback, lambda folder: place(folder, "e"), "", "ecb", ""),
    "edited": (by_hand, lambda folder: place(folder, "e"), "c", "ecb", ""),
}


def check_tidy(folder: Path) -> None:
    """Check that every name is a link, and that no launch is left that no name leads to."""
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert [name for name in FILES if not (folder / name).is_symlink()] == []
    reachable = {
        (folder / below).resolve().name
        for below in ("current", "previous", "previous/previous", "failed", "swapping")
        if (folder / below).exists()
    }
    assert {path.name for path in (folder / "launches").iterdir()} <= reachable


@pytest.mark.parametrize("case", CASES)
def test_a_cut_before_any_step(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, run, before, after, failed = CASES[case]
    prepare(tmp_path / "start")
    steps, cut = 0, True
    while cut:
        folder = tmp_path / str(steps)
        shutil.copytree(tmp_path / "start", folder, symlinks=True)
        with power_until(steps, monkeypatch) as done:
            try:
                run(folder)
                cut = False
            except PowerCut:
                steps += 1
        if before:  # an older toolkit leaves files of two launches
            assert stack(folder)[0] in {before, after[0]}, done
        run(folder)
        assert stack(folder) == after, done
        assert {json.loads(text(folder / "failed" / name))["launch"] for name in FILES if failed} == set(failed), done
        spark_files.adopt(str(folder))
        check_tidy(folder)
    # A restored launch is complete already: only two links change.
    assert steps >= 4


def test_a_changed_secret_keeps_the_launches_and_the_time_of_the_other_files(tmp_path: Path) -> None:
    generations(tmp_path / "demo")
    folder = tmp_path / "demo"
    os.utime(folder / "launch", (1, 1))
    spark_files.install(str(folder), [{"path": "env", "content": '{"launch": "c", "key": 1}', "mode": "0600"}])
    assert stack(folder) == "cba"
    assert json.loads(text(folder / "env"))["key"] == 1
    assert (folder / "launch").stat().st_mtime == 1
    assert (folder / "env").stat().st_mtime > 1
    assert (folder / "env").stat().st_mode & 0o777 == 0o600


def test_an_interrupted_rollback_is_shown_until_it_is_settled(tmp_path: Path) -> None:
    generations(tmp_path / "demo")
    spark_files.swap(str(tmp_path / "demo"), "")
    launches = spark_launches.launches(str(tmp_path / "demo"))
    assert {name: launch["record"]["launch"] for name, launch in launches.items()} == {
        **{"current": "b", "previous": "c", "previous/previous": "a", "failed": "x", "swapping": "b"}
    }
    assert launches["current"]["record"]["previous"] == {"launch": "c"}
    spark_files.settle(str(tmp_path / "demo"))
    assert "swapping" not in spark_launches.launches(str(tmp_path / "demo"))


@pytest.mark.parametrize("way", [spark_files.swap, spark_files.restore_previous])
def test_a_launch_that_returns_has_the_secrets_of_today(way: Callable[[str, str], list[str]], tmp_path: Path) -> None:
    """The fields of env files: HF_TOKEN has changed, VLLM_API_KEY and OLD_PASS are withdrawn, NEW_PASS came later."""
    folder = tmp_path / "demo"
    for mark, env in (
        ("b", "# secrets\nHF_TOKEN=of-that-day\nOLD_PASS=withdrawn\nVLLM_API_KEY=withdrawn\n"),
        ("c", "# secrets\nHF_TOKEN=of-the-deploy\n"),
    ):
        folder.mkdir(exist_ok=True)
        place(folder, mark)
        spark_files.install(str(folder), [{"path": "env", "content": env, "mode": "0600"}])
    assert way(str(folder), "HF_TOKEN=of=today\nNEW_PASS=new\nOLD_PASS=\n") == ["OLD_PASS", "VLLM_API_KEY"]
    first, token, key = text(folder / "env").splitlines()
    assert (first, token) == ("# secrets", "HF_TOKEN=of=today")
    assert re.fullmatch("VLLM_API_KEY=.{40,}", key)
    assert "withdrawn" not in key
    assert (folder / "env").stat().st_mode & 0o777 == 0o600
    assert all("of-that-day" not in file.read_text() for file in folder.rglob("env"))


def test_a_launch_whose_secrets_are_the_same_keeps_its_env_file(tmp_path: Path) -> None:
    """A new modification time would count as a newer env file."""
    folder = tmp_path / "demo"
    folder.mkdir()
    place(folder, "b")
    spark_files.install(str(folder), [{"path": "env", "content": "# s\nHF_TOKEN=a\n", "mode": "0600"}])
    os.utime(folder / "env", (1, 1))
    place(folder, "c")
    assert spark_files.swap(str(folder), "HF_TOKEN=a") == []
    assert (folder / "env").stat().st_mtime == 1


def test_a_link_that_an_operator_has_turned(tmp_path: Path) -> None:
    """docs/operations/roll-back.md: without the operator's machine."""
    folder = tmp_path / "demo"
    generations(folder)
    previous = (folder / "previous").resolve()
    (folder / "current").unlink()
    (folder / "current").symlink_to(previous)
    assert stack(folder) == "ba"
    place(folder, "d")
    assert stack(folder) == "dba"


def launches_of(folder: Path) -> dict[str, str]:
    """Return the record of every launch that a name leads to."""
    names = ("", "previous", "previous/previous", "failed")
    return {name: (folder / name / "deployed.json").read_text() for name in names if (folder / name).is_dir()}


@pytest.mark.parametrize("prepare", [generations, by_hand], ids=["with a failed launch", "without one"])
@pytest.mark.parametrize("changes", ["", "d", "de"])
def test_saved_launches_are_put_back(prepare: Callable[[Path], None], changes: str, tmp_path: Path) -> None:
    """A measurement deploys changes of the server, the last of which fails, and then the launch before them."""
    folder, kept = tmp_path / "demo", tmp_path / "state" / "kept"
    prepare(folder)
    spark_files.save(str(folder), str(kept))
    before = launches_of(folder)
    for mark in changes:
        place(folder, mark)
    if changes:
        spark_files.restore_previous(str(folder), "")
        place(folder, "c")
    (folder / "deployed.json").resolve().write_text(json.dumps({"launch": "c", "at": "later"}))
    assert spark_files.put_back(str(folder), str(kept))
    assert launches_of(folder) == before
    assert not kept.exists()
    check_tidy(folder)
    # An interrupted measurement may be put back twice.
    assert not spark_files.put_back(str(folder), str(kept))
    assert launches_of(folder) == before


RESTORE = """
import os, sys, time
from project_files import load_module
from ansible.module_utils.testing import patch_module_args

for name in ("replace", "symlink", "unlink", "rmdir", "mkdir"):
    def slow(*args, real=getattr(os, name), **options):
        time.sleep(0.03)
        return real(*args, **options)
    setattr(os, name, slow)
module = load_module("vllm_restore")
print("started", flush=True)
with patch_module_args({"folder": sys.argv[1], "launch": "b", "env_content": ""}):
    module.main()
"""


@pytest.mark.parametrize("prepare", [older, generations], ids=lambda prepare: prepare.__name__)
def test_a_rollback_that_is_killed_at_any_point_is_completed_by_the_next(
    prepare: Callable[[Path], None], tmp_path: Path
) -> None:
    """Ten kills of the module of a rollback at random points. What a boot would start is one complete launch."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)  # noqa: S311  a failure names the seed
    prepare(tmp_path / "start")
    marks, environment = [], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for kill in [*range(10), None]:
        folder = tmp_path / str(kill)
        shutil.copytree(tmp_path / "start", folder, symlinks=True)
        argv = [sys.executable, "-c", RESTORE, str(folder)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            if kill is not None:
                time.sleep(chance.uniform(0, 0.6))
                process.send_signal(signal.SIGKILL)
            process.communicate()
        marks.append(stack(folder)[0])
        assert process.returncode in ({0, -signal.SIGKILL} if kill is not None else {0}), f"seed {seed}"
        if kill is not None:
            roll_back(folder)
        assert stack(folder) == "bca", f"seed {seed}"
        assert json.loads(text(folder / "failed" / "launch"))["launch"] == "x", f"seed {seed}"
        spark_files.adopt(str(folder))
        check_tidy(folder)
    assert set(marks) <= {"b", "c"}, f"seed {seed}"
