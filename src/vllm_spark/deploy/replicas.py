"""Servers of one model behind one address: their sum, and the same Sparks as fewer servers over more ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vllm_spark.deploy.preview import Preview
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import request_limits, tensor_parallel
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.prediction import Prediction

# Ranks of the larger servers that the Sparks are compared with.
RANKS = (2, 4, 8)


def lines(previews: Mapping[str, Preview], request: ForecastRequest, known: Constants) -> list[str]:
    """Return what the servers of each model with several deployments give together, and what other sizes would.

    `request` is the load of one server.
    """
    groups: dict[str, list[Preview]] = {}
    for preview in previews.values():
        if (spec := preview.spec) and preview.forecast and preview.forecast.prediction and spec.edge.joins:
            groups.setdefault(spec.recipe["model"]["served_name"], []).append(preview)
    return [line for name, servers in groups.items() if len(servers) > 1 for line in _of(name, servers, request, known)]


def _of(name: str, servers: Sequence[Preview], request: ForecastRequest, known: Constants) -> Iterator[str]:
    specs = [server.spec for server in servers if server.spec]
    speeds = [server.forecast.prediction for server in servers if server.forecast and server.forecast.prediction]
    sparks = sum(len(spec.deployment.hosts) for spec in specs)
    requests = request.streams * len(servers)
    yield (
        f"{name}: {len(servers)} servers on {sparks} Sparks behind one address, {requests} requests at once "
        "(forecasts; nobody has measured them together)"
    )
    each = [request_limits.at_once(spec.recipe, request.streams) for spec in specs]
    yield f"  together {_sum(speeds, each)}, one request {_each(speeds)}: as deployed"
    sizes = {(spec.recipe["name"], len(spec.deployment.hosts)) for spec in specs}
    if len(sizes) == 1:
        for ranks in RANKS:
            if ranks > len(specs[0].deployment.hosts) and sparks % ranks == 0:
                yield f"  {_larger(specs[0], sparks // ranks, ranks, replace(request, streams=requests), known)}"
    yield "  without one replica the others serve on; all ranks of one server stop together"


def _larger(spec: Spec, servers: int, ranks: int, request: ForecastRequest, known: Constants) -> str:
    """Return what so many servers of so many ranks would give under the load of all."""
    cable = "a cable each" if ranks == min(RANKS) else "a switch"
    what = f"{servers} server{'s' * (servers > 1)} of tensor parallel {ranks}, {cable}"
    own = replace(request, streams=-(-request.streams // servers))
    speed = tensor_parallel.predicted(spec.recipe, ranks, own, known)
    if speed is None:
        return f"not possible, its heads do not divide: {what}"
    served = request_limits.at_once(spec.recipe, own.streams)
    return f"together {_sum([speed] * servers, [served] * servers)}, one request {_each([speed])}: {what}"


def _sum(speeds: Sequence[Prediction], streams: Sequence[int]) -> str:
    """Return the sum over servers, from the slowest to the fastest kind of text."""
    ends = [
        sum(end.tokens_per_s * served for end, served in zip(text, streams, strict=True))
        for text in ([speed.slow for speed in speeds], [speed.fast for speed in speeds])
    ]
    return _range(*ends)


def _each(speeds: Sequence[Prediction]) -> str:
    """Return the speed of one request, from the slowest server to the fastest."""
    slow, fast = min(s.slow.tokens_per_s for s in speeds), max(s.fast.tokens_per_s for s in speeds)
    return _range(slow, fast)


def _range(slow: float, fast: float) -> str:
    ends = dict.fromkeys(f"{end:.0f}" for end in (slow, fast))
    return f"{' to '.join(ends)} tok/s"
