"""`vllm-spark logs`: the engine's log of a deployment, from the journals of the Sparks that run it."""

from __future__ import annotations

import argparse
import getpass
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vllm_spark.cli import arguments, inventory_values, playbook
from vllm_spark.core import host_access, near_names, paths, ssh_command, text
from vllm_spark.core.host_access import Login
from vllm_spark.core.refusal import Fix, register
from vllm_spark.inventory import deployment
from vllm_spark.inventory.deployment import Deployment

NO_DEPLOYMENT = register("logs-no-deployment", runbook="wrong-command")
NO_HOST = register("logs-no-host", runbook="wrong-command")
NOT_READ = register("logs-not-read", runbook="log-unreadable")

ALL = "all"
DEFAULT_LINES = "100"
# Exit statuses.
AWAY, FAULTY = 4, 1
# Exit status of ssh for a fault of its own.
NO_CONNECTION = 255

JOURNALCTL = ("journalctl", "--quiet", "--no-pager", "--utc", "--output", "short-iso-precise")
# Only these groups read the journal of a unit; others get an empty one. `sudo` has its words in front of "$@".
SCRIPT = """\
n=$1; shift
case " $(id -un) $(id -Gn) " in *" root "*|*" adm "*|*" systemd-journal "*) shift "$n";; esac
exec "$@"
"""
# -S none: a connection that a master keeps would outlive this command.
SSH = ("-S", "none", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR")
SSH_ARGUMENTS = ("ssh_args", "ssh_common_args", "ssh_extra_args")


def _setting(option: str, *variables: str) -> str:
    """Return the template of an option of Ansible's ssh. The lookup alone would not fill a template in a variable."""
    lookup = f"lookup('ansible.builtin.config', '{option}', plugin_type='connection', plugin_name='ssh')"
    return f"{{{{ {' | default('.join([*variables, lookup])}{')' * len(variables)} }}}}"


# What this command needs to know of a Spark.
TEMPLATES: dict[str, Any] = {
    "deployments": "{{ vllm_deployments | default([]) }}",
    "secrets": "{{ vllm_secrets | default({}) }}",
    "password": "{{ ansible_become_password | default(ansible_become_pass | default('')) }}",
    "ansible_connection": "{{ ansible_connection | default('ssh') }}",
    "ansible_host": "{{ ansible_host | default(ansible_ssh_host | default('')) }}",
    "ansible_user": _setting("remote_user", "ansible_user", "ansible_ssh_user"),
    "ansible_port": _setting("port", "ansible_port", "ansible_ssh_port"),
    "ssh_executable": _setting("ssh_executable", "ansible_ssh_executable"),
    "private_key_file": _setting("private_key_file", "ansible_ssh_private_key_file", "ansible_private_key_file"),
    "host_key_checking": _setting("host_key_checking", "ansible_ssh_host_key_checking", "ansible_host_key_checking"),
    **{name: _setting(name, f"ansible_{name}") for name in SSH_ARGUMENTS},
}

# Seconds between two looks at whether somebody still reads the output. Without a new line, a write would not tell.
LOOK_S = 0.2
LF = "\n"


@dataclass(slots=True)
class Source:
    """The log of one Spark, while a process reads it. `prefix` is in front of each line, `line` is the last one."""

    login: Login
    unit: str
    process: subprocess.Popen[str]
    masked: Callable[[str], str]
    prefix: str = ""
    line: str = ""
    status: int = 0

    def pass_on(self) -> None:
        """Print the lines, secrets masked."""
        for line in self.process.stdout or ():
            self.line = line
            print(f"{self.prefix}{text.printable(self.masked(line.rstrip(LF)))}", flush=True)

    def end(self) -> None:
        """Wait for the process, and say why it could not read the log, or that there is none."""
        errors = (self.process.stderr.read() if self.process.stderr else "").strip()
        status = self.process.wait()
        if not status and not self.line:
            print(f"{self.login.host}: its journal has no line of {self.unit}", file=sys.stderr)
        if not status:
            return
        program, cause, self.status = "journalctl", errors, FAULTY
        if status == NO_CONNECTION:
            # The last line of ssh is its fault, behind its warnings.
            program, cause, self.status = "ssh", f"via ssh: {(errors.splitlines() or [''])[-1]}", AWAY
        refusal = host_access.explain(cause, self.login) or NOT_READ(
            what=f"{self.login.host}: {text.one_line(errors) or f'{program} ended with status {status}'}",
            expected="the journal of the Spark",
            fix=Fix("ansible-playbook collect.yml", "It says what else cannot be read."),
        )
        print(refusal, file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("deployment", metavar="DEPLOYMENT", help="its name in vllm_deployments")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines until Ctrl-C")
    lines = (
        f"the last lines of each Spark, with --since the first, or {ALL}; default: {DEFAULT_LINES}, with --since {ALL}"
    )
    parser.add_argument("-n", "--lines", type=_lines, help=lines)
    parser.add_argument("--since", metavar="TIME", help='as of journalctl: "10 min ago", today, "2026-01-31 12:00"')
    parser.add_argument("-K", "--ask-become-pass", action="store_true", help="ask for the password of sudo")
    playbook.add_arguments(parser, only=("-i", "-l", "-e"))
    parser.set_defaults(rest=[], program="ansible")
    parser.epilog = "Times are UTC. Any other option is one of ansible, such as -J."


def _lines(typed: str) -> str:
    return typed if typed == ALL else str(arguments.positive(typed))


def run(args: argparse.Namespace) -> int:
    """Print the log: that of one Spark after the other, or as it comes.

    Returns 4 if a Spark could not be reached, else 1 if a log could not be read. Raises RefusedError."""
    values = inventory_values.of_sparks("logs", TEMPLATES, [*args.options, *args.rest])
    placed = _placed(args.deployment, next(iter(values.values()), {"deployments": []})["deployments"])
    hosts = [host for host in placed.hosts if host in values]
    if not hosts:
        raise NO_HOST.error(
            what=f"{placed.name} is on {', '.join(placed.hosts)}, and the limit or the group sparks leaves them out",
            expected="one of them",
            fix=Fix(f"vllm-spark logs {placed.name}", "It reads each of them."),
        )
    password = getpass.getpass("BECOME password: ") if args.ask_become_pass else ""
    command = [*JOURNALCTL, "--unit", placed.unit, "--lines", args.lines or (ALL if args.since else DEFAULT_LINES)]
    command += [*(["--since", args.since] if args.since else []), *(["--follow"] if args.follow else [])]
    # A process that reads goes on for a while after a reader that is just gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    width = max(map(len, hosts)) + 2 if hosts[1:] else 0
    sources: list[Source] = []
    try:
        for host in hosts:
            sources.append(_start(host, values[host], placed.unit, command, password))
            sources[-1].prefix = f"{host if width else '':{width}}"
        if args.follow:
            _follow(sources)
        for source in sources:
            source.pass_on()
            source.end()
    finally:
        for source in sources:
            # sudo on this machine is root's. It ends with its output.
            with suppress(PermissionError):
                source.process.terminate()
    return max(source.status for source in sources)


def _placed(name: str, raw: object) -> Deployment:
    """Return the deployment of a name. Raises RefusedError."""
    known = {placed.name: placed for placed in deployment.parse(raw)}
    if name in known:
        return known[name]
    close = near_names.close_names(name, known)
    raise NO_DEPLOYMENT.error(
        what=f"vllm_deployments has no {name}",
        expected=text.one_of(known, "a deployment; vllm_deployments is empty"),
        fix=Fix(f"vllm-spark logs {close[0]}") if close else "name one of these.",
    )


def _start(host: str, values: Mapping[str, Any], unit: str, command: Sequence[str], password: str) -> Source:
    """Start to read the log of a Spark."""
    known = {name: value for name, value in values.items() if value}
    login = Login.of({**known, "inventory_hostname": host})
    password = password or known.get("password", "")
    sudo = ["sudo", *(["-S", "-p", ""] if password else ["-n"]), "--"]
    argv = ["sh", "-c", SCRIPT, "sh", str(len(sudo)), *sudo, *command]
    if not login.local:
        argv = [*_ssh(host, known), shlex.join(argv)]
    process = subprocess.Popen(  # noqa: S603  the owner's own words, each quoted for the shell of the Spark
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdin is not None  # noqa: S101  for the type checker
    # The exit status says why the process has ended.
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(f"{password}\n" if password else "")
    return Source(login, unit, process, _masker(values["secrets"]))


def _ssh(host: str, known: Mapping[str, Any]) -> list[str]:
    """Return the words of ssh before the command, with the options that Ansible would use."""
    own = [word for name in SSH_ARGUMENTS for word in shlex.split(known.get(name, ""))]
    key = ["-i", os.path.expanduser(known["private_key_file"])] if "private_key_file" in known else []
    check = [] if "host_key_checking" in known else ["-o", "StrictHostKeyChecking=no"]
    return [known["ssh_executable"], *SSH, *check, *own, *key, *shlex.split(ssh_command.destination(host, known))]


def _masker(secrets: Mapping[str, Any]) -> Callable[[str], str]:
    """Return the masking of `collect`. It is a module of the collection, because there the Sparks mask."""
    sys.path.insert(0, str(paths.COLLECTIONS))
    from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import Secrets  # noqa: PLC0415

    known = Secrets()
    known.add((name, str(value)) for name, value in secrets.items())
    return known.masker()


def _follow(sources: Sequence[Source]) -> None:
    """Print the lines of all Sparks as they arrive. Raises BrokenPipeError if nobody reads them."""

    def read(source: Source) -> None:
        with suppress(BrokenPipeError):  # the poll below sees it, too
            source.pass_on()

    threads = [threading.Thread(target=read, args=[source], daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    output = select.poll()
    output.register(sys.stdout, 0)
    while any(thread.is_alive() for thread in threads):
        if output.poll(LOOK_S * 1000):
            raise BrokenPipeError
