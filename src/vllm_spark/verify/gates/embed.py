"""Gate: a server for embeddings makes vectors that a search can use.

An engine with a wrong pooling layer answers as fast and with as many numbers: its vectors have another length, no norm,
or no order. So the gate compares a question with a text about its subject and with one about another subject.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from vllm_spark.node.engine_api import EMBED, PROOFS
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "embed"

QUESTION = "How do I bake bread at home?"
NEAR = "Bread at home: knead flour, water, yeast and salt, let it rise, and bake it."
FAR = "The parliament has passed a law on the tariffs of ships."

# A batch of another size adds the same numbers in another order.
SAME, UNIT = 0.999, 0.01

_failure = partial(failure, NAME, runbook="embeddings")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one request for three texts, and one for the first of them again."""
    for id_, texts in (("embed", [QUESTION, NEAR, FAR]), ("embed-again", [QUESTION])):
        body = {"model": request.served_name, "input": texts}
        yield requests.post(id_, PROOFS[EMBED].path, body, requests.QUEUE_S)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield a verdict on length, norm, repetition and order of the vectors, or one for all of them."""
    options = request.gates[NAME]
    try:
        vectors, again = (responses.vectors(probe["responses"].get(id_, {})) for id_ in ("embed", "embed-again"))
    except responses.MalformedError as error:
        yield _failure("vectors", str(error), "vectors of finite numbers", "read the log of the engine.")
        return
    wrong = list(_faults(vectors, again, options["dimensions"], options.get("normalized", True)))
    for id_, observed, expected in wrong:
        fix = "compare model, revision, args.runner and args.pooler-config with the model's card, then deploy again."
        yield _failure(id_, observed, expected, fix)
    if not wrong:
        near, far = (cosine(vectors[0], other) for other in vectors[1:])
        yield Verdict(NAME, "all", True, f"{len(vectors[0])} numbers, near {near:.2f}, far {far:.2f}")


def _faults(
    vectors: Sequence[Sequence[float]], again: Sequence[Sequence[float]], length: int, normalized: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield (id, observed, expected) of each fault. Only vectors of one length can be compared."""
    if (counts := (len(vectors), len(again))) != (3, 1):
        yield "count", f"{counts[0]} and {counts[1]} vectors", "3 and 1, one for each text"
        return
    if lengths := sorted({len(vector) for vector in (*vectors, *again)} - {length}):
        yield "dimensions", f"a vector has {lengths[0]} numbers", f"{length}"
        return
    norms = [math.hypot(*vector) for vector in vectors]
    if not min(norms):
        yield "norm", "a vector is 0", "a direction"
        return
    if normalized and max(abs(norm - 1) for norm in norms) > UNIT:
        yield "norm", f"the norms are {', '.join(f'{norm:.3f}' for norm in norms)}", "1"
    if (same := cosine(vectors[0], again[0])) < SAME:
        yield "same", f"one text twice has the similarity {same:.4f}", f"{SAME} or more"
    if (near := cosine(vectors[0], vectors[1])) <= (far := cosine(vectors[0], vectors[2])):
        yield "order", f"a near text has the similarity {near:.3f}, a far one {far:.3f}", "the near text nearer"


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the similarity of two vectors that are not 0, from -1 to 1."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other))


GATE = Gate(
    name=NAME,
    proves="vectors have the model's length and norm, a text has one vector, and a near text is nearer than a far one",
    order=130,
    roles=frozenset({EMBED}),
    condition="every recipe of the role embed",
    schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["dimensions"],
        "description": "The vectors of a server for embeddings. Each recipe of the role embed names it.",
        "properties": {
            "dimensions": {
                "type": "integer",
                "minimum": 1,
                "maximum": 65536,
                "description": "How many numbers a vector has.",
            },
            "normalized": {"type": "boolean", "default": True, "description": "Whether each vector has the norm 1."},
        },
    },
    requests=build_requests,
    judge=judge,
)
