"""The request that the gates of one rank receive: where the server is, and what the recipe expects of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.types import Document
from vllm_spark.inventory.edge import OFF
from vllm_spark.node.engine_api import CHAT
from vllm_spark.node.unix_http import SCHEME
from vllm_spark.verify.edge_target import EdgeTarget

# Fields that only a closed engine has, and one on a shared Spark.
LEFT_OUT = ("socket", "edge", "cache_tokens")

BROKEN_GATES = register("broken-gates", runbook="broken-record")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """The input of the gates of one rank. gates.json on the host stores it, so that a restored launch is judged
    by the expectations of its own deploy. It contains no secret: `api_key` says only whether the server has a key.

    `launch` is the fingerprint of the launch. `fabric` is the NCCL network of the recipe. `gates` maps each optional
    gate of this deployment to its options. `through` is the router of the deployment, empty without one: `url`; `key`,
    the variable of the env file with the router's key; `model`, the router's name of this model if it differs.
    `socket` is the path of a closed engine's socket, which then serves the requests instead of address and port.
    `edge` is empty for an open engine; otherwise it has `tls` of vllm_edge, for the URL of clients, and `site_port` if
    other edges ask this one. `role` is the recipe's.
    `variables` are the names of the variables that the recipe, the overrides and the secrets set; None in a gates.json
    that does not have them.
    `cache_tokens` is the planned size of the cache of an engine on a shared Spark, None if no single number tells it.
    """

    deadline_s: int
    rank: int
    state_path: str
    unit: str
    container: str
    image: str
    launch: str
    address: str
    port: int
    served_name: str
    api_key: bool
    model_root: str
    max_model_len: int | None
    engine_version: str
    release: bool = True  # the image is a release of vLLM, so /version must answer engine_version
    log: Sequence[Document] = ()
    variables: Sequence[str] | None = None
    fabric: str | None = None
    answers: Sequence[Document] = ()
    gates: Mapping[str, Document] = field(default_factory=dict)
    through: Mapping[str, str] = field(default_factory=dict)
    bind: str = ""  # the address on which the server listens; empty in a request of an older toolkit
    socket: str = ""
    edge: Mapping[str, str] = field(default_factory=dict)
    role: str = CHAT
    cache_tokens: int | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GateRequest:
        """Return the request that `to_json` wrote. Keys of another toolkit version are ignored. Raises RefusedError if
        one is missing."""
        names = {each.name for each in fields(cls)}
        required = [each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING]
        if absent := [name for name in required if name not in document]:
            raise BROKEN_GATES.error(
                what=f"gates.json of this launch has no {', '.join(absent)}",
                expected="the parameters of its gates, as its deploy has written them",
                fix=Fix("ansible-playbook deploy.yml", "It writes the file again."),
            )
        return cls(**{key: value for key, value in document.items() if key in names})

    def client_url(self, host: str) -> str:
        """Return the URL for clients. `host` is the address of the Spark in the inventory."""
        return self.target.client_url(host)

    @property
    def target(self) -> EdgeTarget:
        """What clients of this server ask: its edge, or the open engine."""
        site_port = int(port) if (port := self.edge.get("site_port")) else None
        return EdgeTarget(self.address, self.port, self.bind, self.edge.get("tls", OFF), site_port)

    def to_json(self) -> dict[str, Any]:
        """Return the document of gates.json. A field that only some engines have is left out for others."""
        new = {"role": CHAT, **dict.fromkeys(LEFT_OUT)}
        return {
            name: value for name, value in asdict(self).items() if name not in new or (value and value != new[name])
        }

    @property
    def host_url(self) -> str:
        """The URL for programs on the head."""
        return f"{SCHEME}{self.socket}" if self.socket else self.client_url(self.address)
