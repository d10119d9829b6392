"""The edge of a site: the inventory's `vllm_edge`. It says who reaches the model servers, and how."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core.fault import Fault
from vllm_spark.core.refusal import register
from vllm_spark.core.types import Document
from vllm_spark.inventory import map_variable, origins
from vllm_spark.node.engine_api import CHAT

BAD_EDGE = register("bad-edge", runbook="inventory-refused")

SCHEMA = Path(__file__).with_name("edge.schema.json")

OWN_CA, FILES, OFF = "own-ca", "files", "off"

# MemoryMax of the units of both stages, and what each stage has beside the buffers of clients (both in MiB).
FRONT_MIB, ROUTE_MIB, STAGE_MIB = 512, 2048, 128
# The threads of HAProxy. A Spark has twenty cores. Two would carry 64 streams.
THREADS = 4
# Buffers of a whole body that the second stage has beside those of requests: four of each thread (measured: 240 MiB).
OWN_BUFFERS = 4 * THREADS
# What a connection of the first stage has beside the largest header: the rest of a buffer for each direction, and TLS.
CONNECTION_KIB = 96

# The addresses of home and office networks (RFC 1918, RFC 4193), of one link, and of the host itself. The addresses of
# providers (100.64.0.0/10) are not among them; Tailscale uses those too.
PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Limits of the edge of one host.

    - `requests_per_minute`, `streams`: of one key; streams are requests at the same time
    - `connections`: of all clients together; one address may hold a quarter, and fewer before its first key
    - `body_mib`, `header_kib`: sizes of one request
    - `header_timeout_s`: seconds until the last byte of a request's header
    - `switches_waiting`: models that wait for their start, if requests may start models
    - `switch_stay_s`: seconds that a model which a request has started stays before the next one takes its place
    - `batch_share`: percent of an engine's sequences that all keys of the class `batch` have together; at least one
    - `batch_waiting`: batch requests of a deployment that wait for the share, for at most `batch_wait_s` seconds
    """

    requests_per_minute: int = 300
    streams: int = 32
    connections: int = 512
    body_mib: int = 16
    header_kib: int = 16
    header_timeout_s: int = 10
    switches_waiting: int = 4
    switch_stay_s: int = 60
    batch_share: int = 50
    batch_waiting: int = 64
    batch_wait_s: int = 300


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """The settings of the edge. Its addresses and ports are `bind` and `port` of the deployments.

    - `open`: True starts no edge: the engine itself listens on the network
    - `chosen`: whether the inventory says so; without a word the edge is closed
    - `names`: further host names that clients use, beside the inventory's names and addresses of the host
    - `allow_from`: networks of the clients
    - `origins`: web pages that may ask from a browser, as the browser names them; none means that no page may
    - `tls`: OWN_CA, FILES with `certificate` (the whole chain) and `private_key` on the controller, or OFF
    - `metrics_from`: networks that may read metrics, on `metrics_port`; none means that nothing listens there
    - `metrics_server`: the host that records the figures of its site for `metrics_days`, in `metrics_gib` at most; none
      means that nothing is recorded and no exporter runs
    - `site`: the Sparks whose edges serve the models of all of them, host -> its address for the other edges, which ask
      it on `site_port`; none means that an edge serves the models of its own Spark
    - `switch_by_request`: True lets a person with that right start an inactive model by asking for it
    - `fair`: True gives keys of the class `batch` a share of each engine, and lets the engine read the class
    """

    open: bool = False
    chosen: bool = True
    names: tuple[str, ...] = ()
    allow_from: tuple[str, ...] = PRIVATE_NETWORKS
    origins: tuple[str, ...] = ()
    tls: str = OWN_CA
    certificate: str = ""
    private_key: str = ""
    limits: EdgeLimits = field(default_factory=EdgeLimits)
    metrics_from: tuple[str, ...] = ()
    metrics_port: int = 9464
    metrics_server: str = ""
    metrics_days: int = 30
    metrics_gib: int = 4
    site: Mapping[str, str] = field(default_factory=dict)
    site_port: int = 9465
    switch_by_request: bool = False
    fair: bool = False

    @property
    def scheme(self) -> str:
        return "http" if self.tls == OFF else "https"

    @classmethod
    def from_json(cls, document: Document) -> EdgeSettings:
        """Build from a checked `vllm_edge`, or from settings that were converted to JSON."""
        lists = {
            name: tuple(str(ipaddress.ip_network(network)) for network in document[name])
            for name in ("allow_from", "metrics_from")
            if name in document
        }
        lists |= {name: tuple(one.lower() for one in document.get(name, ())) for name in ("names", "origins")}
        return cls(**{**document, **lists, "limits": EdgeLimits(**document.get("limits", {}))})


@dataclass(frozen=True, slots=True)
class EdgeBackend:
    """A deployment as the edge of its head sees it. `models` are the names that clients ask for. `sequences` is the
    engine's max-num-seqs, None if the recipe leaves it to the engine. `ranks` is the number of its Sparks.
    `engine` is the version of the engine, `role` the recipe's."""

    deployment: str
    models: tuple[str, ...]
    bind: str
    port: int
    engine: str
    sequences: int | None = None
    ranks: int = 1
    role: str = CHAT

    @classmethod
    def from_json(cls, document: Document) -> EdgeBackend:
        return cls(**{**document, "models": tuple(document["models"])})


