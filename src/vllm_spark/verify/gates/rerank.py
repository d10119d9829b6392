"""Gate: a reranker puts the document that answers a question before those that do not.

A reranker whose head or template is missing starts cleanly and answers 200 with scores that mean nothing
(vllm-project/vllm#55501). Only the order of known documents shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from vllm_spark.node.engine_api import PROOFS, RERANK
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "rerank"

# Question -> its documents. Each document answers one question, so no order of the documents passes for both.
DOCUMENTS = (
    "Bread is made of flour, water, yeast and salt.",
    "Paris is the capital of France.",
    "A ship with a hole in its hull sinks.",
)
QUESTIONS = ("Of what is bread made?", "What is the capital of France?")

_failure = partial(failure, NAME, runbook="embeddings")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one request for each question, with the same documents."""
    for number, question in enumerate(QUESTIONS):
        body = {"model": request.served_name, "query": question, "documents": list(DOCUMENTS)}
        yield requests.post(f"rerank-{number}", PROOFS[RERANK].path, body, requests.QUEUE_S)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict for each question."""
    for number, question in enumerate(QUESTIONS):
        try:
            ranking = responses.ranking(probe["responses"].get(f"rerank-{number}", {}))
        except responses.MalformedError as error:
            yield _failure(str(number), str(error), "scores that are finite", "read the log of the engine.")
            continue
        scores = ", ".join(f"{index}: {score:.4g}" for index, score in ranking)
        if fault := _fault(ranking, right=number):
            yield _failure(
                str(number), f"{question!r}: {fault} ({scores})", f"document {number} first, with the highest score",
                "compare args.hf-overrides and args.chat-template with the model's card, then deploy again.",
            )  # fmt: skip
        else:
            yield Verdict(NAME, str(number), True, f"{question} {scores}")


def _fault(ranking: Sequence[tuple[int, float]], right: int) -> str:
    """Return what is wrong with the order of the documents; empty if it is right."""
    indices, scores = [index for index, _ in ranking], [score for _, score in ranking]
    if sorted(indices) != list(range(len(DOCUMENTS))):
        return f"the documents of the answer are {indices}"
    if scores != sorted(scores, reverse=True):
        return "the answer is not sorted by its scores"
    if indices[0] != right or scores[0] <= scores[1]:
        return f"document {indices[0]} comes first"
    return ""


GATE = Gate(
    name=NAME,
    proves="of three documents the one that answers comes first, for two questions, and every score is finite",
    order=140,
    roles=frozenset({RERANK}),
    condition="every recipe of the role rerank",
    schema={
        "type": "object",
        "additionalProperties": False,
        "description": "The order of documents. Each recipe of the role rerank names it, as {}.",
    },
    requests=build_requests,
    judge=judge,
)
