"""The files of a job: the request is read once, and each error has its reason."""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path

import pytest

from vllm_spark.node import host_job
from vllm_spark.node.bench.server import ServerError
from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.job import JobError

# error -> (reason, detail)
ERRORS: dict[Exception, tuple[str, str]] = {
    ServerError("it answers 404"): ("server", "it answers 404"),
    LinkError("x is a link"): ("link-in-hub", "x is a link"),
    JobError("giver", "it does not prove itself"): ("giver", "it does not prove itself"),
    OSError(errno.ENOSPC, "full"): ("disk-full", "OSError: [Errno 28] full"),
    PermissionError(errno.EACCES, "denied"): ("os", "PermissionError: [Errno 13] denied"),
    subprocess.CalledProcessError(3, ["false"]): (
        "ended",
        "CalledProcessError: Command '['false']' returned non-zero exit status 3.",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_job, "RUN_DIR", tmp_path)
    (tmp_path / "demo.request").write_text('{"token": "secret"}')
    return tmp_path


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_becomes_the_result(folder: Path, error: Exception) -> None:
    def work(request: dict[str, str]) -> dict[str, object]:
        assert request == {"token": "secret"}
        raise error

    assert host_job.run("demo", work) == 1
    reason, detail = ERRORS[error]
    assert json.loads((folder / "demo.result").read_text()) == {"ok": False, "reason": reason, "detail": detail}
    assert not (folder / "demo.request").exists()


@pytest.mark.parametrize(("done", "status"), [({"moved": 5}, 0), ({"ok": False, "detail": "no token"}, 1)])
def test_the_work_decides_the_result(folder: Path, done: dict[str, object], status: int) -> None:
    assert host_job.run("demo", lambda _: done) == status
    assert json.loads((folder / "demo.result").read_text()) == {"ok": True, **done}


def test_an_error_that_nobody_expects_ends_the_program(folder: Path) -> None:
    def work(_: object) -> dict[str, object]:
        raise RuntimeError("a fault of the program")

    with pytest.raises(RuntimeError):
        host_job.run("demo", work)
    assert not (folder / "demo.result").exists()
