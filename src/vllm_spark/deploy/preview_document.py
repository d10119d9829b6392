"""The previews of a run as the document of `plan` for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.deploy.preview import Preview
from vllm_spark.sizing import forecast_document
from vllm_spark.sizing.forecast import ForecastRequest


def body(previews: Mapping[str, Preview], request: ForecastRequest) -> dict[str, Any]:
    """Return the document without its refusals."""
    return {
        "deployments": [
            forecast_document.of_forecast(preview.forecast, preview.spec.recipe, request, preview.spec.deployment.name)
            for preview in previews.values()
            if preview.forecast and preview.spec
        ],
        "hosts": [_host(host, preview) for host, preview in previews.items()],
    }


def _host(host: str, preview: Preview) -> dict[str, Any]:
    spec = preview.spec
    return {
        "host": host,
        "answers": True,
        "problem": "",
        "deployment": spec.deployment.name if spec else None,
        "rank": spec.rank if spec else None,
        "change": _change(preview),
        "lines": list(preview.lines),
    }


def _change(preview: Preview) -> str | None:
    if preview.plan is None:
        return "refused" if preview.spec or preview.refusals else None
    return "none" if preview.plan.settled else preview.plan.state
