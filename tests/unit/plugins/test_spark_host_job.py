"""The start of a job beside one that an interrupted run has left. systemd is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandResult

from project_files import load_module

PULL: Mapping[str, Any] = {
    "job": "image",
    "joins": True,
    "programs": {"a.py": "1"},
    "program_dir": "/programs",
    "argv": ["python3"],
    "request": {"image": "x"},
    "token": "",
    "environment_variables": {},
}


class Systemd:
    """The unit by its state and description, and the commands in their order."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.state, self.description, self.commands = "inactive", "", list[str]()

    def run(self, program: str, *words: str, **_: object) -> CommandResult:
        if words[0] == "show":
            return CommandResult(0, f"Description={self.description}\nActiveState={self.state}\n")
        self.commands.append(words[0] if program == "systemctl" else program)
        if program == "systemd-run":
            described = [word.partition("=")[2] for word in words if word.startswith("--description=")]
            self.state, self.description = "active", described[0]
        return CommandResult(0)

    def start(self, **more: Any) -> None:
        assert self.module.start({**PULL, **more}).status == 0


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """The host's systemd, with a job that runs."""
    systemd = Systemd(load_module("spark_host_job"))
    monkeypatch.setattr(systemd.module, "JOBS", str(tmp_path))
    monkeypatch.setattr(systemd.module, "run", systemd.run)
    systemd.start()
    assert systemd.commands[-1] == "systemd-run"
    systemd.commands.clear()
    return systemd


def test_the_same_request_joins_the_job_that_runs(systemd: Systemd, tmp_path: Path) -> None:
    (tmp_path / "image.progress").write_text("{}")
    systemd.start()
    assert systemd.commands == []
    assert (tmp_path / "image.progress").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"request": {"image": "y"}},
        {"programs": {"a.py": "2"}},
        {"environment_variables": {"HTTPS_PROXY": "http://p"}},
        {"token": "of-this-run"},
        {"joins": False},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_request_stops_it(systemd: Systemd, other: dict[str, Any]) -> None:
    systemd.start(**other)
    assert systemd.commands[0] == "stop"
    assert systemd.commands[-1] == "systemd-run"


@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating"])
def test_a_job_that_has_ended_is_started_again(systemd: Systemd, state: str) -> None:
    systemd.state = state
    systemd.start()
    assert systemd.commands[-1] == "systemd-run"


def test_the_description_of_a_job_that_is_not_joined_has_nothing_of_its_secrets(systemd: Systemd) -> None:
    systemd.start(joins=False, **{"token": "of-this-run"})
    assert systemd.description == "vllm-spark-pull-image"
