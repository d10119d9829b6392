"""Gate: this engine answers, and not another model. A router with a fallback sends requests to another model and
returns 200 for each (field report 004).

A name can be faked, so the gate uses three other marks: how the tokenizer counts fixed texts, the response to an
unknown model, and the engine's own count of finished requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from typing import Any, TypedDict

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses, tool_choice
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse, Probe
from vllm_spark.verify.requests import CHAT, COMPLETIONS, UNKNOWN_MODEL
from vllm_spark.verify.verdict import Verdict, any_failed, failure

NAME = "failover"

# Scripts, digits, indentation and an emoji: families of tokenizers split these differently.
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "3.14159265358979323846264338327950288419716939937510",
    "人工智能正在改变我们的生活方式。",
    "def f(x):\n        return {k: v for k, v in x.items()}\n",
    "naïve façade 🚀🚀 Übergrößenträger antidisestablishmentarianism",
)
# The path of each turn through TEXTS. Several turns make a router that alternates show two tokenizers, and one foreign
# request does not spoil the count. One turn is a chat: clients use it, and a router may send it elsewhere.
TURNS = (COMPLETIONS, CHAT, COMPLETIONS)

COUNTER = "vllm:request_success_total"
SAMPLE = re.compile(rf"^{COUNTER}\{{(?P<labels>[^}}]*)\}}\s+(?P<value>\S+)", re.MULTILINE)

# Prefix of the ids of requests that go through the router.
THROUGH = "through-"

FIX = {
    "engine": "find who answers: the port's owner.",
    "router": "find who answers: the router's fallbacks, its other servers of this name, its cache; its log says why.",
}

# A fingerprint of a tokenizer: the number of tokens of each of TEXTS; None if the server does not report it.
Counts = Sequence[int | None]
Responses = Mapping[str, HttpResponse]

_failure = partial(failure, NAME, runbook="silent-failover")


class Target(TypedDict, total=False):
    """The fields of a request that send it to the router instead of the engine."""

    base: str
    key_env: str


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield the requests to the engine, then those through the router. The counter is always read from the engine."""
    yield from _requests_to(request.served_name, "", {})
    router = request.through
    if router:
        target: Target = {"base": router["url"]}
        if "key" in router:
            target["key_env"] = router["key"]
        yield from _requests_to(router.get("model", request.served_name), THROUGH, target)


def _requests_to(model: str, prefix: str, target: Target) -> Iterator[HttpRequest]:
    for turn, path in enumerate(TURNS):
        yield _counter_request(prefix, turn)
        for index, text in enumerate(TEXTS):
            id_ = f"{prefix}failover-{turn}-{index}"
            yield {**requests.post(id_, path, _body(path, model, text), requests.QUEUE_S), **target}
    unknown = requests.one_token(UNKNOWN_MODEL, "1")
    yield {**requests.post(f"{prefix}failover-unknown", COMPLETIONS, unknown, requests.SHORT_TIMEOUT_S), **target}
    yield _counter_request(prefix, len(TURNS))
    yield {**tool_choice.request(model, prefix), **target}
    if prefix:
        yield _counter_request(prefix, len(TURNS) + 1)


def _body(path: str, model: str, text: str) -> dict[str, Any]:
    """Return a request of one token after `text`. The chat uses only keys that every router knows."""
    body = requests.one_token(model, text)
    if path == CHAT:
        body["messages"] = requests.user(body.pop("prompt"))
    return body


