"""What is known about the HAProxy of a host: its version, its faults, and whether the edge runs it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllm_spark.core.refusal import Fix, message
from vllm_spark.core.types import EdgeFacts

# The fault of the function by which the edge reads the model in a body: a person with a key can keep a thread busy.
CVE = "CVE-2025-11230"
# Branch -> its first release without the fault. Branches above the last one never had it in a release.
FIXED = {(2, 4): 30, (2, 8): 16, (3, 2): 6}
# Debian 12 has 2.6.12 with fixes of its own, numbered.
DEBIAN, DEBIAN_FIXED = re.compile(r"2\.6\.12-1\+deb12u(\d+)"), 3
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
EXPECTED = "2.6.12-1+deb12u3, 2.8.16, or a package of the distribution whose changelog names it as fixed"
RUNBOOK = "edge-version"


def is_faulty(version: str, changelog_names_fix: bool | None) -> bool | None:
    """Return whether a version of HAProxy has the fault, None if that is unknown. `version` is what `haproxy -v` says,
    in Debian and Ubuntu with the package's number; `changelog_names_fix` is None without a changelog of the package.
    Distributions repair a version without another number of the release, so their changelog counts first."""
    if changelog_names_fix:
        return False
    if debian := DEBIAN.fullmatch(version):
        return int(debian[1]) < DEBIAN_FIXED
    if not (release := RELEASE.match(version)):
        return None
    major, minor, patch = map(int, release.groups())
    if (major, minor) > max(FIXED) or patch >= FIXED.get((major, minor), patch + 1):
        return False
    # A package without the line in its changelog, or a release as HAProxy itself has made it.
    is_package = "-" in version and changelog_names_fix is None
    return None if is_package or (major, minor) not in FIXED else True


def warnings(edge: EdgeFacts | None) -> list[str]:
    """Return what an owner does about the HAProxy of a host."""
    return list((of_host(edge) or {}).get("warnings", []))


def of_host(edge: EdgeFacts | None) -> dict[str, Any] | None:
    """Return what `status` says of the HAProxy of a host with an edge; None without one."""
    if not (edge and (found := edge.get("haproxy")) and found["version"] and edge["files"]):
        return None
    faulty = is_faulty(found["version"], found["changelog_names_fix"])
    return {"version": found["version"], "faulty": faulty, "warnings": _warnings(found, faulty)}


def _warnings(found: Mapping[str, Any], faulty: bool | None) -> list[str]:
    warnings = []
    if faulty:
        fix = Fix(
            "sudo apt-get install --only-upgrade haproxy",
            "On that host, after `sudo apt-get update`; then `sudo systemctl reload vllm-edge`.",
        )
        what = f"HAProxy {found['version']} has {CVE}: a request with a key keeps the edge busy"
        warnings.append(message(what, EXPECTED, fix, runbook=RUNBOOK))
    if found["outdated"]:
        fix = Fix("sudo systemctl reload vllm-edge", "On that host; it cuts no stream.")
        what = f"{' and '.join(found['outdated'])} runs a HAProxy that an upgrade has replaced"
        warnings.append(message(what, f"the program that is installed, {found['version']}", fix, runbook=RUNBOOK))
    return warnings


def shown(own: Mapping[str, Any]) -> str:
    """Return the line about what `of_host` has returned, while there is no warning."""
    unknown = f"; whether it has {CVE} is unknown" if own["faulty"] is None else ""
    return f"HAProxy {own['version']}{unknown}"
