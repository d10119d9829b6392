"""The gate of an edge without an engine of its own Spark: the gate `edge` alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from vllm_spark.core.ports import ALL_INTERFACES, LOOPBACK
from vllm_spark.edge import config
from vllm_spark.inventory.front import EdgeOwner, is_asked
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import edge
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.verdict import Verdict


def request(owner: EdgeOwner) -> GateRequest:
    """Return the request for the gate `edge`. It reads no field about an engine, so these are empty."""
    bind, _, port = config.listeners(owner)[0].rpartition(":")
    site = {"site_port": str(owner.edge.site_port)} if is_asked(owner) else {}
    return GateRequest(
        deadline_s=0,
        rank=0,
        state_path="",
        unit="",
        container="",
        image="",
        launch="",
        address=LOOPBACK if bind == ALL_INTERFACES else bind,
        port=int(port),
        served_name="",
        api_key=False,
        model_root="",
        max_model_len=None,
        engine_version="",
        bind=bind,
        edge={"tls": owner.edge.tls, **site},
    )


def verdicts(asked: GateRequest, responses: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on what the Spark and the controller got from the edge."""
    return list(edge.judge(asked, cast("Probe", {"responses": {edge.NAME: responses}}), []))
