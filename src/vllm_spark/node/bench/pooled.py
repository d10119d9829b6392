"""Measure a cell of a server for embeddings or of a reranker: documents a second, and how long a request takes."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from vllm_spark.node.bench import figures, reader, repeat
from vllm_spark.node.bench.cell_run import Messages, Result
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Cell, Fault
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.server import MAX_REPLY_BYTES, Server, request
from vllm_spark.node.bench.stream import percentile
from vllm_spark.node.engine_api import EMBED, PROOFS

# Requests that each stream sends one after the other in a run, so that its slowest ones can be told.
REQUESTS = 4
TIMEOUT_S, TAIL_PERCENT = 600.0, 95
# Characters of a document that are the query of a reranker.
QUERY = 200

Prompt = Callable[[int, int], Messages]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request: when it began and ended, in seconds of time.perf_counter(), and the tokens that the server says to
    have read; None if it says none. `fault`: why it is no answer."""

    began: float
    ended: float
    tokens: int | None = None
    fault: Fault | None = None


def measure(server: Server, cell: Cell, rules: Rules, prompt: Prompt, comparisons: int) -> Result:
    """Return the result of a cell with `documents`. No fault of an answer is judged but its number of documents."""
    result, values = Result(), dict[str, list[Any]]()
    (leading,) = leading_metrics(cell)
    number = -rules.warm_up
    while number < 0 or not repeat.enough(rules, result.runs, [values.get(leading, [])], comparisons):
        answers = _run(server, cell, partial(prompt, number))
        if faults := [one.fault for one in answers if one.fault]:
            first = faults[0]
            what = f"{len(faults)} of {len(answers)} requests: {first['what']}"
            return Result("failed", result.runs, faults=[{"id": first["id"], "what": what}])
        if number >= 0:
            result.runs += 1
            for metric, value in of_run(cell, answers).items():
                values.setdefault(metric, []).append(value)
        number += 1
    result.figures = {
        metric: figures.figure(metric, several) for metric, several in values.items() if len(several) == result.runs
    }
    return result


def of_run(cell: Cell, answers: Collection[Answered]) -> dict[str, float]:
    """Return metric -> value of one run."""
    seconds = max(one.ended for one in answers) - min(one.began for one in answers)
    latencies = [1000 * (one.ended - one.began) for one in answers]
    read = [one.tokens for one in answers if one.tokens is not None]
    return {
        "documents": len(answers) * cell["documents"] / seconds,
        "latency": statistics.median(latencies),
        "latency_p95": percentile(latencies, TAIL_PERCENT),
        **({"read": sum(read) / seconds} if len(read) == len(answers) else {}),
    }


def _run(server: Server, cell: Cell, prompt: Callable[[int], Messages]) -> list[Answered]:
    """Send the requests of all streams at once, those of one stream one after the other."""
    count, streams = cell["documents"], cell["streams"]

    def text(place: int) -> str:
        return str(prompt(place)[0]["content"])

    # All texts are made before the first request, because that takes as long as their answers.
    texts = [[text(place * count + one) for one in range(count)] for place in range(streams * REQUESTS)]
    bodies = [_body(server, cell, each) for each in texts]

    def send(stream: int) -> list[Answered]:
        return [_ask(server, cell, body) for body in bodies[stream::streams]]

    with ThreadPoolExecutor(streams) as pool:
        return [answer for each in pool.map(send, range(streams)) for answer in each]


def _body(server: Server, cell: Cell, texts: Sequence[str]) -> dict[str, Any]:
    if cell["role"] == EMBED:
        return {"model": server.model, "input": list(texts)}
    return {"model": server.model, "query": texts[0][:QUERY], "documents": list(texts)}


def _ask(server: Server, cell: Cell, body: Mapping[str, Any]) -> Answered:
    data, began = json.dumps(body).encode(), time.perf_counter()
    try:
        status, content = request(server.endpoint, PROOFS[cell["role"]].path, data, TIMEOUT_S, MAX_REPLY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        ended = time.perf_counter()
        return Answered(began, ended, fault={"id": "refused", "what": str(error) or type(error).__name__})
    ended = time.perf_counter()
    if status != HTTPStatus.OK:
        return Answered(began, ended, fault={"id": f"status-{status}", "what": reader.quote(content)})
    if content.count(PROOFS[cell["role"]].mark.encode()) < cell["documents"]:
        what = f"fewer than {cell['documents']} documents in the answer"
        return Answered(began, ended, fault={"id": "answer", "what": what})
    return Answered(began, ended, _tokens(content))


def _tokens(content: bytes) -> int | None:
    """Return the tokens of the texts by an answer's usage."""
    try:
        found = json.loads(content)["usage"]["prompt_tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
