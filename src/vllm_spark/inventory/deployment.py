"""Deployments: what the inventory's `vllm_deployments` says, and which of it belongs on a Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import ports
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.recipe import loader

BAD_DEPLOYMENTS = register("bad-deployments", runbook="inventory-refused")
TWO_ACTIVE = register("two-active", runbook="inventory-refused")

SCHEMA = Path(__file__).with_name("deployments.schema.json")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A recipe placed on named Sparks; hosts[0] is the head."""

    name: str
    recipe: str
    hosts: tuple[str, ...]
    port: int = 8000
    bind: str = "0.0.0.0"  # noqa: S104  a model server on a home network is there to be reached from it
    active: bool = True
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accept_known_issues: tuple[str, ...] = ()
    # A router before this server, as the head reaches it: url, key (the variable with it), model (its name there).
    through: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Deployment:
        """From an entry of the inventory, or from what became of one on its way through JSON."""
        lists = {name: tuple(document[name]) for name in ("hosts", "accept_known_issues") if name in document}
        return cls(**{**document, **lists})

    @property
    def unit(self) -> str:
        return f"vllm@{self.name}.service"

    @property
    def timer(self) -> str:
        """Asks for a token every quarter of a minute, on the head."""
        return f"vllm-liveness@{self.name}.timer"

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def local_address(self) -> str:
        """Where the API answers on its own box."""
        return "127.0.0.1" if self.bind == "0.0.0.0" else self.bind  # noqa: S104  compared, not bound


def parse(raw: object) -> list[Deployment]:
    """Check `vllm_deployments` and return it. Raises RefusedError with every fault found."""
    # jsonschema takes a tenth of a second to import, and only this phase needs it.
    from vllm_spark.core import schema  # noqa: PLC0415

    faults = [f"vllm_deployments{'' if fault[0] == '[' else ': '}{fault}" for fault in schema.faults(raw, SCHEMA)]
    if faults:
        raise RefusedError(_fault(fault) for fault in faults)
    assert isinstance(raw, Sequence)  # noqa: S101  the schema has said so; this tells the type checker
    deployments = [Deployment.from_json(entry) for entry in raw]
    faults = list(_cross_faults(deployments))
    if faults:
        raise RefusedError(_fault(fault) for fault in faults)
    return deployments


def _cross_faults(deployments: Sequence[Deployment]) -> Iterator[str]:
    seen: set[str] = set()
    for deployment in deployments:
        if deployment.name in seen:
            yield f"vllm_deployments: two are named {deployment.name} — expected: every name once"
        seen.add(deployment.name)
        if len(deployment.hosts) > 1 and deployment.port in ports.PORTS:
            yield (
                f"vllm_deployments: {deployment.name}.port: {deployment.port} — expected: one outside "
                f"{ports.PORTS.start} to {ports.PORTS.stop - 1}, which the two ranks keep for each other"
            )
        for fault in loader.override_faults(deployment.overrides):
            yield f"vllm_deployments: {deployment.name}.overrides.{fault}"


def _fault(text: str) -> Refusal:
    what, _, expected = text.partition(" — expected: ")
    return BAD_DEPLOYMENTS(
        what=what,
        expected=expected or "entries as inventories/sample describes them",
        fix="correct vllm_deployments in the inventory.",
    )


def of_host(deployments: Sequence[Deployment], host: str) -> list[Deployment]:
    """The deployments that name this Spark, active or not."""
    return [deployment for deployment in deployments if host in deployment.hosts]


def active_of_host(deployments: Sequence[Deployment], host: str) -> Deployment | None:
    """The one deployment that a Spark shall serve. Raises RefusedError if the inventory names two."""
    active = [deployment for deployment in of_host(deployments, host) if deployment.active]
    if len(active) > 1:
        both = " and ".join(deployment.name for deployment in active)
        raise RefusedError(
            [
                TWO_ACTIVE(
                    what=f"{host} has {len(active)} active deployments: {both}",
                    expected="one, because a Spark's memory holds one model",
                    fix=f"set `active: false` on all but one of {both}.",
                )
            ]
        )
    return active[0] if active else None
