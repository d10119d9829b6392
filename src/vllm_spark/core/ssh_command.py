"""Commands of a message that run on a Spark: `ssh -t NAME …` with the login of the inventory instead of the name. Pure.

Messages are made where only the name of a host is known. `-t` lets sudo ask for its password. On the machine that
deploys a command runs without ssh.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_spark.core import inventory_host
from vllm_spark.core.refusal import Refusal

COMMAND = re.compile(r"""\bssh -t (?P<host>[\w.-]*\w)(?P<rest> (?:(?P<quote>["'])(?P<command>.+?)(?P=quote))?)?""")


def names(text: str) -> set[str]:
    """Return the words after `ssh -t`."""
    return {match["host"] for match in COMMAND.finditer(text)}


def with_logins(text: str, variables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with USER@ADDRESS in each `ssh -t NAME`. `variables` has the variables of each host; another name
    stays as it is."""

    def login(match: re.Match[str]) -> str:
        host = match["host"]
        if host not in variables:
            return match[0]
        if inventory_host.is_local(variables[host]):
            # ssh gives a quoted command to a shell of the Spark, and here the shell reads it as it is.
            return match["command"] or ""
        return f"ssh -t {destination(host, variables[host])}{match['rest'] or ''}"

    return COMMAND.sub(login, text)


def refusal_with_logins(refusal: Refusal, variables: Mapping[str, Mapping[str, Any]]) -> Refusal:
    """Return the refusal with the logins in the commands of its fix."""
    fix, command = with_logins(refusal.fix, variables), with_logins(refusal.command, variables)
    return replace(refusal, fix=fix, command=command)


def destination(host: str, variables: Mapping[str, Any]) -> str:
    """Return what ssh needs to reach a host: the port if it is not 22, and USER@ADDRESS as far as they are set."""
    address = inventory_host.address(host, variables)
    user = variables.get("ansible_user") or variables.get("ansible_ssh_user")
    port = str(variables.get("ansible_port") or variables.get("ansible_ssh_port") or 22)
    words = [*(["-p", port] if port != "22" else []), f"{user}@{address}" if user else address]
    return shlex.join(words)
