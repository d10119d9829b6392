"""The text of a forecast for an operator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from vllm_spark.core.types import Document
from vllm_spark.core.units import GB, gib
from vllm_spark.recipe import licences
from vllm_spark.recipe.host_memory import Taken
from vllm_spark.sizing import request_limits
from vllm_spark.sizing.acceptance import Share
from vllm_spark.sizing.constants import HOLDS
from vllm_spark.sizing.expected import ONE_STREAM
from vllm_spark.sizing.forecast import USUAL_CONTEXT, Forecast, ForecastRequest
from vllm_spark.sizing.memory import Fit
from vllm_spark.sizing.prediction import ANSWER, Prediction

# From so many seconds on tenths say enough.
TENTHS = 10


def lines(forecast: Forecast, recipe: Document, request: ForecastRequest) -> list[str]:
    """Return the forecast as text for an operator."""
    several = forecast.reference and len(forecast.hosts) > 1
    where = f"{len(forecast.hosts)} reference Sparks" if several else "+".join(forecast.hosts)
    result = [f"{forecast.name} on {where}: {forecast.verdict}"]
    available = "available on a fresh Spark" if forecast.reference else "available now"
    for fit, group in itertools.groupby(forecast.fits.items(), key=lambda item: item[1]):
        hosts = [host for host, _ in group]
        each = f"{hosts[0]}{f' to {hosts[-1]}, each' * (len(hosts) > 1)}"
        result += _fit_lines(each, fit, recipe, available)
    result.append(_download_line(forecast))
    if forecast.download_bytes or not forecast.download_known:
        result += [f"  {line}" for line in licences.lines(recipe)]
    if forecast.prediction:
        result += _speed_lines(forecast.prediction, recipe, request)
    result += [f"  {note}" for note in forecast.notes]
    result += [f"  better: {line}" for line in forecast.better]
    return result


def _fit_lines(host: str, fit: Fit, recipe: Document, available: str) -> Iterator[str]:
    budget = recipe["memory"]
    share = "by kv_cache_bytes" if "kv_cache_bytes" in budget else f"{budget['utilization']:.2f} of {gib(fit.total)}"
    cache = f"{fit.requests:.1f} requests of {fit.context} tokens, {gib(fit.request)} each"
    peak = "" if "loading_peak_bytes" in budget else "the files, before they are quantised"
    rows = [
        ("weights", fit.weights, ""),
        ("activations and CUDA graphs", fit.workspace, "allowance"),
        *((part.what, part.bytes, _origin_of(part)) for part in fit.parts if part.inside),
        ("cache", max(0, fit.room), cache),
        ("reserved by the engine", fit.reserved, share),
        *((part.what, part.bytes, _origin_of(part)) for part in fit.parts if not part.inside),
        ("peak of loading", fit.peak, peak),
        ("asked for at the start", fit.asked, "free beside the processes, and not taken"),
        ("kept free for the host", fit.floor, ""),
        (available, fit.available, ""),
    ]
    yield f"  memory of {host}"
    for what, size, remark in rows:
        if size or what in {"cache", "weights"}:
            yield f"    {what:<28}{gib(size):>11}{'  ' + remark if remark else ''}"


def _origin_of(part: Taken) -> str:
    """Return which setting decides about a part."""
    name = part.setting.partition(".")[2]
    return "" if part.base else name if part.stated else f"the engine's default of {name}"


def _download_line(forecast: Forecast) -> str:
    if not forecast.download_known:
        return "  download: unknown, the recipe has no size_bytes"
    if not forecast.download_bytes:
        return "  download: nothing, the model is on the host"
    return f"  download: {forecast.download_bytes / GB:.1f} GB of model, and the image if it is not on the host yet"


def _speed_lines(prediction: Prediction, recipe: Document, request: ForecastRequest) -> Iterator[str]:
    served, context = request_limits.at_once(recipe, request.streams), request.context or USUAL_CONTEXT
    load = f"{ONE_STREAM if served == 1 else f'each of {served} streams'}, {context} tokens of context"
    if "drafter" in recipe:
        yield f"  speed: {load}, {recipe['drafter']['speculative_tokens']} drafted tokens a step"
        yield from _text_lines(prediction, recipe["drafter"]["speculative_tokens"])
    else:
        yield f"  speed: {prediction}, {load}"
    if served > 1:
        yield from _together_lines(prediction, served, context)
    yield _first_token_line(prediction, served, context)
    yield from _interval_lines(prediction)
    yield f"  bound by {prediction.slow.step.bound()}"


def _text_lines(prediction: Prediction, tokens: int) -> Iterator[str]:
    """Yield the speed on each kind of text, at its acceptance."""
    for speed in prediction.speeds:
        if speed.accepted:
            text = f"on {speed.text}, {speed.accepted.rate:.0%} accepted"
            origin = _origin(speed.accepted.measured, tokens) if speed.accepted.measured else ""
            yield f"    {text:<28}{prediction.figure(speed)}{origin}"
    if any(speed.accepted and not speed.accepted.measured for speed in prediction.speeds):
        yield "    this drafter has no measured acceptance: the shares are those of Gemma 4's (field report 004)"


def _origin(measured: Share, tokens: int) -> str:
    """Return where the acceptance is from."""
    where = f"measured on {measured.hosts}" if measured.hosts else "measured"
    return f"  {where if measured.tokens == tokens else f'carried over, {where} with {measured.tokens} tokens a step'}"


def _together_lines(prediction: Prediction, streams: int, prompt: int) -> Iterator[str]:
    """Yield what all streams get together: requests that come at once, and streams whose prompts are all computed."""
    slow, fast = prediction.slow, prediction.fast
    steady = [speed.tokens_per_s * streams for speed in (slow, fast)]
    load = f"{streams} requests at once, each {prompt} tokens of prompt and {ANSWER} of answer"
    yield f"  together: {_range(slow.served.total, fast.served.total)} tok/s for {load}"
    yield f"  together, once all prompts are computed: {_range(*steady)} tok/s"


def _interval_lines(prediction: Prediction) -> Iterator[str]:
    """Yield whose figures the intervals hold, and what makes them narrower."""
    speed, first = prediction.of_speed, prediction.of_first_token
    yield f"  the interval of the speed holds {HOLDS:.0%} of the figures of {speed.whose}"
    yield f"  the interval of the first token holds {HOLDS:.0%} of the figures of {first.whose}"
    if not (speed.own and first.own):
        yield "  what `bench` measures of the recipe on these Sparks makes them narrower"


def _range(low: float, high: float) -> str:
    return f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"


def _first_token_line(prediction: Prediction, streams: int, prompt: int) -> str:
    seconds, spread = prediction.first_token_s, prediction.first_token_spread
    load = "one prompt" if streams == 1 else f"{streams} prompts at once, mean"
    digits = 1 if seconds >= TENTHS else 2
    interval = f"{seconds * (1 - spread):.{digits}f} to {seconds * (1 + spread):.{digits}f}"
    return f"  first token: {seconds:.{digits}f} s (±{spread:.0%}: {interval}), {load} of {prompt} tokens"
