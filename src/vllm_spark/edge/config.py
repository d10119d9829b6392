"""The configurations of one host's edge, a file per stage: pure functions of the edge and of the host's address.

haproxy.cfg is the first stage: what clients reach, with small buffers. route.cfg is the second one: the route by model,
with buffers that hold a whole body."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm_spark.core import templates
from vllm_spark.core.ports import ALL_INTERFACES, EXPORTER_PORT, LOOPBACK, PROMETHEUS_PORT
from vllm_spark.core.units import MIB
from vllm_spark.edge import answers, recorder, site, switch_request
from vllm_spark.inventory import placement
from vllm_spark.inventory.edge import OFF, OWN_CA, THREADS, EdgeBackend
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import deployment_state, edge_key, host_layout
from vllm_spark.node.engine_api import RERANK
from vllm_spark.recipe import engine_paths
from vllm_spark.recipe.engine_paths import BY_ROLE, CHATS, COUNT_TOKENS, EMBEDDINGS, MESSAGES

# What clients of OpenAI and Anthropic and the gates ask; every other path is a 404, whatever the engine has there. The
# parts of vLLM that answer without a key, such as /invocations and /tokenize (vllm-project/vllm#58144), and its
# switches, such as /pause, are not among them.
GET_PATHS = ("/v1/models",)
POST_PATHS = (CHATS, "/v1/completions", "/v1/responses", EMBEDDINGS, MESSAGES, COUNT_TOKENS)
# vLLM's own default, for a recipe without max-num-seqs.
DEFAULT_SEQUENCES = 256
# Requests beyond the sequences of an engine that reach it: questions such as /v1/models, and its own queue.
MORE_CONNECTIONS = 32
# The buffer holds the body, the header, and HAProxy's own bookkeeping.
BUFFER_RESERVE = 256 * 1024
# An address that has shown no key may hold this share of all connections, and as many as a browser opens.
STRANGERS_SHARE, FEWEST = 16, 6
# What a buffer of the first stage has beside the largest header.
FRONT_RESERVE = 16 * 1024
# A client that neither speaks nor waits for an answer, until its connection ends: within a request or before its first
# one, and between two requests.
CLIENT_SILENCE_S, KEPT_S = 15, 30
# Requests without a key have a line of the log up to so many of one address within 10 s, and while the edge gets no
# more requests a second. journald keeps 10,000 lines of a unit within 30 s.
LINES_ADDRESS, LINES_RATE = 100, 50
# Connections to the metrics, of all their readers.
READERS = 16
# What the edge tells the engine of a batch request; 0 of an interactive one. The engine takes the lowest first.
BATCH_PRIORITY = 10
# The longest name of a person that has a key.
MAX_USER = 64


@dataclass(frozen=True, slots=True)
class EdgeFiles:
    """The places that the configuration names. Tests have their own."""

    config: str = host_layout.EDGE_CONFIG
    route: str = host_layout.EDGE_ROUTE
    unit: str = host_layout.EDGE_UNIT
    keys: str = host_layout.EDGE_KEYS
    certificate: str = host_layout.EDGE_CERTIFICATE
    names_certificate: str = host_layout.EDGE_NAMES_CERTIFICATE
    certificate_list: str = host_layout.EDGE_CERTIFICATE_LIST
    authority: str = host_layout.EDGE_AUTHORITY
    tokens: str = host_layout.EDGE_TOKENS
    spent: str = host_layout.EDGE_SPENT
    states: str = host_layout.EDGE_STATES
    admin_socket: str = host_layout.EDGE_ADMIN_SOCKET
    peers_socket: str = host_layout.EDGE_PEERS_SOCKET
    route_admin_socket: str = host_layout.EDGE_ROUTE_ADMIN_SOCKET
    route_sockets: str = host_layout.EDGE_ROUTE_RUN_DIR
    exporter: str = f"{LOOPBACK}:{EXPORTER_PORT}"
    prometheus: str = f"{LOOPBACK}:{PROMETHEUS_PORT}"
    switch_socket: str = host_layout.EDGE_SWITCH_SOCKET
    sockets: str = host_layout.RUN_DIR
    log: str = "/dev/log"


@dataclass(frozen=True, slots=True)
class _Backend:
    """A backend of the template. `batch_share`: how many of the `connections` keys of the class batch have at most."""

    deployment: str
    models: tuple[str, ...]
    connections: int
    engine: str
    batch_share: int
    role: str


def config(edge: Edge, address: str, files: EdgeFiles = EdgeFiles()) -> str:
    """Return haproxy.cfg, the first stage. `address` is the host's address in the inventory."""
    return _render("haproxy.cfg.j2", edge, files, names=list(dict.fromkeys(names(edge, address))))


def route(edge: Edge, files: EdgeFiles = EdgeFiles()) -> str:
    """Return route.cfg, the second stage."""
    return _render("haproxy-route.cfg.j2", edge, files)


