"""The runtime API of the edge's HAProxy: how a program of this host asks it, and how it holds new requests back.

plugins/module_utils/spark_edge_admin.py is a link to this file. Standard library alone.
"""

from __future__ import annotations

import socket

# The first stage has the keys of persons, the second one the engines and the states of deployments.
SOCKET = "/run/vllm-edge/admin.sock"
ROUTE_SOCKET = "/run/vllm-edge-route/admin.sock"
TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20
# The server of a deployment's backend, and how the names of backends begin in which a server has the name of its
# deployment: those of a site, and those of batch (templates/haproxy-route.cfg.j2).
SERVER, SHARED = "engine", ("site_", "batch_")


def ask_admin(command: str, admin_socket: str) -> str:
    """Return the answer of HAProxy's runtime API. Raises OSError without one."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(admin_socket)
        client.sendall(f"{command}\n".encode())
        answer = b""
        while len(answer) < MAX_BYTES and (part := client.recv(65536)):
            answer += part
    return answer.decode(errors="replace")


def hold_back(deployment: str) -> bool:
    """Let the edge send a deployment no new request; those that it has go on. Clients get what they get when it does
    not run. Returns False if no edge has this deployment."""
    return _set(f"set server {deployment}/{SERVER} state drain")


def let_in(deployment: str, *, stopped: bool = False) -> bool:
    """Undo hold_back. The edge's checks find whether the deployment is up. `stopped`: it has just ended, which they
    would find two seconds later."""
    server = f"{deployment}/{SERVER}"
    if stopped:
        _set(f"set server {server} health down")
    return _set(f"set server {server} state ready")


def set_state(states: str, deployment: str, state: str) -> bool:
    """Give the edge the state of a deployment, in its map of this path. Returns False if no edge has the map."""
    try:
        # HAProxy changes only a key that is there, and would add a second value to it.
        answer = ask_admin(f"set map {states} {deployment} {state}", ROUTE_SOCKET).strip()
        return not (answer and ask_admin(f"add map {states} {deployment} {state}", ROUTE_SOCKET).strip())
    except OSError:
        return False


def requests_at(deployment: str) -> int:
    """Return how many requests the edge has at a deployment now; 0 without an edge. The engine's own count lacks those
    that it has not read yet."""
    try:
        lines = ask_admin("show stat -1 4 -1", ROUTE_SOCKET).splitlines()
    except OSError:
        return 0
    # Backend, server, requests in its queue and the most of them, requests.
    rows = [line.split(",")[:5] for line in lines if not line.startswith("#") and line]
    return sum(
        int(row[4] or 0)
        for row in rows
        if row[:2] == [deployment, SERVER] or (row[0].startswith(SHARED) and row[1] == deployment)
    )


def idle_s(deployment: str) -> float:
    """Return the seconds since a deployment had its last request; without end for one that has had none, or without an
    edge."""
    try:
        head, *lines = ask_admin("show stat -1 4 -1", ROUTE_SOCKET).splitlines()
        at = head.split(",").index("lastsess")
    except (OSError, ValueError):
        return float("inf")
    rows = [line.split(",") for line in lines if line]
    found = [row[at] for row in rows if len(row) > at and (row[:2] == [deployment, SERVER] or row[1] == deployment)]
    return min((float(seconds) for seconds in found if seconds.isdecimal()), default=float("inf"))


def _set(command: str) -> bool:
    """Return True if HAProxy has done what it answers nothing to."""
    try:
        return not ask_admin(command, ROUTE_SOCKET).strip()
    except OSError:
        return False
