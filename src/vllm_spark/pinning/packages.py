"""The wheels of a derived image's packages and of all that these need, as pip resolves them. Nothing is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.pinning.resolution import Resolution
from vllm_spark.recipe import wheels

NO_PIP = register("no-pip", runbook="wheels")
NO_WHEELS = register("no-wheels", runbook="wheels")

ELSEWHERE = "vllm_spark.pinning.pip_elsewhere"
DEADLINE_S = 600.0
# Versions of glibc, 2.X: the first of manylinux, and that of Ubuntu 22.04, the oldest system of vLLM's images.
GLIBC = (17, 35)


def resolve(pins: tuple[str, ...], python: str, platforms: tuple[str, ...]) -> Resolution:
    """Return the lines of a requirements file for a Python, with the hashes of every platform. The index is that of
    pip's own settings on this machine. Raises RefusedError."""
    if importlib.util.find_spec("pip") is None:
        raise NO_PIP.error(
            what=f"{sys.executable} has no pip",
            expected="pip, which finds the wheels of the recipe's packages",
            fix=Fix(f"{sys.executable} -m ensurepip"),
        )
    # A pin keeps its spelling: 1.0 is the release 1.0.0.
    named = {line.partition("==")[0]: line for line in map(wheels.normal, pins)}
    hashes: dict[str, list[str]] = defaultdict(list)
    hosts: set[str] = set()
    for platform in platforms:
        for row in _report(pins, python, platform):
            download = row["download_info"]
            line = wheels.normal(f"{row['metadata']['name']}=={row['metadata']['version']}")
            line = named.get(line.partition("==")[0], line)
            hashes[line] += [f"--hash=sha256:{_sha256(download['archive_info'])}"]
            hosts.add(urlsplit(download["url"]).hostname or "this machine")
    if len({line.partition("==")[0] for line in hashes}) < len(hashes):
        raise _no_wheels(pins, python, " and ".join(platforms), "each platform gets other versions")
    lines = [" ".join([line, *dict.fromkeys(hashes[line])]) for line in sorted(hashes)]
    return Resolution("\n".join(lines), ", ".join(sorted(hosts)))


def _sha256(archive: Mapping[str, Any]) -> str:
    """Return the hash of a file in pip's report. pip 23.0, which Debian 12 has, knows only the older field `hash`."""
    hashes: Mapping[str, str] = archive.get("hashes") or dict([archive["hash"].split("=", 1)])
    return hashes["sha256"]


def _report(pins: tuple[str, ...], python: str, platform: str) -> Iterator[Mapping[str, Any]]:
    """Yield what pip would install on a platform. Raises RefusedError."""
    machine = MACHINES[platform]
    markers = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        try:
            done = subprocess.run(  # noqa: S603  pip of this Python; the words are checked by the recipe's schema
                [
                    *(sys.executable, "-m", ELSEWHERE, json.dumps(markers), "install"),
                    *("--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)),
                    *("--quiet", "--no-input", "--disable-pip-version-check", "--only-binary=:all:"),
                    *("--implementation=cp", f"--python-version={python}", *_platforms(machine), *pins),
                ],
                capture_output=True,
                check=False,
                text=True,
                timeout=DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise _no_wheels(pins, python, platform, f"pip took more than {DEADLINE_S:.0f} s") from error
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            raise _no_wheels(pins, python, platform, (errors or done.stderr.splitlines() or ["pip failed"])[-1])
        found = json.loads(report.read_text(encoding="utf-8"))
    if markers.items() - found["environment"].items():
        raise _no_wheels(pins, python, platform, f"pip {found['pip_version']} judges only for its own Python")
    yield from found["install"]


def _platforms(machine: str) -> Iterator[str]:
    yield from (f"--platform=manylinux_2_{minor}_{machine}" for minor in range(GLIBC[1], GLIBC[0] - 1, -1))
    yield f"--platform=manylinux2014_{machine}"


def _no_wheels(pins: tuple[str, ...], python: str, platform: str, reason: str) -> RefusedError:
    return NO_WHEELS.error(
        what=f"{' '.join(pins)} for Python {python} on {platform}: {' '.join(reason.removeprefix('ERROR: ').split())}",
        expected="a wheel of each package and of everything that it needs",
        fix="correct image.derive.pip of the recipe, or name another index for this machine: PIP_INDEX_URL.",
    )
