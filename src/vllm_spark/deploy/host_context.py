"""HostContext: one host of a deployment, its rank and its facts. It is made once, and read by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.core.types import CdiFacts, ContainerFacts, DockerFacts, Facts, GpuFacts, HostFacts, Record
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.deployment_state import LENT
from vllm_spark.sizing import memory


@dataclass(frozen=True, slots=True)
class HostContext:
    """One host of a deployment. Only the head has `workers`, so that a difference is reported once.

    Every property is empty if the host did not report the fact.
    """

    host: str
    spec: Spec
    facts: Facts
    workers: tuple[HostContext, ...] = ()

    @classmethod
    def of(cls, specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str) -> HostContext:
        """Return one host. `specs` and `facts` hold all hosts of the deployment."""
        head = specs[host].deployment.hosts[0]
        workers = [cls(name, specs[name], facts[name]) for name in specs if name != host == head]
        return cls(host, specs[host], facts[host], tuple(workers))

    def with_rank(self, **changes: Any) -> HostContext:
        """Return the host with another rank. `changes` are fields of the spec."""
        return replace(self, spec=replace(self.spec, **changes))

    @property
    def host_facts(self) -> HostFacts:
        return self.facts.get("host") or {}

    @property
    def docker(self) -> DockerFacts:
        return self.facts.get("docker") or {}

    @property
    def cdi(self) -> CdiFacts:
        return self.docker.get("cdi") or {}

    @property
    def gpu(self) -> GpuFacts:
        """The first GPU; a Spark has one."""
        gpus = self.facts.get("gpus")
        return gpus[0] if gpus else {}

    @property
    def kernel(self) -> str:
        return self.facts.get("kernel") or ""

    @property
    def driver(self) -> str:
        return self.gpu.get("driver") or ""

    @property
    def bios(self) -> str:
        return self.host_facts.get("bios") or ""

    @property
    def serves(self) -> bool:
        """Return True while a model server of the toolkit runs here; its memory is part of every figure."""
        return bool(self.facts.get("running_units"))

    @property
    def image(self) -> str | None:
        """The identity of the image of this deployment on the host."""
        return self.facts["images"].get(self.spec.image)

    @property
    def record(self) -> Record:
        """The record that the host has of this deployment."""
        return self.facts["records"].get(self.spec.deployment.name) or {}

    @property
    def launch(self) -> Mapping[str, Any]:
        """The launch of this deployment on the host."""
        return self.facts.get("launches", {}).get(self.spec.deployment.name) or {}

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of this deployment on the host."""
        return self.facts.get("states", {}).get(self.spec.deployment.name) or {}

    @property
    def lent(self) -> str:
        """Until when and by whom the memory of this deployment is lent: then no verb starts it."""
        return str(self.state["why"]) if self.state and self.state["state"] == LENT else ""

    @property
    def engine(self) -> ContainerFacts | None:
        """The container of this deployment while it runs."""
        container = self.docker.get("containers", {}).get(self.spec.deployment.container)
        return container if container and container["state"] == "running" else None

    @property
    def needed_bytes(self) -> int:
        """Return the memory that a start takes, in bytes."""
        return memory.needed_bytes(self.spec.recipe, self.facts["memory"]["total"])