def _counter_request(prefix: str, turn: int) -> HttpRequest:
    return {**requests.get(f"{prefix}failover-counter-{turn}", "/metrics"), "prefix": COUNTER}


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield the verdicts on the engine and, if it holds and there is a router, on the router."""
    everything = probe["responses"]
    direct = {id_: response for id_, response in everything.items() if not id_.startswith(THROUGH)}
    routed = {id_.removeprefix(THROUGH): one for id_, one in everything.items() if id_.startswith(THROUGH)}
    model = request.served_name
    whole, chat = (fingerprint(direct, TURNS.index(path)) for path in (COMPLETIONS, CHAT))
    stored = request.gates[NAME].get("tokens")
    engine = list(_judge_server(model, {model}, direct, {COMPLETIONS: [stored or whole]}, "engine"))
    yield from engine
    tools = direct.get(tool_choice.ID, HttpResponse())
    if not any_failed(engine):
        engine.append(tool_choice.judge_engine(model, tools))
        yield engine[-1]
    if not request.through or any_failed(engine):
        return
    # LiteLLM puts the requested name into the response, nginx leaves the engine's. Depending on the prefix of its model
    # LiteLLM sends a completion as a chat (custom_openai/) or a chat as a completion (text-completion-openai/).
    either = {path: [whole, chat] for path in TURNS}
    names = {model, request.through.get("model", model)}
    router = list(_judge_server(model, names, routed, either, "router"))
    yield from router
    if not any_failed(router):
        before, after = (counter(model, routed.get(f"failover-counter-{len(TURNS) + turn}", {})) for turn in (0, 1))
        moved = None if before is None or after is None else after - before
        yield tool_choice.judge_router(names, tools, routed.get(tool_choice.ID, HttpResponse()), moved)


def fingerprint(by_id: Responses, turn: int) -> list[int | None]:
    """Return how many tokens the server counted in each of TEXTS; None where it reports none."""
    ids = (f"failover-{turn}-{index}" for index in range(len(TEXTS)))
    return [responses.read(by_id.get(id_, {})).prompt_tokens for id_ in ids]


def _judge_server(
    model: str, names: AbstractSet[str], by_id: Responses, counts: Mapping[str, Sequence[Counts]], server: str
) -> Iterator[Verdict]:
    """`server` is engine or router. `names`: the model names that a response may have. `counts`: path -> the allowed
    fingerprints; any fingerprint is allowed for a path that is absent."""
    fingerprints = " or ".join(str(list(allowed)) for allowed in counts[COMPLETIONS])
    faults = (
        ("model", _name_fault(names, by_id), " or ".join(sorted(names))),
        ("tokenizer", _tokenizer_fault(by_id, counts), fingerprints),
        ("unknown-model", _unknown_model_fault(by_id, server), "404" if server == "engine" else "4xx"),
    )
    for name, fault, expected in faults:
        if fault:
            yield _failure(f"{server}-{name}", fault, expected, FIX[server])
            return
    yield Verdict(NAME, f"{server}-tokenizer", True, f"counts {fingerprint(by_id, 0)}")
    yield _judge_counter(model, by_id, server)


def _name_fault(names: AbstractSet[str], by_id: Responses) -> str:
    for turn, path in enumerate(TURNS):
        for index in range(len(TEXTS)):
            message = responses.read(by_id.get(f"failover-{turn}-{index}", {}))
            if message.fault:
                return f"{path}: {message.fault}"
            if message.model not in names:
                return f"the reply names model {quoted(message.model)}"
    return ""


def _tokenizer_fault(by_id: Responses, counts: Mapping[str, Sequence[Counts]]) -> str:
    for turn, path in enumerate(TURNS):
        observed = fingerprint(by_id, turn)
        if any(number is None or number < 1 for number in observed):
            return f"the prompts have {quoted(observed)} tokens"
        if path in counts and observed not in [list(allowed) for allowed in counts[path]]:
            return f"the tokenizer counts {observed}"
    return ""


def _unknown_model_fault(by_id: Responses, server: str) -> str:
    """An engine must answer 404. A router answers 400 (LiteLLM) or 404; any refusal is right."""
    response = by_id.get("failover-unknown", {})
    status = response.get("status", 0)
    client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    right = status == HTTPStatus.NOT_FOUND if server == "engine" else client_error
    return "" if right else f"{UNKNOWN_MODEL} got {responses.status(response)}"


def _judge_counter(model: str, by_id: Responses, server: str) -> Verdict:
    """Judge that each turn moves the counter by exactly its requests. A larger step includes requests of other
    clients, also of the liveness timer. A smaller step means that a request went elsewhere."""
    reads = [counter(model, by_id.get(f"failover-counter-{turn}", {})) for turn in range(len(TURNS) + 1)]
    known = [value for value in reads if value is not None]
    id_ = f"{server}-counter"
    if len(known) < len(reads):
        observed = f"/metrics has no {COUNTER} of {model}"
        return _failure(id_, observed, "this counter", "do not set disable-log-stats, and let /metrics through.")
    moves = [after - before for before, after in pairwise(known)]
    per_turn, total = len(TEXTS), len(TEXTS) * len(TURNS)
    if sum(moves) < total:
        return _failure(id_, f"the engine counts {sum(moves):g} of {total} requests", "all of them", FIX[server])
    if min(moves) <= 0:
        observed = f"the engine counts {min(moves):g} of {per_turn} requests in a turn"
        return _failure(id_, observed, "all of them", FIX[server])
    observed = f"moved by {', '.join(f'{move:g}' for move in moves)} for {per_turn} requests each"
    if per_turn in moves and min(moves) >= per_turn:
        return Verdict(NAME, id_, True, observed)
    return Verdict(NAME, id_, None, f"{observed}: other clients send requests, too")


def counter(model: str, response: HttpResponse) -> float | None:
    """Return the finished requests of the model, over its engines and reasons; None if the metrics do not have them."""
    text = response.get("text")
    if response.get("status") != HTTPStatus.OK or not isinstance(text, str):
        return None
    values = [match["value"] for match in SAMPLE.finditer(text) if f'model_name="{model}"' in match["labels"]]
    try:
        total = math.fsum(float(value) for value in values)
    except (ValueError, OverflowError):
        return None
    return total if values and math.isfinite(total) else None


GATE = Gate(
    name=NAME,
    proves="this engine answers, also through a router: tokenizer, unknown model, its own count, tool choice",
    order=50,
    needs_reason_to_omit=True,
    for_router=True,
    cheap=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "description": "No other model answers: tokenizer, unknown model, and the engine's own count of requests. "
        "{} switches it on.",
        "properties": {
            "tokens": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1},
                "minItems": len(TEXTS),
                "maxItems": len(TEXTS),
                "description": "How this model's tokenizer counts the five fixed texts, as a first verify reports. "
                "Absent: the router must only count like the engine.",
            }
        },
    },
    requests=build_requests,
    judge=judge,
)
