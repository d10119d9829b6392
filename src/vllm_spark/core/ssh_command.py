"""Commands of a message that run on a Spark: `ssh -t NAME …` with the login of the inventory instead of the name. Pure.

Messages are made where only the name of a host is known. `-t` lets sudo ask for its password.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

COMMAND = re.compile(r"\bssh -t (?P<host>[\w.-]*\w)")


def names(text: str) -> set[str]:
    """Return the words after `ssh -t`."""
    return set(COMMAND.findall(text))


def with_logins(text: str, variables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with USER@ADDRESS in each `ssh -t NAME`. `variables` has the variables of each host; another name
    stays as it is."""

    def login(match: re.Match[str]) -> str:
        host = match["host"]
        return f"ssh -t {destination(host, variables[host])}" if host in variables else match[0]

    return COMMAND.sub(login, text)


def destination(host: str, variables: Mapping[str, Any]) -> str:
    """Return what ssh needs to reach a host: the port if it is not 22, and USER@ADDRESS as far as they are set."""
    address = str(variables.get("ansible_host") or variables.get("ansible_ssh_host") or host)
    user = variables.get("ansible_user") or variables.get("ansible_ssh_user")
    port = str(variables.get("ansible_port") or variables.get("ansible_ssh_port") or 22)
    words = [*(["-p", port] if port != "22" else []), f"{user}@{address}" if user else address]
    return shlex.join(words)