# The engine itself listens on the network, because the inventory says so.
OPEN = EdgeSettings(open=True)
# The inventory has no `vllm_edge`.
UNSAID = EdgeSettings(chosen=False)


def parse(raw: object) -> EdgeSettings:
    """Check `vllm_edge` and return it. An empty map gives UNSAID. Raises RefusedError with every fault of it."""
    document = map_variable.checked(raw, "vllm_edge", SCHEMA, _cross_faults, BAD_EDGE)
    return EdgeSettings.from_json(document) if document else UNSAID


def _cross_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults that a schema cannot express."""
    from vllm_spark.core import schema  # noqa: PLC0415  as in parse

    for name in ("allow_from", "metrics_from"):
        for index, network in enumerate(document.get(name, ())):
            if reason := _network_fault(network):
                what = f"vllm_edge.{name}[{index}]: {schema.format_value(network)}: {reason}"
                yield Fault(what, 'a network such as "192.168.1.0/24"')
    yield from _metrics_faults(document)
    for index, origin in enumerate(document.get("origins", ())):
        if reason := origins.fault(origin):
            what = f"vllm_edge.origins[{index}]: {schema.format_value(origin)}: {reason}"
            yield Fault(what, origins.expected(origin))
    yield from _site_faults(document)
    yield from _memory_faults(EdgeLimits(**document.get("limits", {})), document.get("fair", False))
    for name in ("switch_by_request", "fair"):
        if document.get("open") and document.get(name):
            yield Fault(f"vllm_edge.{name}: true, and open is true", f"open: false, or no {name}")
    files = {name: document.get(name, "") for name in ("certificate", "private_key")}
    if document.get("tls", OWN_CA) == FILES:
        for name in (name for name, file in files.items() if not file):
            yield Fault(f"vllm_edge.tls: files, and no vllm_edge.{name}", "certificate and private_key with tls: files")
    else:
        for name, file in files.items():
            if file:
                yield Fault(f"vllm_edge.{name}: {file}, and tls is not files", f"tls: files, or no {name}")


def _memory_faults(limits: EdgeLimits, fair: bool) -> Iterator[Fault]:
    """Yield limits by which one person with all batch requests that wait, or all connections, fill a stage's memory,
    which ends it with all streams."""
    bodies, held = limits.streams + OWN_BUFFERS, f"streams {limits.streams}"
    if fair:
        bodies, held = bodies + limits.batch_waiting, f"{held} + batch_waiting {limits.batch_waiting}"
    needs = {
        f"body_mib {limits.body_mib} x ({held} + {OWN_BUFFERS})": (limits.body_mib * bodies, ROUTE_MIB),
        f"connections {limits.connections} x header_kib {limits.header_kib}": (
            limits.connections * (2 * limits.header_kib + CONNECTION_KIB) // 1024,
            FRONT_MIB,
        ),
    }
    for what, (mib, most) in needs.items():
        if mib > most - STAGE_MIB:
            expected = (
                f"at most {most - STAGE_MIB} MiB, because the edge ends above {most} MiB, with all of its streams"
            )
            yield Fault(f"vllm_edge.limits: {what} may take {mib} MiB of memory", expected)


def _metrics_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    if (server := document.get("metrics_server")) is None:
        return
    tls, site = document.get("tls", OWN_CA), document.get("site", {})
    found = [
        *(["open is true"] if document.get("open") else []),
        *([f"tls is {tls}"] if tls != OWN_CA else []),
        *([] if document.get("metrics_from") else ["there is no metrics_from"]),
    ]
    if found:
        expected = (
            f"a closed edge with tls: {OWN_CA}, and metrics_from with the address of that host: it asks the edges"
        )
        yield Fault(f"vllm_edge.metrics_server: {server}, and {', '.join(found)}", expected)
    if site and server not in site:
        yield Fault(f"vllm_edge.metrics_server: {server}", f"one of vllm_edge.site: {', '.join(site)}")


def _site_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    if not (site := document.get("site")):
        return
    if document.get("open"):
        yield Fault("vllm_edge.site: it names Sparks, and open is true", "open: false, or no site")
    if (tls := document.get("tls", OWN_CA)) != OWN_CA:
        expected = f"tls: {OWN_CA}, because the edges of a site know each other by certificates of its authority"
        yield Fault(f"vllm_edge.site: it names Sparks, and tls is {tls}", expected)
    for host, address in site.items():
        if ipaddress.ip_address(address).is_loopback:
            yield Fault(f"vllm_edge.site.{host}: {address}", "the address at which the other Sparks reach it")
        if others := [other for other in site if other < host and site[other] == address]:
            yield Fault(f"vllm_edge.site.{host}: {address}, as {others[0]} has", "an address of its own")


def _network_fault(network: str) -> str:
    """Return what is wrong with a network, or nothing."""
    try:
        parsed = ipaddress.ip_network(network)
    except ValueError as error:
        return "it has bits of a host" if "host bits" in str(error) else "not a network"
    return "it has a zone" if getattr(parsed.network_address, "scope_id", None) else ""
