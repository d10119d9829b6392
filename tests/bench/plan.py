"""CPU time and lines of plan.yml for 1 to 64 hosts with a deployment each, against `ansible -m ping` on them.

The hosts are this machine under many names, so plan.yml refuses them: a refusal is the longest output. The time of the
modules is that of a Spark and is shown apart. Prints figures of one run. It has no limits and cannot fail.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

from vllm_spark.core import paths

RECIPE = "gemma-4-26b-a4b-fp8-mtp"
# Runs a module and notes its user and system time.
INTERPRETER = """#!/bin/bash
TIMEFORMAT='cpu %U %S'
{{ time {python} "$@"; }} 2>>{noted}
"""
NOTED = re.compile(r"^cpu ([\d.]+) ([\d.]+)$", re.MULTILINE)


class Cost(NamedTuple):
    """CPU seconds of the controller and of the modules, how many modules ran, and the lines of the output."""

    controller: float
    modules: float
    runs: int
    lines: int


def inventory(folder: Path, hosts: int) -> Path:
    """Write an inventory of so many hosts, with a deployment on each, and return its file."""
    names = [f"spark{number}" for number in range(1, hosts + 1)]
    deployments = [{"name": f"on-{name}", "recipe": RECIPE, "hosts": [name]} for name in names]
    variables = {
        # The plugin `local` under the name that the toolkit does not read: here it stands for ssh to other machines.
        "ansible_connection": "ansible.legacy.local",
        "ansible_become": False,
        "ansible_python_interpreter": str(folder / "python"),
        "vllm_deployments": deployments,
    }
    file = folder / "hosts.yml"
    file.write_text(yaml.safe_dump({"sparks": {"hosts": dict.fromkeys(names), "vars": variables}}), encoding="utf-8")
    return file


def cost(*argv: str, noted: Path) -> Cost:
    """Run a program of Ansible and return its cost."""
    noted.write_text("")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "ANSIBLE_FORCE_COLOR": "0"}
    done = subprocess.run(argv, cwd=paths.ROOT, capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    both = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    runs = [float(user) + float(system) for user, system in NOTED.findall(noted.read_text())]
    return Cost(both - sum(runs), sum(runs), len(runs), len((done.stdout + done.stderr).splitlines()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64])
    counts = parser.parse_args().hosts
    print(
        f"{'hosts':>5} {'plan: CPU s':>12} {'of the first':>13} {'ping: CPU s':>12} {'a Spark: CPU s':>15} "
        f"{'modules':>8} {'lines':>6}"
    )
    first = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noted, python = folder / "noted", folder / "python"
        python.write_text(INTERPRETER.format(python=sys.executable, noted=noted))
        python.chmod(0o755)
        for hosts in counts:
            file = str(inventory(folder, hosts))
            planned = cost("ansible-playbook", "-i", file, "plan.yml", noted=noted)
            ping = cost("ansible", "-i", file, "all", "-m", "ping", noted=noted)
            first = first or planned.controller
            print(
                f"{hosts:>5} {planned.controller:>12.1f} {planned.controller / first:>12.1f}x {ping.controller:>12.1f} "
                f"{planned.modules / hosts:>15.2f} {planned.runs / hosts:>8.1f} {planned.lines:>6}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
