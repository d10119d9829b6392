"""Explain why a task could not run on a host: no connection, a rejected key, a password of sudo, a full disk. Pure.

Ansible and ssh report these faults with their own texts, without a command that helps.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import inventory_host, ssh_command
from vllm_spark.core.refusal import Fix, Refusal, RefusalKind, register

# A user that the inventory leaves to the configuration of ssh.
UNNAMED = "its user"


@dataclass(frozen=True, slots=True)
class Login:
    """The login that a run uses for a host: its name in the inventory, address, user and port. `local`: it is the
    machine that deploys, so the user is that of the run. `variables` are those of the host."""

    host: str
    address: str
    user: str
    port: str
    local: bool
    variables: Mapping[str, Any]

    @classmethod
    def of(cls, variables: Mapping[str, Any]) -> Login:
        """Return the login from the variables of a task. Without `ansible_user` ssh chooses the user."""
        host, local = str(variables["inventory_hostname"]), inventory_host.is_local(variables)
        return cls(
            host=host,
            address=inventory_host.address(host, variables),
            user=getpass.getuser() if local else str(variables.get("ansible_user") or UNNAMED),
            port=str(variables.get("ansible_port") or 22),
            local=local,
            variables=variables,
        )

    @property
    def contact(self) -> str:
        """The command of a first contact."""
        user = "" if self.user == UNNAMED else f" --user {self.user}"
        port = "" if self.port == "22" else f" --port {self.port}"
        return f"vllm-spark contact {self.address}{user}{port}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that the texts of `pattern` report. `what`, `expected` and `fix` are templates of str.format: the groups
    of the pattern and the fields of the login fill them. `of_ssh`: only ssh has it."""

    kind: RefusalKind
    pattern: re.Pattern[str]
    what: str
    expected: str
    fix: str | Fix
    of_ssh: bool = False


USE_DASH_K = (
    "the same command with -K. -K takes one password for all Sparks: if theirs differ, give each Spark its own "
    "ansible_become_password."
)

# The first match counts. The texts are those of ansible-core 2.19 (plugins/connection/ssh.py), OpenSSH and sudo.
FAULTS = (
    Fault(
        register("sudo-password-wrong", runbook="sudo-password"),
        re.compile(r"Incorrect sudo password|Sorry, try again"),
        "{host}: sudo does not accept this password for {user}",
        "the password of {user} on {host}",
        USE_DASH_K,
    ),
    Fault(
        register("sudo-denied", runbook="sudo-password"),
        re.compile(r"is not in the sudoers file|may not run sudo"),
        "{host}: {user} may not use sudo",
        "a user with sudo rights, such as the one that was created at the first start of the Spark",
        "ansible_user of {host} in the inventory.",
    ),
    Fault(
        register("sudo-password", runbook="sudo-password"),
        re.compile(
            r"Missing sudo password|sudo: a password is required|sudo: a terminal is required"
            r"|waiting for privilege escalation prompt"
        ),
        "{host}: sudo asks {user} for a password, and this run has none",
        "the password of sudo",
        USE_DASH_K,
    ),
    Fault(
        register("host-key", runbook="contact-host-key"),
        re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No \S+ host key is known"),
        "{host}: the host key of {address} is unknown, or is not the known one",
        "the host key that known_hosts has",
        Fix("{contact}"),
        of_ssh=True,
    ),
    Fault(
        register("host-login", runbook="contact-key"),
        re.compile(r"Permission denied(?: \((?P<methods>[^)]*)\))?|Too many authentication failures|Invalid/incorrect"),
        "{host}: {address} does not accept the SSH key of this machine for {user}",
        "a login with a key",
        Fix("{contact}"),
        of_ssh=True,
    ),
    Fault(
        register("host-unreachable", runbook="contact-unreachable"),
        re.compile(
            r"(?:(?:via|over) ssh: (?:ssh: )?|(?=Data could not be sent[^\n]*over SSH|Connection (?:closed|reset)))"
            r"(?P<detail>[^\n]+)"
        ),
        "{host}: no SSH connection to {address} port {port}: {detail}",
        "a Spark that answers",
        Fix(
            "ping {address}",
            "If it does not answer: the Spark's power, its network, and ansible_host in the inventory. The verbs work "
            "on the other Sparks with -l.",
        ),
        of_ssh=True,
    ),
    Fault(
        register("host-disk-full", runbook="disk-full"),
        re.compile(r"\[Errno (?:28|122)\] (?P<detail>[^\n]*)"),
        "{host}: {detail}",
        "free space on the disk of that folder",
        Fix('ssh -t {host} "df -h; sudo docker system df"', "Delete images and models that nothing serves."),
    ),
)


def explain(text: str, login: Login) -> Refusal | None:
    """Return what a text of Ansible or of a module means for an operator, or None for any other text."""
    for fault in FAULTS:
        match = None if fault.of_ssh and login.local else fault.pattern.search(text)
        if match:
            detail = " ".join((match.groupdict().get("detail") or "").split()).rstrip(" .")
            values = {
                "host": login.host,
                "address": login.address,
                "user": login.user,
                "port": login.port,
                "contact": login.contact,
                "detail": detail,
            }
            refusal = fault.kind(
                what=fault.what.format(**values),
                expected=fault.expected.format(**values),
                fix=fault.fix.format(**values),
            )
            return ssh_command.refusal_with_logins(refusal, {login.host: login.variables})
    return None
