"""What the variables of a host say of the way to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_local(variables: Mapping[str, Any]) -> bool:
    """Return True if the host is the machine that deploys, to which no ssh leads."""
    return str(variables.get("ansible_connection")) in ("local", "ansible.builtin.local")


def address(host: str, variables: Mapping[str, Any]) -> str:
    """Return the address of a host, for ssh and for clients: that of the inventory, or else its name there."""
    return str(variables.get("ansible_host") or variables.get("ansible_ssh_host") or host)
