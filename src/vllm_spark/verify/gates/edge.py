"""Gate: the edge is closed to clients without a key, and nothing but the edge is on the network.

The Spark itself asks, and the controller. No request has a key, and none reaches the engine. Limits and attacks of
strangers depend on the configuration alone, which tests/edge attacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core.refusal import Fix
from vllm_spark.edge import lifetime
from vllm_spark.node.host_layout import EDGE_UNIT
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gate import ROLES, Gate, no_requests
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "edge"
RUNBOOK = "edge-gate"
# Paths of vLLM that answer without a key (vllm-project/vllm#58144), its switches, and a way around a list of prefixes.
UNLISTED = (
    ("POST", "/invocations"),
    ("POST", "/tokenize"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/pause"),
    ("POST", "/collective_rpc"),
    ("GET", "/v1/../metrics"),
)


def applies(request: GateRequest) -> bool:
    """Return True if the engine is behind an edge."""
    return bool(request.edge)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield the verdicts on the edge of a deployment."""
    yield from verdicts(request.target, probe["responses"].get(NAME, {}))


def verdicts(target: EdgeTarget, seen: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yield the verdicts on what the Spark has seen, then on what the controller has."""
    inside, outside = seen.get("inside", {}), seen.get("outside", {})
    if error := inside.get("error") or ("" if inside else "no request"):
        yield _failed("answers", f"the edge does not answer on its Spark: {error}", "an answer")
        return
    yield _listener(target, inside)
    yield from _open_doors(inside, "")
    yield from _certificate(inside)
    if target.site_port:
        yield _site(inside.get("site", {"error": "no request"}), target.site_port)
    if why := outside.get("unasked"):
        yield Verdict(NAME, "outside", None, f"nobody asked from outside: {why}")
    elif error := outside.get("error") or ("" if outside else "no request"):
        yield _failed(
            "outside",
            f"{outside.get('url', 'the edge')} does not answer this machine: {error}",
            "an answer with the certificate of the site's authority, because clients use this address",
        )
    else:
        yield from _open_doors(outside, " from outside")


def _listener(target: EdgeTarget, seen: Mapping[str, Any]) -> Verdict:
    """Return the verdict on who listens on the port of the API."""
    holder = seen.get("holder") or {}
    if holder.get("unit") == EDGE_UNIT:
        return Verdict(NAME, "listener", True, f"only the edge listens on port {target.port}")
    who = f"{holder.get('process', 'nobody')} of {holder.get('unit') or holder.get('container') or 'no unit'}"
    return _failed("listener", f"{who} listens on port {target.port}", f"{EDGE_UNIT} and no engine")


def _open_doors(seen: Mapping[str, Any], source: str) -> Iterator[Verdict]:
    """Yield the verdicts on requests without a key."""
    yield _status(f"key{source}", "a request without a key", seen.get("no_key"), 401)
    unlisted: Mapping[str, int] = seen.get("unlisted", {})
    answered = [f"{path} {status}" for path, status in unlisted.items() if status != 404]  # noqa: PLR2004
    missing = [f"{method} {path}" for method, path in UNLISTED if f"{method} {path}" not in unlisted]
    if answered or missing:
        yield _failed(f"paths{source}", ", ".join([*answered, *(f"{path} not asked" for path in missing)]), "404 each")
    else:
        yield Verdict(NAME, f"paths{source}", True, f"{len(unlisted)} paths of the engine got 404")
    yield _status(f"host{source}", "a foreign host name", seen.get("host"), 421)


def _certificate(seen: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yield the verdict on the certificates, and the first end: a warning while clients still take them."""
    if not seen.get("tls", True):
        yield Verdict(NAME, "certificate", None, "tls is off: keys and prompts are plain text on the network")
        return
    shown, placed = (_short(seen.get(key, {})) for key in ("shown", "placed"))
    if shown != placed or "none" in shown.values():
        yield _failed("certificate", f"the edge shows the certificates {_listed(shown)}", _listed(placed))
        return
    yield Verdict(NAME, "certificate", True, f"SHA-256 {_listed(shown)}, as deployed")
    if life := lifetime.of_host(seen.get("public", {})):
        warning = life.warning(seen.get("at", 0))
        yield Verdict(NAME, "certificate-end", None if warning else True, warning or lifetime.shown(life.to_json()))


def _short(hashes: Mapping[str, str]) -> dict[str, str]:
    return {asked: hashes.get(asked, "")[:16] or "none" for asked in ("by_name", "by_address")}


def _listed(hashes: Mapping[str, str]) -> str:
    return ", ".join(f"{hash_} {asked.replace('_', ' ')}" for asked, hash_ in hashes.items())


def _site(seen: Mapping[str, Any], port: int) -> Verdict:
    """Return the verdict on the address on which the edges of a site ask each other."""
    what = "a client without a Spark's certificate got"
    if seen.get("status") == 0:
        return Verdict(NAME, "site", True, f"{what} no answer on port {port}")
    observed = f"{what} {seen['status']} on port {port}" if "status" in seen else f"port {port}: {seen['error']}"
    return _failed("site", observed, "a connection that is cut")


def _status(id_: str, what: str, status: int | None, expected: int) -> Verdict:
    if status == expected:
        return Verdict(NAME, id_, True, f"{what} got {status}")
    return _failed(id_, f"{what} got {status or 'no answer'}", f"{expected}")


def _failed(id_: str, observed: str, expected: str) -> Verdict:
    fix = Fix(
        "ansible-playbook deploy.yml",
        "It puts the edge's files back; `journalctl -u vllm-edge` on the Spark has the requests.",
    )
    return failure(NAME, id_, observed, expected, fix, runbook=RUNBOOK)


GATE = Gate(
    name=NAME,
    proves="the edge refuses foreign paths, hosts and clients without a key, and no engine is on the network",
    order=66,
    optional=False,
    condition="a deployment behind an edge",
    schema=None,
    roles=ROLES,
    requests=no_requests,
    judge=judge,
    applies=applies,
)
