"""Both stages of a real edge on the loopback device, with the configuration of a spec, and scripted engines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from fakes.scripted_engine import ScriptedEngine
from loopback import ADDRESS, held_port
from vllm_spark.core import paths
from vllm_spark.edge import authority, config
from vllm_spark.edge.authority import HostPair, KeyPair
from vllm_spark.edge.config import EdgeFiles
from vllm_spark.inventory import edge
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import host_layout
from waiting import LIMIT_S, until

KEY = "sk-of-ada"
TOKENS = paths.TEMPLATES / "edge-tokens.lua"
HASH = hashlib.sha256(KEY.encode()).hexdigest()


def haproxy() -> str:
    """Return the path of HAProxy. A missing one is an error: nothing else judges the configuration."""
    found = os.environ.get("HAPROXY") or shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "no HAProxy in PATH — expected: HAProxy 2.6 or later. Fix: tests/edge/install"
    return found


def unit_environment(unit: str = host_layout.EDGE_UNIT) -> dict[str, str]:
    """Return the variables that a unit gives HAProxy."""
    lines = (paths.TEMPLATES / unit).read_text(encoding="utf-8").splitlines()
    return dict(line.removeprefix("Environment=").split("=", 1) for line in lines if line.startswith("Environment="))


def check(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the verdict of `haproxy -c` about a configuration."""
    file = folder / "haproxy.cfg"
    file.write_text(text, encoding="utf-8")
    return subprocess.run([haproxy(), "-c", "-f", str(file)], capture_output=True, text=True, check=False)


class Engines:
    """Scripted engines in a thread with a loop of its own, on the sockets of their deployments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[str, asyncio.Server] = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def start(self, deployment: str, engine: ScriptedEngine) -> None:
        path = self.folder / deployment / "api.sock"
        path.parent.mkdir(exist_ok=True)
        server = asyncio.run_coroutine_threadsafe(engine.start_unix(str(path)), self.loop).result()
        self.servers[deployment] = server

    def stop(self, deployment: str) -> None:
        """Stop listening, as an engine that has ended. Its open streams go on."""
        self.loop.call_soon_threadsafe(self.servers.pop(deployment).close)
        (self.folder / deployment / "api.sock").unlink()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _cancel(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass
class Answer:
    """A response: status, headers with lower-case names, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error of the shape of OpenAI's API."""
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def takes_a_reload(master: int) -> bool:
    """Return whether a master of HAProxy catches SIGUSR2. Its workers answer before it does, and of 40 signals that
    came in this time 37 were lost (HAProxy 2.6.12). On a Spark systemd waits for the master's READY."""
    status = Path(f"/proc/{master}/status").read_text(encoding="utf-8")
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(caught >> (signal.SIGUSR2 - 1) & 1)


