"""The Sparks of a new inventory: this machine or one by ssh, its variables, and its facts."""

from __future__ import annotations

import argparse
import getpass
import json
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_spark.cli import one_module
from vllm_spark.cli.contact import command, first_contact
from vllm_spark.cli.contact.ssh import SSH_PORT
from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.core import host_access, text, this_machine
from vllm_spark.core.host_access import Login
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.inventory import new_file
from vllm_spark.node import mdns
from vllm_spark.node.host_layout import HUB_DIR
from vllm_spark.node.mdns import Answer

NOT_A_SPARK = register("not-a-spark", runbook="wrong-host")
NO_FACTS = register("no-facts", runbook="init-refused")

GPU = "GB10"
TIMEOUT_S = 30  # a driver that hangs


@dataclass(frozen=True, slots=True)
class Spark:
    """A machine of the inventory. `login` is USER@HOST of ssh, empty for this machine."""

    login: str
    variables: Mapping[str, Any]

    @classmethod
    def here(cls, address: str) -> Spark:
        """Return this machine, which others reach by the address."""
        user = getpass.getuser()
        return cls("", {"ansible_connection": "local", "ansible_host": address, "ansible_user": user})

    @classmethod
    def by_ssh(cls, name: str, args: argparse.Namespace, talk: Conversation, usual: str) -> Spark:
        """Return the machine of a name, or of USER@NAME. The user is asked for where neither it nor ssh names one;
        `usual` is that of another Spark, or empty."""
        host, user, port = first_contact.destination(name, args.user, args.port)
        if "@" not in name and not args.user and user == getpass.getuser():
            user = talk.ask(f"User of the first start of {host}", usual or user)
        variables: dict[str, Any] = {"ansible_host": host, "ansible_user": user}
        if port != SSH_PORT:
            variables["ansible_port"] = port
        if args.key != command.KEY_FILE:
            variables["ansible_ssh_private_key_file"] = str(_absolute(args.key).with_suffix(""))
        if args.known_hosts != command.KNOWN_HOSTS:
            option = f"-o UserKnownHostsFile={shlex.quote(str(_absolute(args.known_hosts)))}"
            variables["ansible_ssh_common_args"] = option
        return cls(f"{user}@{name.rpartition('@')[2]}", variables)


def _absolute(file: Path) -> Path:
    return file.expanduser().absolute()


def is_here(name: str) -> bool:
    """Return True for a name of this machine."""
    own = ("localhost", this_machine.short_name(), this_machine.mdns_name())
    return name.lower() in map(str.lower, own)


def this_is_a_spark() -> bool:
    """Return True if the GPU of this machine is that of a Spark."""
    argv = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)  # noqa: S603  no shell
    except (OSError, subprocess.TimeoutExpired):
        return False
    return GPU in done.stdout


def read_facts(sparks: Mapping[str, Spark]) -> dict[str, Facts]:
    """Return the facts of each Spark, read by one run of Ansible. Raises RefusedError with every host that has none, or
    is no Spark."""
    hosts = {name: spark.variables for name, spark in sparks.items()}
    done = _run_module(hosts, "vllm_spark.toolkit.spark_facts", {"fabric": True, "disks": [HUB_DIR]})
    results = done.results
    facts: dict[str, Facts] = {}
    refusals: list[Refusal] = []
    for name, variables in hosts.items():
        result = results.get(name, {"msg": done.errors.strip() or "Ansible has printed nothing of it"})
        known: Facts | None = result.get("facts")
        if not known:
            refusals.append(_no_facts(name, variables, result))
        elif not any(GPU in gpu["name"] for gpu in known["gpus"]):
            refusals.append(_not_a_spark(variables["ansible_host"], known))
        else:
            facts[name] = known
    if refusals:
        raise RefusedError(refusals)
    return facts


def ask_on_cables(spark: Spark) -> list[Answer]:
    """Return what answers mDNS on the cables of a Spark, itself included. Nothing if it cannot be asked."""
    arguments = {"cmd": mdns.__file__, "executable": "/usr/bin/python3"}
    done = _run_module({"spark": spark.variables}, "ansible.builtin.script", arguments)
    output = done.results.get("spark", {}).get("stdout", "")
    return [Answer(*answer) for answer in json.loads(output)] if output.startswith("[") else []


def _run_module(hosts: Mapping[str, Mapping[str, Any]], module: str, arguments: Mapping[str, Any]) -> one_module.Done:
    """Run a module on hosts that no inventory has yet."""
    with tempfile.TemporaryDirectory() as folder:
        file = new_file.write(Path(folder), new_file.text(hosts, []))
        return one_module.run("init", "all", module, arguments, ["-i", str(file)])


def _no_facts(name: str, variables: Mapping[str, Any], result: Mapping[str, Any]) -> Refusal:
    error = str(result.get("msg", result))
    known = host_access.explain(error, Login.of({"inventory_hostname": name, **variables}))
    return known or NO_FACTS(
        what=f"{variables['ansible_host']} has no facts: {text.one_line(error)}",
        expected="facts of a Spark",
        fix="try again, and with `vllm-spark contact HOST` first.",
    )


def _not_a_spark(address: str, facts: Facts) -> Refusal:
    seen = ", ".join(gpu["name"] for gpu in facts["gpus"]) or facts["gpu_error"] or "no GPU"
    return NOT_A_SPARK(
        what=f"{address} is {facts['machine']}, and its nvidia-smi shows {seen}",
        expected=f"a Spark, whose GPU is a {GPU}",
        fix="give the address at the login screen of a Spark: `vllm-spark init USER@HOST`.",
    )
