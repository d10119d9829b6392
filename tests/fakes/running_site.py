"""A site on the loopback device: the real HAProxy of each Spark at an address of its own, and scripted engines."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fakes import edge_cases
from fakes.running_edge import Engines, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from loopback import held_port
from vllm_spark.edge import authority
from vllm_spark.inventory.host_edge import Edge

ADDRESSES = {"spark1": "127.0.0.2", "spark2": "127.0.0.3", "spark3": "127.0.0.4"}
SHORT = [Stream([Event(0.0, content="word ")])]


@dataclass
class RunningSite:
    """The edges of `hosts`, which is a part of the site, and an engine for each active deployment on them.

    Each edge has the port of its clients at its own address, and all have one port for each other, as on Sparks."""

    folder: Path
    deployments: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    hosts: Sequence[str] = ("spark1", "spark2", "spark3")

    def __post_init__(self) -> None:
        self.authority = authority.new_authority(datetime.now(UTC), [*ADDRESSES, "spark9"])
        self.port = held_port()
        self.engines: dict[str, ScriptedEngine] = {}
        self.running: dict[str, Engines] = {}
        self.edges: dict[str, RunningEdge] = {}
        for host in self.hosts:
            (self.folder / host).mkdir()
            self.edges[host] = self.edge(host, self.deployments)
            self.running[host] = Engines(self.folder / host / "run")
        for one in self.deployments:
            if one["hosts"][0] in self.hosts and one.get("active", True):
                self.engines[one["name"]] = ScriptedEngine(SHORT)
                self.running[one["hosts"][0]].start(one["name"], self.engines[one["name"]])

    def edge(self, host: str, deployments: Sequence[Mapping[str, Any]], certified_as: str = "") -> RunningEdge:
        """Return the edge of a Spark as an inventory with these deployments has it, not started. `certified_as`: the
        Spark that its certificate names."""
        planned = replace(self.planned(host, deployments), host=certified_as or host)
        folder = self.folder / f"{host}{certified_as}"
        return RunningEdge(planned, folder, address=ADDRESSES[host], site=self.authority)

    def planned(self, host: str, deployments: Sequence[Mapping[str, Any]]) -> Edge:
        """Return the edge of a Spark with the addresses of the loopback device."""
        document = {"open": False, "site": edge_cases.SITE, "site_port": self.port, **self.settings}
        found = edge_cases.edge_of(deployments, document, host)
        near = tuple(replace(one, address=ADDRESSES[one.host]) for one in found.neighbours)
        return replace(found, neighbours=near)

    def start(self) -> None:
        for edge in self.edges.values():
            edge.start()

    def wait(self, host: str, **states: str) -> None:
        """Wait until the edge of a host has servers of its routes UP or DOWN: ROUTE__SERVER="UP", "_" for a dot."""
        for name, state in states.items():
            backend, _, server = name.partition("__")
            self.edges[host].wait_for(backend, state, server.replace("at_", "at."))

    def deploy(self, host: str, deployments: Sequence[Mapping[str, Any]]) -> None:
        """Give the edge of one Spark the configuration of another inventory, and reload it."""
        edge = self.edges[host]
        edge.planned = edge.placed(self.planned(host, deployments))
        edge.configure()
        edge.reload()

    def kill(self, host: str) -> None:
        """End an edge at once, as a Spark without power would; its port refuses connections."""
        process = self.edges[host].process
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for edge in self.edges.values():
            if hasattr(edge, "process"):
                edge.close()
        for engines in self.running.values():
            engines.close()