def _render(template: str, edge: Edge, files: EdgeFiles, **more: Any) -> str:
    settings = edge.settings
    special = edge.special_roles
    routes, switches = site.routes(edge), switch_request.routes(edge)
    limits = settings.limits
    share = partial(_share, percent=limits.batch_share)
    body = limits.body_mib * MIB
    text: str = (
        templates.templates()
        .get_template(template)
        .render(
            host=edge.host,
            files=files,
            settings=settings,
            limits=limits,
            listeners=listeners(edge),
            widest=_widest(edge),
            tls=_tls(settings.tls, files),
            backends=[_backend(backend, share(backend.sequences)) for backend in edge.backends],
            parts=edge.parts,
            active_states=" ".join(deployment_state.ACTIVE),
            retry_s=answers.RETRY_S,
            lent_retry_s=answers.LENT_RETRY_S,
            dead=answers.DEAD,
            paths_get=GET_PATHS,
            paths_post=POST_PATHS + (BY_ROLE[RERANK] if RERANK in special else ()),
            role_paths=BY_ROLE if special else {},
            listed=site.listed(edge),
            site=routes,
            is_asked=edge.is_asked,
            switches=switches,
            own_switch=next((switch for switch in switches if not switch.host), None),
            may_switch=edge_key.MAY_SWITCH,
            batch_class=edge_key.BATCH,
            batch_priority=BATCH_PRIORITY,
            batch_retry_s=answers.BATCH_RETRY_S,
            connections=_connections,
            share=share,
            socket=partial(host_layout.edge_socket, run_dir=files.sockets),
            answers=answers.arguments(settings, "site" if routes else "Spark"),
            watch=recorder.watch(edge),
            errors=list(answers.own_errors()),
            anthropic_types=sorted(set(answers.ANTHROPIC_TYPES.values())),
            unavailable=answers.type_by_path("", answers.UNAVAILABLE),
            lacking=engine_paths.lacking,
            lacks_path=answers.lacking,
            healthy=answers.HEALTHY,
            body_bytes=body,
            buffer_bytes=body + BUFFER_RESERVE,
            lines_address=LINES_ADDRESS,
            lines_rate=LINES_RATE,
            strangers=max(limits.connections // STRANGERS_SHARE, FEWEST),
            front_buffer_bytes=limits.header_kib * 1024 + FRONT_RESERVE,
            readers=READERS,
            silence_s=CLIENT_SILENCE_S,
            kept_s=KEPT_S,
            threads=THREADS,
            user_length=MAX_USER,
            **more,
        )
    )
    return text


def _tls(tls: str, files: EdgeFiles) -> str:
    """Return the words of a line `bind` about TLS."""
    if tls == OFF:
        return ""
    shown = f"crt-list {files.certificate_list}" if tls == OWN_CA else f"crt {files.certificate}"
    return f" ssl {shown} alpn h2,http/1.1"


def certificate_list(files: EdgeFiles = EdgeFiles()) -> str:
    """Return which certificate a client gets: one that asks by a name (SNI) that of names alone, any other the first,
    which `!*` makes the answer to no name."""
    return f"{files.certificate} !*\n{files.names_certificate}\n"


def names(edge: Edge, address: str) -> Iterator[str]:
    """Yield the names and addresses under which clients may ask: the inventory's, those of vllm_edge, and the host's
    own. The certificate has the same."""
    yield from own_names(edge.host, address)
    yield from edge.settings.names
    if edge.settings.metrics_server and edge.host in edge.settings.site:
        yield edge.settings.site[edge.host]  # by which Prometheus asks
    yield from (backend.bind for backend in edge.backends if backend.bind != ALL_INTERFACES)
    yield from ("localhost", "127.0.0.1")


def own_names(host: str, address: str) -> Iterator[str]:
    """Yield the names of a host: that of the inventory, and its address there. Raises RefusedError for one that
    HAProxy would read as several words or lines."""
    for name in (host, address):
        if not placement.PLAIN_NAME.fullmatch(name):
            raise placement.HOST_NAME.error(
                what=f"ansible_host of {host} is {name!r}",
                expected="a name or an address of letters, digits and . _ : -",
                fix=f"correct ansible_host of {host} in the inventory.",
            )
        yield name.lower()
        if "." not in name and ":" not in name:
            yield f"{name.lower()}.local"  # mDNS, which DGX OS answers


def listeners(edge: Edge) -> list[str]:
    """Return ADDRESS:PORT of every deployment, each once. All of them lead to all models of the host. An edge that only
    forwards has the ports of the deployments to which it forwards, on all addresses."""
    if edge.only_forwards:
        ports = {backend.port for one in edge.neighbours for backend in one.backends}
        return [f"{ALL_INTERFACES}:{port}" for port in sorted(ports)]
    found = {(backend.bind, backend.port) for backend in edge.backends}
    covered = {port for bind, port in found if bind == ALL_INTERFACES}
    return [f"{bind}:{port}" for bind, port in sorted(found) if bind == ALL_INTERFACES or port not in covered]


def _widest(edge: Edge) -> str:
    binds = {backend.bind for backend in edge.backends}
    return binds.pop() if len(binds) == 1 else ALL_INTERFACES


def _backend(backend: EdgeBackend, share: int) -> _Backend:
    connections = _connections(backend.sequences)
    return _Backend(backend.deployment, backend.models, connections, backend.engine, share, backend.role)


def _connections(sequences: int | None) -> int:
    """Return how many requests an engine gets at the same time."""
    return (sequences or DEFAULT_SEQUENCES) + MORE_CONNECTIONS


def _share(sequences: int | None, percent: int) -> int:
    """Return how many batch requests an engine gets at the same time."""
    return max((sequences or DEFAULT_SEQUENCES) * percent // 100, 1)


def is_address(name: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
