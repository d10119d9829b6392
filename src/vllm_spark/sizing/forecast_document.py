"""A forecast as an entry of the document of `plan` for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.sizing.acceptance import Accepted
from vllm_spark.sizing.constants import Interval
from vllm_spark.sizing.forecast import Forecast, ForecastRequest
from vllm_spark.sizing.memory import Fit
from vllm_spark.sizing.prediction import Prediction, Speed


def of_forecast(
    forecast: Forecast, recipe: Document, request: ForecastRequest, deployment: str | None
) -> dict[str, Any]:
    """Return the entry. `deployment` is None for a recipe that no inventory places."""
    return {
        "deployment": deployment,
        "recipe": recipe["name"],
        "hosts": list(forecast.hosts),
        "reference": forecast.reference,
        "verdict": "no-go" if forecast.refusals else "go" if forecast.go else "unknown",
        "streams": request.streams,
        "min_speed_tok_per_s": request.min_speed or None,
        "memory": [_memory(host, fit) for host, fit in forecast.fits.items()],
        "speed": _speed(forecast.prediction) if forecast.prediction else None,
        "download_bytes": forecast.download_bytes if forecast.download_known else None,
        "notes": list(forecast.notes),
        "faster": list(forecast.better),
    }


def _memory(host: str, fit: Fit) -> Mapping[str, Any]:
    return {
        "host": host,
        "total_bytes": fit.total,
        "available_bytes": fit.available,
        "reserved_bytes": fit.reserved,
        "weights_bytes": fit.weights,
        "workspace_bytes": fit.workspace,
        "beside_bytes": fit.beside,
        "asked_bytes": fit.asked,
        "parts": [
            {"what": part.what, "setting": part.setting or None, "bytes": part.bytes, "reserved": part.inside}
            for part in fit.parts
        ],
        "cache_bytes": fit.room,
        "request_bytes": fit.request,
        "context_tokens": fit.context,
        "requests": round(fit.requests, 2),
    }


def _speed(prediction: Prediction) -> Mapping[str, Any]:
    low, high = prediction.interval()
    return {
        "low_tok_per_s": round(low, 2),
        "slow_tok_per_s": round(prediction.slow.tokens_per_s, 2),
        "fast_tok_per_s": round(prediction.fast.tokens_per_s, 2),
        "high_tok_per_s": round(high, 2),
        "together_slow_tok_per_s": round(prediction.slow.served.total, 2),
        "together_fast_tok_per_s": round(prediction.fast.served.total, 2),
        "first_token_s": round(prediction.first_token_s, 3),
        "interval": _interval(prediction.of_speed),
        "first_token_interval": _interval(prediction.of_first_token),
        "texts": [
            _text(speed.accepted, speed, prediction.interval(speed)) for speed in prediction.speeds if speed.accepted
        ],
    }


def _interval(interval: Interval) -> Mapping[str, Any]:
    return {"spread": interval.spread, "operators": interval.operators, "measured_here": interval.own}


def _text(accepted: Accepted, speed: Speed, interval: tuple[float, float]) -> Mapping[str, Any]:
    return {
        "text": accepted.text,
        "acceptance": round(accepted.rate, 4),
        "measured_with_tokens": accepted.measured.tokens if accepted.measured else None,
        "measured_here": bool(accepted.measured and accepted.measured.hosts),
        "low_tok_per_s": round(interval[0], 2),
        "tok_per_s": round(speed.tokens_per_s, 2),
        "high_tok_per_s": round(interval[1], 2),
        "together_tok_per_s": round(speed.served.total, 2),
    }
