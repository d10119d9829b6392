"""HAProxy's version: which have the fault, which are unknown, and a process that is older than its program."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from vllm_spark.core import paths
from vllm_spark.edge import version

# Version, whether the changelog of its package names the fix -> whether it has the fault.
VERSIONS: list[tuple[str, bool | None, bool | None]] = [
    ("2.6.12-1+deb12u4", None, False),
    ("2.6.12-1+deb12u3", None, False),
    ("2.6.12-1+deb12u2", None, True),
    ("2.6.12-1+deb12u2", False, True),
    ("2.8.16", None, False),
    ("2.8.15", None, True),
    ("2.8.15-abc1234", None, None),
    ("2.8.25", None, False),
    ("2.8.5-1ubuntu3.3", None, None),
    ("2.8.5-1ubuntu3.3", False, True),
    ("2.8.5-1ubuntu3.4", True, False),
    ("2.4.29", None, True),
    ("2.4.30", None, False),
    ("3.0.11-1+deb13u1", True, False),
    ("3.0.11-1+deb13u1", None, None),
    ("3.0.8", None, None),
    ("3.2.5", None, True),
    ("3.2.6-1", None, False),
    ("3.4.0-1", None, False),
    ("edge", None, None),
]


@pytest.mark.parametrize(("text", "names_fix", "faulty"), VERSIONS)
def test_a_version_has_the_fault_or_not_or_nobody_knows(text: str, names_fix: bool | None, faulty: bool | None) -> None:
    assert version.is_faulty(text, names_fix) is faulty


def of(text: str, names_fix: bool | None = None, outdated: list[str] | None = None, **edge: Any) -> dict[str, Any]:
    """Return what `status` has of a host."""
    found = {"version": text, "changelog_names_fix": names_fix, "outdated": outdated or []}
    shown: Any = {"files": {"haproxy.cfg": []}, "haproxy": found, **edge}
    own = version.of_host(shown)
    assert own is not None
    assert version.warnings(shown) == own["warnings"]
    return own


def test_a_faulty_version_is_a_warning_with_the_command() -> None:
    (warning,) = of("2.8.5-1ubuntu3.3", names_fix=False)["warnings"]
    assert warning.startswith("HAProxy 2.8.5-1ubuntu3.3 has CVE-2025-11230: ")
    assert "Fix: sudo apt-get install --only-upgrade haproxy. " in warning
    assert "See docs/runbooks/edge-version.md" in warning
    assert (paths.RUNBOOKS / f"{version.RUNBOOK}.md").is_file()


def test_an_unknown_version_is_said_as_unknown() -> None:
    own = of("2.8.5-1ubuntu3.3")
    assert own["warnings"] == []
    assert version.shown(own) == "HAProxy 2.8.5-1ubuntu3.3; whether it has CVE-2025-11230 is unknown"
    assert version.shown(of("2.6.12-1+deb12u4")) == "HAProxy 2.6.12-1+deb12u4"


def test_a_process_that_is_older_than_its_program_is_named() -> None:
    (warning,) = of("2.8.16", outdated=["vllm-edge.service", "vllm-edge-route.service"])["warnings"]
    assert warning.startswith(
        "vllm-edge.service and vllm-edge-route.service runs a HAProxy that an upgrade has replaced"
    )
    assert "Fix: sudo systemctl reload vllm-edge. " in warning


@pytest.mark.parametrize(
    "edge", [None, {"files": {}, "haproxy": {"version": "2.8.16"}}, {"files": {"x": []}, "haproxy": {"version": ""}}]
)
def test_a_host_without_an_edge_has_nothing(edge: Any) -> None:
    assert version.of_host(edge) is None
    assert version.warnings(edge) == []


def test_the_facts_name_version_changelog_and_replaced_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is a real one. Its file is replaced as dpkg does."""
    program, changelog = tmp_path / "haproxy", tmp_path / "changelog.gz"
    shutil.copy(shutil.which("sleep") or "", program)
    monkeypatch.setattr(spark_edge, "PROGRAM", str(program))
    monkeypatch.setattr(spark_edge, "CHANGELOG", str(changelog))
    with subprocess.Popen([str(program), "60"]) as process:
        monkeypatch.setattr(spark_edge, "unit_properties", lambda *_: {"MainPID": str(process.pid)})
        before = spark_edge.haproxy()
        changelog.write_bytes(gzip.compress(b"  * CVE-2025-11230: fix possible DoS when parsing JSON numbers.\n"))
        (tmp_path / "new").write_text("#!/bin/sh\necho 'HAProxy version 2.8.5-1ubuntu3.4 2025/10/06 - x'\n")
        (tmp_path / "new").chmod(0o755)
        os.replace(tmp_path / "new", program)
        after = spark_edge.haproxy()
        process.kill()
    assert before == {"version": "", "changelog_names_fix": None, "outdated": []}
    units = ["vllm-edge.service", "vllm-edge-route.service"]
    assert after == {"version": "2.8.5-1ubuntu3.4", "changelog_names_fix": True, "outdated": units}
    changelog.write_bytes(gzip.compress(b"  * New upstream version\n"))
    assert spark_edge.haproxy()["changelog_names_fix"] is False
    monkeypatch.setattr(spark_edge, "unit_properties", lambda *_: {"MainPID": "0"})
    assert spark_edge.haproxy()["outdated"] == []
    assert spark_edge.CVE == version.CVE
