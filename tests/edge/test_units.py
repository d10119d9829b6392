"""What the units of HAProxy forbid, tried with HAProxy: the edge does its work without that."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Start
from fakes import edge_cases
from fakes.running_edge import RunningEdge, haproxy
from vllm_spark.core import paths
from vllm_spark.node import host_layout

UNITS = (host_layout.EDGE_UNIT, host_layout.EDGE_ROUTE_UNIT)
STRACE, ANALYZE = shutil.which("strace"), shutil.which("systemd-analyze")
# prctl(2), of Linux 6.3 and later: what MemoryDenyWriteExecute does.
PR_SET_MDWE, REFUSE_GAIN = 65, 1


def settings(unit: str) -> list[str]:
    return (paths.TEMPLATES / unit).read_text(encoding="utf-8").splitlines()


def calls_of(group: str) -> set[str]:
    """Return the system calls of a group of systemd's, with those of the groups in it."""
    command = [str(ANALYZE), "syscall-filter", "--no-pager", group]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.strip() for line in done.stdout.splitlines() if re.match(r"\s+[@a-z_]", line)}
    return {name for name in names if name[0] != "@"}.union(*(calls_of(name) for name in names if name[0] == "@"))


@pytest.mark.skipif(STRACE is None, reason="strace is not installed, which lists the system calls of a program")
@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed, which knows the calls of a filter")
def test_haproxy_makes_only_calls_that_its_units_allow(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = tmp_path / "haproxy"
    traced.write_text(f'#!/bin/sh\nexec {STRACE} -D -f -qq -o "{tmp_path}/$$.calls" {haproxy()} "$@"\n')
    traced.chmod(0o755)
    monkeypatch.setenv("HAPROXY", str(traced))
    edge = start()
    assert edge.ask("POST", "/v1/chat/completions", {"model": "model"}).status == 200
    edge.close()
    made = {
        found
        for file in tmp_path.glob("*.calls")
        for found in re.findall(r"^\d+ +(\w+)\(", file.read_text(errors="replace"), re.MULTILINE)
    }
    assert {"sendmsg", "epoll_wait"} & made
    assert made <= (calls_of("@default") | calls_of("@system-service")) - calls_of("@privileged")
    for unit in UNITS:
        filters = [line for line in settings(unit) if line.startswith("SystemCallFilter=")]
        assert filters == ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged"]


def test_haproxy_needs_memory_for_the_machine_code_of_a_site(tmp_path: Path) -> None:
    """So its units have no MemoryDenyWriteExecute."""
    libc = ctypes.CDLL(None)
    deployments, edge_settings, _ = edge_cases.GOLDEN["site"]
    edge = RunningEdge(edge_cases.edge_of(deployments, edge_settings), tmp_path)
    edge._certify()
    edge.configure()

    def verdict(preexec: object = None) -> str:
        command = [haproxy(), "-c", "-f", edge.files.config]
        return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=preexec).stderr  # type: ignore[call-overload,no-any-return]

    assert verdict() == ""
    refused = verdict(lambda: libc.prctl(PR_SET_MDWE, REFUSE_GAIN, 0, 0, 0))
    edge.log.close()
    if not refused:
        pytest.skip("this kernel has no PR_SET_MDWE, or this PCRE makes no machine code")
    assert "jit compilation failed" in refused
    assert not [line for unit in UNITS for line in settings(unit) if line.startswith("MemoryDenyWriteExecute")]