@dataclass
class RunningEdge:
    """HAProxy with the configuration of a spec, with its files in a folder. `process` is the first stage, `second` the
    second one."""

    planned: Edge
    folder: Path
    keys: Mapping[str, str] = field(default_factory=lambda: {HASH: "ada"})
    address: str = ADDRESS
    site: KeyPair | None = None
    tokens: Path = TOKENS
    exporter: str = EdgeFiles().exporter
    prometheus: str = EdgeFiles().prometheus

    def __post_init__(self) -> None:
        self.port = held_port()
        self.files = EdgeFiles(
            config=str(self.folder / "haproxy.cfg"),
            route=str(self.folder / "route.cfg"),
            keys=str(self.folder / "keys.map"),
            certificate=str(self.folder / "tls.pem"),
            names_certificate=str(self.folder / "names.pem"),
            certificate_list=str(self.folder / "certificates.list"),
            authority=str(self.folder / "ca.crt"),
            tokens=str(self.tokens),
            exporter=self.exporter,
            prometheus=self.prometheus,
            spent=str(self.folder / "spent.map"),
            states=str(self.folder / "run" / "states.map"),
            admin_socket=str(self.folder / "admin.sock"),
            peers_socket=str(self.folder / "peers.sock"),
            route_admin_socket=str(self.folder / "route" / "admin.sock"),
            route_sockets=str(self.folder / "route"),
            switch_socket=str(self.folder / "switch.sock"),
            sockets=str(self.folder / "run"),
            log=str(self.folder / "log"),
        )
        for sockets in (self.files.sockets, self.files.route_sockets):
            Path(sockets).mkdir(parents=True, exist_ok=True)
        for file in (self.files.states, self.files.spent):
            Path(file).touch()
        self.log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.log.bind(self.files.log)
        self.log.settimeout(LIMIT_S)
        Path(self.files.keys).write_text("".join(f"{key} {name}\n" for key, name in self.keys.items()))
        self.planned = self.placed(self.planned)

    def placed(self, edge: Edge) -> Edge:
        """Return an edge whose deployments have the address and the port of this edge. An edge that only forwards takes
        the port of the deployments of the other Sparks."""
        own = tuple(replace(one, bind=self.address, port=self.port) for one in edge.backends)
        near = tuple(
            replace(one, backends=tuple(replace(each, port=self.port) for each in one.backends))
            for one in edge.neighbours
        )
        return replace(edge, backends=own, neighbours=near)

    def start(self) -> None:
        if self.planned.settings.tls != edge.OFF:
            self._certify()
        self.configure()
        self._run()

    def _run(self) -> None:
        self.second = _haproxy(self.files.route, host_layout.EDGE_ROUTE_UNIT)
        self.process = _haproxy(self.files.config, host_layout.EDGE_UNIT)
        try:
            self._await_listener()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """End HAProxy and start it again, as a restart of the unit does."""
        self._end()
        self._run()

    def configure(self) -> None:
        self.text = config.config(self.planned, self.address, self.files)
        Path(self.files.config).write_text(self.text, encoding="utf-8")
        Path(self.files.route).write_text(config.route(self.planned, self.files), encoding="utf-8")

    def _certify(self) -> None:
        """Make the certificates, and an authority if there is none, as the controller does."""
        now = datetime.now(UTC)
        names = list(config.names(self.planned, self.address))
        site = self.site or authority.new_authority(now, names)
        self.show(authority.new_certificate(site, names, now, asks=self.planned.joins))
        (self.folder / "ca.crt").write_text(site.certificate)

    def show(self, pair: HostPair) -> None:
        """Place the certificates of this edge."""
        Path(self.files.certificate).write_text(pair.certificate + pair.private_key)
        Path(self.files.names_certificate).write_text(pair.names_certificate + pair.private_key)
        Path(self.files.certificate_list).write_text(config.certificate_list(self.files))

    def wait_for(self, backend: str, status: str, server: str = "engine") -> None:
        """Wait until HAProxy's check has found that an engine is UP or DOWN, or another server of a backend."""
        until(lambda: f",{status}," in self._state(backend, server))

    def _state(self, backend: str, server: str) -> str:
        lines = self.admin_route("show stat").splitlines()
        return next((line for line in lines if line.startswith(f"{backend},{server},")), "")

    def reload(self) -> None:
        """Reload as the units do. Returns at once, before `has_reloaded`."""
        for process in (self.second, self.process):
            process.send_signal(signal.SIGUSR2)

    def worker(self) -> str:
        """Return the process ids of the workers that answer the runtime API, empty unless both do."""
        found = [spark_edge.worker(place) for place in (self.files.admin_socket, self.files.route_admin_socket)]
        return " ".join(found) if all(found) else ""

    def has_reloaded(self, before: str) -> bool:
        """Return whether both workers are others than before."""
        now = self.worker().split()
        return bool(now) and not {*now} & {*before.split()}

    def _await_listener(self) -> None:
        def listens() -> bool:
            for process in (self.second, self.process):
                assert process.poll() is None, process.communicate()[1].decode()
            with socket.socket() as probe:
                listening = probe.connect_ex((self.address, self.port)) == 0 and bool(self.worker())
            return listening and all(takes_a_reload(process.pid) for process in (self.second, self.process))

        until(listens)

    def connect(self, timeout: float = LIMIT_S) -> HTTPConnection:
        """Return a connection that trusts the certificate of the folder."""
        if self.planned.settings.tls == "off":
            return HTTPConnection(self.address, self.port, timeout=timeout)
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return HTTPSConnection(self.address, self.port, timeout=timeout, context=context)

    def ask(
        self, method: str, path: str, body: object = None, key: str | None = KEY, headers: Mapping[str, str] = {}
    ) -> Answer:
        """Return the answer to one request on a connection of its own."""
        connection = self.connect()
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **headers}
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def show_key(self) -> None:
        """Ask once with the key. From then on this address may hold more connections than a stranger's."""
        self.ask("GET", "/v1/models")

    def logged(self, part: str = "client=") -> str:
        """Return the next line of the log with a text. Without a word of the caller it is the next one of a request."""
        while part not in (line := self.log.recv(65536).decode()):
            pass
        return line

    def memory_kib(self, what: str = "VmRSS") -> int:
        """Return the resident memory of both workers together, or its peak: VmHWM."""
        texts = [Path(f"/proc/{worker}/status").read_text(encoding="ascii") for worker in self.worker().split()]
        return sum(int(kib) for text in texts for kib in re.findall(rf"{what}:\s+(\d+) kB", text))

    def admin(self, command: str, admin_socket: str = "") -> str:
        """Return the answer of HAProxy's runtime API. Without a socket that of the first stage."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(admin_socket or self.files.admin_socket)
            client.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: client.recv(65536), b"")).decode()

    def admin_route(self, command: str) -> str:
        """Return the answer of the runtime API of the second stage."""
        return self.admin(command, self.files.route_admin_socket)

    def close(self) -> None:
        self._end()
        self.log.close()

    def _end(self) -> None:
        for process in (self.process, self.second):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _haproxy(file: str, unit: str) -> subprocess.Popen[bytes]:
    """Start a stage as its unit does."""
    environment = {**os.environ, **unit_environment(unit)}
    return subprocess.Popen([haproxy(), "-W", "-f", file], stderr=subprocess.PIPE, env=environment)


@contextmanager
def in_front(planned: Edge, folder: Path, of: Mapping[str, Any], **more: Any) -> Iterator[tuple[RunningEdge, Engines]]:
    """Yield a running edge with `more` of its fields, and its engines by deployment, which are up."""
    edge, engines = RunningEdge(planned, folder, **more), Engines(folder / "run")
    for name, engine in of.items():
        engines.start(name, engine)
    edge.start()
    try:
        for name in of:
            edge.wait_for(name, "UP")
        yield edge, engines
    finally:
        edge.close()
        engines.close()
