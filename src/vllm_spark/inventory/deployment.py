"""Deployments: the entries of the inventory's `vllm_deployments`, and those of one Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.core import ports
from vllm_spark.core.fault import Fault
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import rules

BAD_DEPLOYMENTS = register("bad-deployments", runbook="inventory-refused")
TWO_ACTIVE = register("two-active", runbook="inventory-refused")

SCHEMA = Path(__file__).with_name("deployments.schema.json")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A recipe placed on named Sparks. hosts[0] is the head.

    - `overrides`: block of the recipe -> key -> value, where None removes the key
    - `through`: a router in front of this server, as the head reaches it: url, key (the name of the variable with its
      API key), model (its name there)
    """

    name: str
    recipe: str
    hosts: tuple[str, ...]
    port: int = 8000
    # A model server in a home network is meant to be reached from that network.
    bind: str = ports.ALL_INTERFACES
    active: bool = True
    overrides: Mapping[str, Document] = field(default_factory=dict)
    accept_known_issues: tuple[str, ...] = ()
    through: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Document) -> Deployment:
        """Build from an entry of the inventory, or from a deployment that was converted to JSON."""
        lists = {name: tuple(document[name]) for name in ("hosts", "accept_known_issues") if name in document}
        return cls(**{**document, **lists})

    @property
    def unit(self) -> str:
        return f"vllm@{self.name}.service"

    @property
    def timer(self) -> str:
        """The timer of the liveness check, which runs on the head every 15 seconds."""
        return f"vllm-liveness@{self.name}.timer"

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def local_address(self) -> str:
        """The address of the API for clients on the same host."""
        return ports.LOOPBACK if self.bind == ports.ALL_INTERFACES else self.bind


def parse(raw: object) -> list[Deployment]:
    """Check `vllm_deployments` and return it. Raises RefusedError with every fault of it."""
    # Importing jsonschema takes a tenth of a second, and only this phase needs it.
    from vllm_spark.core import schema  # noqa: PLC0415

    faults = [
        Fault(f"vllm_deployments{'' if fault.what[0] == '[' else ': '}{fault.what}", fault.expected)
        for fault in schema.faults(raw, SCHEMA)
    ]
    _refuse_if(faults)
    assert isinstance(raw, Sequence)  # noqa: S101  guaranteed by the schema; for the type checker
    deployments = [Deployment.from_json(entry) for entry in raw]
    _refuse_if(list(_cross_faults(deployments)))
    return deployments


def _refuse_if(faults: Sequence[Fault]) -> None:
    if faults:
        raise RefusedError(
            BAD_DEPLOYMENTS(what=fault.what, expected=fault.expected, fix="correct vllm_deployments in the inventory.")
            for fault in faults
        )


def _cross_faults(deployments: Sequence[Deployment]) -> Iterator[Fault]:
    """Yield the faults that a schema cannot express."""
    names: set[str] = set()
    for deployment in deployments:
        place = f"vllm_deployments: {deployment.name}"
        if deployment.name in names:
            yield Fault(f"vllm_deployments: two are named {deployment.name}", "every name once")
        names.add(deployment.name)
        if len(deployment.hosts) > 1 and deployment.port in ports.PORTS:
            yield Fault(
                f"{place}.port: {deployment.port}",
                f"one outside {ports.PORTS.start} to {ports.PORTS.stop - 1}, which are reserved between the ranks",
            )
        for fault in rules.override_faults(deployment.overrides):
            yield Fault(f"{place}.overrides.{fault.what}", fault.expected)


def of_host(deployments: Sequence[Deployment], host: str) -> list[Deployment]:
    """Return the deployments that name a host, active or not."""
    return [deployment for deployment in deployments if host in deployment.hosts]


def active_of_host(deployments: Sequence[Deployment], host: str) -> Deployment | None:
    """Return the active deployment of a host, or None. Raises RefusedError if the inventory names two."""
    active = [deployment for deployment in of_host(deployments, host) if deployment.active]
    if len(active) > 1:
        names = " and ".join(deployment.name for deployment in active)
        raise RefusedError(
            [
                TWO_ACTIVE(
                    what=f"{host} has {len(active)} active deployments: {names}",
                    expected="one, because a Spark's memory holds one model",
                    fix=f"set `active: false` on all but one of {names}.",
                )
            ]
        )
    return active[0] if active else None
