"""A gate request for tests that need only some of its fields."""

from __future__ import annotations

from typing import Any

from vllm_spark.verify.gate_request import GateRequest

DEFAULTS: dict[str, Any] = {
    "deadline_s": 600,
    "rank": 0,
    "state_path": "/run/vllm-spark/demo/state.json",
    "unit": "vllm@demo.service",
    "container": "vllm-demo",
    "image": "vllm/vllm-openai@sha256:1",
    "launch": "1" * 64,
    "address": "127.0.0.1",
    "port": 8000,
    "served_name": "model",
    "api_key": False,
    "model_root": "/models/model",
    "max_model_len": 4096,
    "engine_version": "0.20.2",
}


def gate_request(**fields: Any) -> GateRequest:
    """Return a request of a head with these fields."""
    return GateRequest(**{**DEFAULTS, **fields})
