"""The trial of a firewall table on a host: guard, confirmation and failures. nft and systemd are replaced."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_firewall as node
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_guard, spark_io
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandError, CommandResult

Answers = dict[str, int]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[str]]:
    """Put the files of the module below tmp_path. The function sets the status of commands and returns their list."""
    for name in ("FILE", "TRIAL"):
        monkeypatch.setattr(node, name, f"{tmp_path}{getattr(node, name)}")
    monkeypatch.setattr(
        node, "RESTORE", node.RESTORE.replace("/etc/", f"{tmp_path}/etc/").replace("/run/", f"{tmp_path}/run/")
    )

    def _calls(answers: Answers) -> list[str]:
        seen: list[str] = []

        def run(*argv: str, **_: object) -> CommandResult:
            seen.append(" ".join(argv).replace(str(tmp_path), ""))
            status = next((status for part, status in answers.items() if part in seen[-1]), 0)
            return CommandResult(status, "", "said no" if status else "")

        for module in (node, spark_guard, spark_io):
            monkeypatch.setattr(module, "run", run)
        return seen

    return _calls


def test_a_table_is_judged_and_guarded_before_it_is_loaded(calls: Callable[[Answers], list[str]]) -> None:
    seen = calls({})
    node.begin_trial("table\n", 60)
    order = [
        next(n for n, call in enumerate(seen) if part in call) for part in ("--check", "systemd-run", "nft --file")
    ]
    assert order == sorted(order)
    assert "--on-active 60" in seen[order[1]]
    assert Path(node.TRIAL).read_text() == "table\n"
    assert not Path(node.FILE).exists()


@pytest.mark.parametrize("part", ["--check", "systemd-run", "nft --file /run"])
def test_a_trial_that_does_not_begin_leaves_nothing(part: str, calls: Callable[[Answers], list[str]]) -> None:
    seen = calls({part: 1})
    with pytest.raises(CommandError, match="said no"):
        node.begin_trial("table\n", 60)
    assert not Path(node.TRIAL).exists()
    assert seen[-1] == f"systemctl stop {node.GUARD}.timer"


def test_a_confirmed_table_is_kept_for_the_next_boot(calls: Callable[[Answers], list[str]]) -> None:
    seen = calls({"iptables": 1})
    node.begin_trial("table\n", 60)
    assert node.keep_trial()
    assert Path(node.FILE).read_text() == "table\n"
    assert not Path(node.TRIAL).exists()
    assert {f"systemctl stop {node.GUARD}.timer", f"systemctl enable {node.UNIT}", f"systemctl start {node.UNIT}"} <= {
        *seen
    }


@pytest.mark.parametrize(("before", "said"), [("", "delete table inet vllm_spark"), ("old\n", "--file")])
def test_the_guard_restores_the_table_before(
    before: str, said: str, calls: Callable[[Answers], list[str]], tmp_path: Path
) -> None:
    calls({})
    if before:
        Path(node.FILE).parent.mkdir(parents=True)
        Path(node.FILE).write_text(before)
    node.begin_trial("table\n", 60)
    stub = tmp_path / "nft"
    stub.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/log\n')
    stub.chmod(0o755)
    script = node.RESTORE.replace(node.PROGRAM, str(stub))
    for status in (0, 1):
        # Once: whoever comes second finds no trial.
        assert subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True).returncode == status
    assert said in (tmp_path / "log").read_text()
    assert not node.keep_trial()
    assert (Path(node.FILE).read_text() if before else "") == before
