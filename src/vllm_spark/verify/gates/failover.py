"""It is this engine that answers: a router with a fallback sends requests to another model, each with 200 (field
report 004).

Three marks, none of which a name can fake: how the tokenizer counts fixed strings, what an unknown model gets, and the
engine's own count of the requests it has finished.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from typing import Any

from vllm_spark.core import text as core_text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses as gates_responses
from vllm_spark.verify.gates.identity import UNKNOWN_MODEL
from vllm_spark.verify.gates.verdict import FAILOVER, Verdict, miss

NAME = FAILOVER

# Scripts, digits, indentation and an emoji: what families of tokenizers split differently.
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "3.14159265358979323846264338327950288419716939937510",
    "人工智能正在改变我们的生活方式。",
    "def f(x):\n        return {k: v for k, v in x.items()}\n",
    "naïve façade 🚀🚀 Übergrößenträger antidisestablishmentarianism",
)
# How each turn asks them. More than once, so that a router which takes turns shows two tokenizers, and one foreign
# request does not spoil the count; by chat, because that is the way of the clients, and a router may send it elsewhere.
TURNS = (gates_requests.COMPLETIONS, gates_requests.CHAT, gates_requests.COMPLETIONS)

COUNTER = "vllm:request_success_total"
SAMPLE = re.compile(rf"^{COUNTER}\{{(?P<labels>[^}}]*)\}}\s+(?P<value>\S+)", re.MULTILINE)

THROUGH = "through-"

FIX = {
    "engine": "find who answers: the port's owner.",
    "router": "find who answers: the router's fallbacks, its other servers of this name, its cache; its log says why.",
}

# A fingerprint: how many tokens each of TEXTS has; None where the server does not say.
Counts = Sequence[int | None]

_miss = partial(miss, NAME, runbook="silent-failover")


def requests(name: str, through: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The questions to the engine, then those through the router. The counter is read from the engine each time.

    `through` is a deployment's, empty without a router: `url`; `key`, the variable of the env file with the router's
    key, never the key; `model`, what the router calls this model where that is not its served name.
    """
    yield from _asked(name, "", {})
    if through:
        key = {"key_env": through["key"]} if "key" in through else {}
        yield from _asked(through.get("model", name), THROUGH, {"base": through["url"], **key})


