"""Time and CPU of a deploy that changes nothing, against one fresh ssh and against `ansible -m ping`, measured in turn.

Needs the sandbox with `tiny` deployed behind its edge, which is the default (`make bench-converge` deploys it). Prints
ratios of one run. It has no limits and cannot fail.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import yaml

from vllm_spark.core import paths

INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
HOST = "spark1"
# Lines of Ansible's own recap.
RECAP = re.compile(r"PLAY RECAP|: ok=\d+")
# Ansible says each execution from -vvvv on.
LOUDEST = "-vvvv"
EXECUTION = re.compile(r"SSH: EXEC")
# A task of the plays, which the sandbox's own output does not show.
TASK = re.compile(r"^task path: ", re.MULTILINE)


def ssh() -> None:
    """Open one new connection to the host and run a command that does nothing."""
    hosts = yaml.load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    address = hosts["sparks"]["hosts"][HOST]["ansible_host"]
    argv = ["ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519")]
    argv += ["-o", f"UserKnownHostsFile={STATE / 'known_hosts'}", f"spark@{address}", "true"]
    subprocess.run(argv, capture_output=True, check=True)


def ansible(*argv: str) -> str:
    """Run a program of Ansible on the host and return what it prints. Ends the bench if it fails.

    ansible-core 2.19 says its executions on stderr, and older versions on stdout.
    """
    command = ["env", "ANSIBLE_FORCE_COLOR=0", *argv, "-i", str(INVENTORY), "-l", HOST]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=paths.ROOT, text=True, check=False, **both)
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def deploy(*argv: str) -> str:
    return ansible("ansible-playbook", "deploy.yml", *argv)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of an act, and the CPU seconds of its processes on this machine."""
    started, before = time.perf_counter(), os.times()
    act()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    output = deploy(LOUDEST)
    if not re.search(rf"{HOST} +: ok=\d+ +changed=0 ", output):
        raise SystemExit("this deploy changed something; the bench needs a deploy that changes nothing\n" + output)
    executions = len(EXECUTION.findall(output))
    if not executions:
        raise SystemExit(f"no ssh execution is in the output of {LOUDEST}: nothing is counted, or the host is local")
    lines = [line for line in deploy().splitlines() if line.strip() and not RECAP.search(line)]
    acts: dict[str, Callable[[], object]] = {
        "one fresh ssh": ssh,
        "ansible -m ping": lambda: ansible("ansible", HOST, "-m", "ping"),
        "deploy.yml that changes nothing": deploy,
    }
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    cpus: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            wall, cpu = timed(act)
            seconds[name].append(wall)
            cpus[name].append(cpu)
    medians = {name: statistics.median(measured) for name, measured in seconds.items()}
    for name, measured in seconds.items():
        span = f"({min(measured):.2f} to {max(measured):.2f})"
        print(f"{name:<34} {medians[name]:6.2f} s   {span}, CPU {statistics.median(cpus[name]):.2f} s")
    fresh, ping, whole = medians.values()
    print(
        f"deploy / fresh ssh {whole / fresh:.1f} (aim: 20 at most); deploy / ping {whole / ping:.1f} (aim: 4 at most)"
    )
    print(f"{executions} ssh executions; {len(TASK.findall(output))} tasks; {len(lines)} lines; {rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
