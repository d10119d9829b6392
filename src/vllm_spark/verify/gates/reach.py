"""Gate: the address that a deploy prints answers from another machine.

A server that answers on its own host may be closed to its clients, by a firewall or by its `bind`. The controller sends
the request for the head. The other rank of a pair sends its own, so a pair is judged if the controller cannot ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_spark.core.ports import LOOPBACK
from vllm_spark.verify.gate import ROLES, Gate, no_requests
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse, Probe
from vllm_spark.verify.responses import status
from vllm_spark.verify.verdict import Verdict, failure

NAME = "reach"
TIMEOUT_S = 10
PROXIES = ("proxyjump", "proxycommand", "-j ")
# Errors of the sender's own network, which say nothing about the server.
OWN_FAULTS = ("gaierror", "Network is unreachable")


def applies(request: GateRequest) -> bool:
    """Return True if clients on other machines use the server. An older toolkit has recorded no `bind`. Clients of a
    closed engine use the edge."""
    return not request.socket and request.bind not in ("", LOOPBACK)


def http_request() -> HttpRequest:
    """Return the request. It needs no key, and any response to it proves that the address can be reached."""
    return {"id": NAME, "method": "GET", "path": "/health", "timeout_s": TIMEOUT_S}


def obstacle(local: bool, ssh_args: str) -> str:
    """Return why the controller does not ask: it is the Spark itself, or by its arguments of ssh; empty if it asks."""
    if local:
        return "this machine is the Spark itself"
    if any(word in f"{ssh_args} ".lower() for word in PROXIES):
        return "ssh reaches the Spark through another machine"
    return ""


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict on the response, which names the machine that asked."""
    response = probe["responses"].get(NAME, {})
    url, source = response.get("url", ""), response.get("source", "")
    why = response.get("unasked") or _own_fault(response)
    if why or not response:
        yield Verdict(NAME, "address", None, f"nobody asked {url or 'the address'} from outside: {why or 'no request'}")
    elif "status" in response:
        yield Verdict(NAME, "address", True, f"{url} answers {source}")
    else:
        yield failure(
            NAME, "address", f"{url} does not answer {source}: {status(response)}",
            "a response, because clients use this address",
            f"on the Spark: `sudo ufw allow {request.port}/tcp` (or the rule of your firewall; `sudo iptables -S`), or "
            "set bind: 127.0.0.1 for the deployment if only the Spark itself uses it.",
            runbook="reach",
        )  # fmt: skip


def _own_fault(response: HttpResponse) -> str:
    error = response.get("error", "")
    return error if any(fault in error for fault in OWN_FAULTS) else ""


GATE = Gate(
    name=NAME,
    proves="the printed address answers from the controller, or from the other rank of a pair",
    order=65,
    optional=False,
    condition="a server that does not bind to 127.0.0.1 alone",
    schema=None,
    roles=ROLES,
    requests=no_requests,
    judge=judge,
    applies=applies,
)
