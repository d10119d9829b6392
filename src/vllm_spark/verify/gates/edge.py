"""Gate: the edge refuses what it must, and nothing but the edge is on the network.

The Spark itself asks with and without a key, and the controller without one. No request reaches the engine. A key
exists for the time of the probe, in the memory of HAProxy alone (plugins/modules/vllm_edge_probe.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core.refusal import Fix
from vllm_spark.core.units import MIB
from vllm_spark.edge import lifetime
from vllm_spark.node.host_layout import EDGE_UNIT
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gate import Gate, no_requests
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
# While strangers attack: how long a client with a key may wait, and how much the first stage may grow.
WAIT_MS, GROWN_MIB = 2000, 64
# Observation of a client with a key -> (status, what was one too many or too large).
LIMITS: Mapping[str, tuple[int, str]] = {
    "body": (413, "a body above the limit"),
    "streams": (429, "one request too many at the same time"),
    "rate": (429, "one request too many in a minute"),
}


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
    yield from _limits(inside)
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


def _limits(seen: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yield the verdicts on requests with a key that go one too far. A probe that is not thorough has sent one."""
    thorough = seen.get("thorough", True)
    for id_, (expected, what) in LIMITS.items():
        if not thorough and id_ not in seen:
            continue
        if id_ == "streams" and seen.get(id_, 0) is None:
            yield Verdict(NAME, id_, None, "limits.connections is below four times limits.streams, so it comes first")
        else:
            yield _status(id_, what, seen.get(id_), expected)
    if not thorough:
        return
    yield from _siege(seen.get("siege", {}), seen.get("limits", {}).get("silence_s", 0))
    seconds, limit = seen.get("drip", {}).get("seconds", -1), seen.get("limits", {}).get("header_timeout_s", 0)
    if 0 <= seconds <= limit + 2:
        yield Verdict(NAME, "header", True, f"a header that drips was cut after {seconds:.0f} s")
    else:
        after = f"after {seconds:.0f} s" if seconds >= 0 else "never"
        yield _failed("header", f"a header that drips was cut {after}", f"after {limit} s")


def _siege(seen: Mapping[str, Any], limit: int) -> Iterator[Verdict]:
    """Yield the verdicts on strangers of eight addresses that attack while a client with a key asks."""
    waited: Mapping[str, int] = seen.get("waited_ms", {})
    slow = [
        f"{name}: {f'{ms} ms' if ms >= 0 else 'no answer'}" for name, ms in waited.items() if not 0 <= ms <= WAIT_MS
    ]
    if slow or not waited:
        observed = f"a client with a key waited while strangers attacked: {', '.join(slow) or 'nobody asked'}"
        yield _failed("strangers", observed, f"an answer within {WAIT_MS} ms")
    else:
        observed = f"a client with a key was answered within {max(waited.values())} ms during {len(waited)} attacks"
        yield Verdict(NAME, "strangers", True, observed)
    seconds = seen.get("silence_s", -1)
    if 0 <= seconds <= limit + 5:
        yield Verdict(NAME, "silence", True, f"connections that say nothing ended after {seconds:.0f} s")
    else:
        after = f"after {seconds:.0f} s" if seconds >= 0 else "never"
        yield _failed("silence", f"connections that say nothing ended {after}", f"after {limit} s")
    grown = seen.get("grown_bytes", 0) // MIB
    if grown <= GROWN_MIB:
        yield Verdict(NAME, "memory", True, f"strangers cost the edge {grown} MiB")
    else:
        yield _failed("memory", f"strangers cost the edge {grown} MiB", f"at most {GROWN_MIB} MiB")


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
    proves="the edge refuses foreign paths, hosts, keys, sizes and sieges, and no engine is on the network",
    order=66,
    optional=False,
    condition="a deployment behind an edge",
    schema=None,
    requests=no_requests,
    judge=judge,
    applies=applies,
)