def _asked(name: str, prefix: str, to: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for turn, path in enumerate(TURNS):
        yield _counter(prefix, turn)
        for index, text in enumerate(TEXTS):
            asked = gates_requests.post(
                f"{prefix}failover-{turn}-{index}", path, _body(path, name, text), gates_requests.QUEUE_S
            )
            yield {**asked, **to}
    unknown = gates_requests.one_token(UNKNOWN_MODEL, "1")
    yield {
        **gates_requests.post(
            f"{prefix}failover-unknown", gates_requests.COMPLETIONS, unknown, gates_requests.SHORT_TIMEOUT_S
        ),
        **to,
    }
    yield _counter(prefix, len(TURNS))


def _body(path: str, name: str, text: str) -> dict[str, Any]:
    """One token after `text`. The chat is the plainest there is: every router knows all its keys."""
    body = gates_requests.one_token(name, text)
    if path == gates_requests.CHAT:
        body["messages"] = gates_requests.user(body.pop("prompt"))
    return body


def _counter(prefix: str, turn: int) -> dict[str, Any]:
    return {**gates_requests.get(f"{prefix}failover-counter-{turn}", "/metrics"), "prefix": COUNTER}


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    everything = probe["responses"]
    direct = {name: reply for name, reply in everything.items() if not name.startswith(THROUGH)}
    through = {name.removeprefix(THROUGH): reply for name, reply in everything.items() if name.startswith(THROUGH)}
    yield from judged(wanted, direct, through if wanted["through"] else None)


def judged(
    wanted: Mapping[str, Any], direct: Mapping[str, Any], through: Mapping[str, Any] | None
) -> Iterator[Verdict]:
    """The verdicts on what the engine replied and, if there is a router, on what came through it. Both hold the same
    ids: failover-TURN-INDEX, failover-unknown, failover-counter-TURN."""
    name = wanted["served_name"]
    whole, chat = (fingerprint(direct, TURNS.index(path)) for path in (gates_requests.COMPLETIONS, gates_requests.CHAT))
    stored = wanted["gates"][NAME].get("tokens")
    engine = list(_one_way(name, {name}, direct, {gates_requests.COMPLETIONS: [stored or whole]}, "engine"))
    yield from engine
    if through is None or any(verdict.ok is False for verdict in engine):
        return
    # LiteLLM puts the name it was asked for into the reply, nginx leaves the engine's; and by the prefix of its model
    # LiteLLM asks a completion as a chat (custom_openai/) or a chat as a completion (text-completion-openai/).
    either = {path: [whole, chat] for path in TURNS}
    yield from _one_way(name, {name, wanted["through"].get("model", name)}, through, either, "router")


def fingerprint(responses: Mapping[str, Any], turn: int) -> list[int | None]:
    """How many tokens the server counted in each of TEXTS; None where it says none."""
    asked = (responses.get(f"failover-{turn}-{index}", {}) for index in range(len(TEXTS)))
    return [gates_responses.read(response).prompt_tokens for response in asked]


def _one_way(
    model: str, names: AbstractSet[str], responses: Mapping[str, Any], counts: Mapping[str, Sequence[Counts]], way: str
) -> Iterator[Verdict]:
    """`names`: those that a reply may bear. `counts`: path -> the fingerprints that may come that way; any, if none."""
    right = " or ".join(str(list(allowed)) for allowed in counts[gates_requests.COMPLETIONS])
    faults = (
        ("model", _another_name(names, responses), " or ".join(sorted(names))),
        ("tokenizer", _another_tokenizer(responses, counts), right),
        ("unknown-model", _unknown_is_known(responses, way), "404" if way == "engine" else "4xx"),
    )
    for name, wrong, expected in faults:
        if wrong:
            yield _miss(f"{way}-{name}", wrong, expected, FIX[way])
            return
    yield Verdict(NAME, f"{way}-tokenizer", True, f"counts {fingerprint(responses, 0)}")
    yield _counted(model, responses, way)


def _another_name(names: AbstractSet[str], responses: Mapping[str, Any]) -> str:
    for turn, path in enumerate(TURNS):
        for index in range(len(TEXTS)):
            message = gates_responses.read(responses.get(f"failover-{turn}-{index}", {}))
            if message.fault:
                return f"{path}: {message.fault}"
            if message.model not in names:
                return f"the reply names model {core_text.shown(message.model)}"
    return ""


def _another_tokenizer(responses: Mapping[str, Any], counts: Mapping[str, Sequence[Counts]]) -> str:
    for turn, path in enumerate(TURNS):
        seen = fingerprint(responses, turn)
        if any(number is None or number < 1 for number in seen):
            return f"the prompts are said to have {core_text.shown(seen)} tokens"
        if path in counts and seen not in [list(allowed) for allowed in counts[path]]:
            return f"the tokenizer counts {seen}"
    return ""


def _unknown_is_known(responses: Mapping[str, Any], way: str) -> str:
    """A router says 400 (LiteLLM) or 404; that it refuses is what counts."""
    response = responses.get("failover-unknown", {})
    status = response.get("status", 0)
    client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    good = status == HTTPStatus.NOT_FOUND if way == "engine" else client_error
    return "" if good else f"{UNKNOWN_MODEL} got {gates_responses.status(response)}"


def _counted(model: str, responses: Mapping[str, Any], way: str) -> Verdict:
    """Each turn moves the counter by exactly what was asked. More is somebody else's request, also the liveness
    timer's; less is a request that went elsewhere."""
    reads = [counter(model, responses.get(f"failover-counter-{turn}", {})) for turn in range(len(TURNS) + 1)]
    known = [value for value in reads if value is not None]
    name = f"{way}-counter"
    if len(known) < len(reads):
        wrong = f"/metrics has no {COUNTER} of {model}"
        return _miss(name, wrong, "one", "do not set disable-log-stats, and let /metrics through.")
    moves = [after - before for before, after in pairwise(known)]
    asked, total = len(TEXTS), len(TEXTS) * len(TURNS)
    if sum(moves) < total:
        return _miss(name, f"the engine counts {sum(moves):g} of {total} requests", "all of them", FIX[way])
    if min(moves) <= 0:
        return _miss(name, f"the engine counts {min(moves):g} of {asked} requests in a turn", "all of them", FIX[way])
    said = f"moved by {', '.join(f'{move:g}' for move in moves)} for {asked} requests each"
    if asked in moves and min(moves) >= asked:
        return Verdict(NAME, name, True, said)
    return Verdict(NAME, name, None, f"{said}: others ask, too")


def counter(model: str, response: Mapping[str, Any]) -> float | None:
    """Finished requests of the model, over its engines and reasons; None where the metrics do not say."""
    text = response.get("text")
    if response.get("status") != HTTPStatus.OK or not isinstance(text, str):
        return None
    values = [match["value"] for match in SAMPLE.finditer(text) if f'model_name="{model}"' in match["labels"]]
    try:
        total = math.fsum(float(value) for value in values)
    except (ValueError, OverflowError):
        return None
    return total if values and math.isfinite(total) else None
