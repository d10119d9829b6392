"""Files, JSON documents and commands of a host: complete or not at all, and a result for every command."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_io


@pytest.mark.parametrize("mode", ["0600", "0644", "0755"])
def test_a_written_file_has_its_content_and_mode(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    spark_io.write_file(str(path), "grüße\n", mode)
    assert (path.read_text(encoding="utf-8"), spark_io.mode_of(str(path))) == ("grüße\n", mode)
    assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())


def test_a_written_file_replaces_the_old_one_by_a_rename(tmp_path: Path) -> None:
    path, old = tmp_path / "file", tmp_path / "old"
    path.write_text("old")
    old.hardlink_to(path)
    spark_io.write_file(str(path), "new", "0644")
    assert (path.read_text(), old.read_text()) == ("new", "old")


@pytest.mark.parametrize("step", ["fchmod", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space left"):
            spark_io.write_file(str(path), "new", "0644")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_synced_and_has_its_mode_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fchmod", "fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (steps.append(name), real(*args)))
    spark_io.write_file(str(tmp_path / "file"), "new", "0600")
    assert steps == ["fchmod", "fsync", "replace", "fsync"], "the last one is the folder's"


# content of a JSON file -> the object
DOCUMENTS: dict[bytes, dict[str, object] | None] = {
    b'{"a": 1}': {"a": 1},
    b"{}": {},
    b"[]": None,
    b"3": None,
    b"": None,
    b'{"a": ': None,
    b"\xff\xfe": None,
}


@pytest.mark.parametrize("content", DOCUMENTS)
def test_only_a_whole_object_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    assert spark_io.read_object(str(tmp_path / "file.json")) == DOCUMENTS[content]


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert spark_io.read_text(missing) is None
    assert spark_io.read_object(missing) is None
    assert spark_io.sha256(missing) is None
    assert spark_io.sha256(str(tmp_path)) is None


def test_a_text_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ab\xffcd")
    assert spark_io.read_text(str(tmp_path / "file")) == "ab\ufffdcd"
    assert spark_io.read_text(str(tmp_path / "file"), 3) == "ab\ufffd"


def test_a_checksum_is_that_of_all_bytes(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 7)
    (tmp_path / "file").write_bytes(content)
    assert spark_io.sha256(str(tmp_path / "file")) == hashlib.sha256(content).hexdigest()


# script -> (exit status, output, error)
COMMANDS = {
    "echo a": (0, "a", "a"),
    "echo a; echo b >&2": (0, "a", "b"),
    "echo b >&2; exit 3": (3, "b", "b"),
    "exit 3": (3, "", ""),
    r"printf '\377'": (0, "\ufffd", "\ufffd"),
    "cat": (0, "input", "input"),
    'echo "$NAME"': (0, "value", "value"),
}


@pytest.mark.parametrize("script", COMMANDS)
def test_a_command_returns_status_and_output(script: str) -> None:
    result = spark_io.run("/bin/sh", "-c", script, stdin="input", env={"NAME": "value", "PATH": os.environ["PATH"]})
    assert (result.status, result.output, result.error) == COMMANDS[script]


def test_a_command_that_does_not_end_is_killed_at_the_timeout() -> None:
    started_at = time.monotonic()
    result = spark_io.run("sleep", "60", timeout_s=0.2)
    assert time.monotonic() - started_at < 10
    assert result == (spark_io.TIMED_OUT, "", "sleep did not answer within 0 s")


def test_a_command_that_does_not_start_has_a_status_too(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("")
    (tmp_path / "program").chmod(0o644)
    assert spark_io.run("/no/such/program") == (spark_io.NOT_FOUND, "", "/no/such/program: not found")
    result = spark_io.run(str(tmp_path / "program"))
    assert (result.status, result.error) == (spark_io.NOT_EXECUTABLE, f"{tmp_path}/program: Permission denied")


def test_a_required_command_returns_its_output() -> None:
    assert spark_io.must("sh", "-c", "echo done") == "done"


def test_a_required_command_that_fails_is_named_on_one_line() -> None:
    script = "\n".join(["echo a line >/dev/null"] * 50 + ["echo no room >&2", "exit 3"])
    with pytest.raises(spark_io.CommandError) as failed:
        spark_io.must("sh", "-c", script)
    said = str(failed.value)
    assert said.startswith("sh -c echo a line")
    assert said.endswith("… ended with 3: no room")
    assert "\n" not in said
    assert len(said) < spark_io.MAX_COMMAND_CHARACTERS + 50
