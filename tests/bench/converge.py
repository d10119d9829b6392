"""Cost of a deploy that changes nothing for one, two and four Sparks as one server, against `ansible -m ping` on them.

Needs the sandbox; `make bench-converge` starts it, and SPARKS=4 before it gives four. What serves there is stopped,
each size is deployed in place of the one before, and nothing serves at the end. Prints a row per size, of one run. It
has no limits and cannot fail.

Eight look-alikes on one machine would measure that machine. `make bench-plan` has a plan for eight hosts, with a
stand-in for ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from vllm_spark.core import paths

INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
HOST = "spark1"
# Sparks -> the server over all of them.
OVER_MP = {"topology": {"executor": "mp"}, "gates": {"ready": {"deadline_s": 900}}}
SERVERS: Mapping[int, Mapping[str, Any]] = {
    1: {"name": "tiny", "recipe": "tiny-gemma4"},
    2: {"name": "two", "recipe": "tiny-gemma4-tp2", "overrides": OVER_MP},
    3: {"name": "three", "recipe": "tiny-gemma4-pp3", "overrides": OVER_MP},
    4: {"name": "four", "recipe": "tiny-gemma4-tp4", "overrides": OVER_MP},
}
# Lines of Ansible's own recap.
RECAP = re.compile(r"PLAY RECAP|: ok=\d+")
UNCHANGED = re.compile(r"^(spark\d+) +: ok=\d+ +changed=0 .*failed=0 ", re.MULTILINE)
# Ansible says each execution from -vvvv on.
LOUDEST = "-vvvv"
EXECUTION = re.compile(r"SSH: EXEC")
# A task of the plays, which the sandbox's own output does not show.
TASK = re.compile(r"^task path: ", re.MULTILINE)
COLUMNS = ("Sparks", "deploy", "CPU", "of one", "ping", "CPU", "deploy/ping", "executions", "a Spark", "tasks", "lines")


class Times(NamedTuple):
    """Seconds, and CPU seconds of the processes on this machine: one of each for each round."""

    wall: list[float]
    cpu: list[float]


class Cost(NamedTuple):
    """What a deploy and a ping of so many Sparks cost."""

    deploy: Times
    ping: Times
    executions: int
    tasks: int
    lines: int


def ssh() -> None:
    """Open one new connection to the first host and run a command that does nothing."""
    hosts = yaml.load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    address = hosts["sparks"]["hosts"][HOST]["ansible_host"]
    argv = ["ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519")]
    argv += ["-o", f"UserKnownHostsFile={STATE / 'known_hosts'}", f"spark@{address}", "true"]
    subprocess.run(argv, capture_output=True, check=True)


def hosts_of(sparks: int) -> list[str]:
    return [f"spark{number}" for number in range(1, sparks + 1)]


def ansible(sparks: int, *argv: str) -> str:
    """Run a program of Ansible on so many Sparks and return what it prints. Ends the bench if it fails.

    ansible-core 2.19 says its executions on stderr, and older versions on stdout.
    """
    command = ["env", "ANSIBLE_FORCE_COLOR=0", *argv, "-i", str(INVENTORY), "-l", ",".join(hosts_of(sparks))]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=paths.ROOT, text=True, check=False, **both)
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def deploy(sparks: int, *argv: str) -> str:
    """Deploy the server of so many Sparks. The others are of the inventory, too, and not active."""
    deployments = [{**one, "hosts": hosts_of(size), "active": size == sparks} for size, one in SERVERS.items()]
    # A server over Sparks that the sandbox does not have would be refused.
    deployments = [one for one in deployments if len(one["hosts"]) <= up()]
    words = ["-e", json.dumps({"vllm_deployments": deployments})]
    return ansible(sparks, "ansible-playbook", "deploy.yml", *words, *argv)


def up() -> int:
    """Return the Sparks that the sandbox has, as inventories/sandbox/more_sparks.py reads it."""
    return int(os.environ.get("SPARKS") or 2)


def timed(rounds: int, *acts: Callable[[], object]) -> list[Times]:
    """Return the times of each act, which are run in turn."""
    measured = [Times([], []) for _ in acts]
    for _ in range(rounds):
        for act, times in zip(acts, measured, strict=True):
            started, before = time.perf_counter(), os.times()
            act()
            after = os.times()
            times.wall.append(time.perf_counter() - started)
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            times.cpu.append(cpu)
    return measured


def cost(sparks: int, rounds: int) -> Cost:
    """Deploy the server, and return what its next deploys cost. Ends the bench if they change something."""
    deploy(sparks)
    output = deploy(sparks, LOUDEST)
    if sorted(UNCHANGED.findall(output)) != hosts_of(sparks):
        raise SystemExit("this deploy changed something; the bench needs a deploy that changes nothing\n" + output)
    executions = len(EXECUTION.findall(output))
    if not executions:
        raise SystemExit(f"no ssh execution is in the output of {LOUDEST}: nothing is counted, or the host is local")
    lines = [line for line in deploy(sparks).splitlines() if line.strip() and not RECAP.search(line)]
    limit = ",".join(hosts_of(sparks))
    both = timed(rounds, lambda: deploy(sparks), lambda: ansible(sparks, "ansible", limit, "-m", "ping"))
    return Cost(*both, executions, len(TASK.findall(output)), len(lines))


def row(sparks: int, known: Cost, first: Cost) -> str:
    """Return the row of a size. `first` is that of the smallest one."""
    wall, cpu = statistics.median(known.deploy.wall), statistics.median(known.deploy.cpu)
    ping = statistics.median(known.ping.wall)
    cells = (
        str(sparks),
        f"{wall:.1f} s",
        f"{cpu:.1f} s",
        f"{cpu / statistics.median(first.deploy.cpu):.1f}x",
        f"{ping:.1f} s",
        f"{statistics.median(known.ping.cpu):.1f} s",
        f"{wall / ping:.1f}",
        str(known.executions),
        f"{known.executions / sparks:.1f}",
        str(known.tasks),
        str(known.lines),
    )
    return table(cells) + f"   deploy {min(known.deploy.wall):.1f} to {max(known.deploy.wall):.1f} s"


def table(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>{max(len(name), 6)}}" for cell, name in zip(cells, COLUMNS, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sparks", type=int, nargs="+", choices=SERVERS, help="default: 1, 2 and 4, if they are up")
    args = parser.parse_args()
    sizes = sorted(args.sparks or [size for size in (1, 2, 4) if size <= up()])
    if max(sizes) > up():
        raise SystemExit(
            f"the sandbox has {up()} Sparks — expected: {max(sizes)}. Fix: SPARKS={max(sizes)} make sandbox-up"
        )
    ansible(up(), "ansible-playbook", "stop.yml")
    (fresh,) = timed(args.rounds, ssh)
    print(f"one fresh ssh {statistics.median(fresh.wall):.2f} s ({min(fresh.wall):.2f} to {max(fresh.wall):.2f})")
    print(table(COLUMNS))
    known: dict[int, Cost] = {}
    for size in sizes:
        known[size] = cost(size, args.rounds)
        print(row(size, known[size], known[sizes[0]]), flush=True)
    ansible(up(), "ansible-playbook", "stop.yml")
    one = statistics.median(known[sizes[0]].deploy.wall) / statistics.median(fresh.wall)
    print(
        f"deploy / fresh ssh on {sizes[0]}: {one:.1f} (aim: 20 at most); the aim of deploy / ping is 4 at most; "
        f"medians of {args.rounds} rounds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
