"""A part of the gate failover: a chat with tools and `tool_choice: auto`, to the engine and through its router.

An engine without a tool parser answers 400. A router with a fallback then sends only the clients with tools to another
model, and every other request still reaches this one (field report 004).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from http import HTTPStatus

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse
from vllm_spark.verify.verdict import Verdict, failure

ID = "failover-tools"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

Responses = Mapping[str, HttpResponse]
_failure = partial(failure, "failover", runbook="silent-failover")

SET_PARSER = "set args.enable-auto-tool-choice and args.tool-call-parser of the recipe"


def request(model: str, prefix: str) -> HttpRequest:
    """Return the request: one token, only keys that every router knows."""
    turns = requests.user("What is the weather in Paris? Use the tool.")
    body = {
        "model": model,
        "messages": turns,
        "max_tokens": 1,
        "temperature": 0,
        "tools": [TOOL],
        "tool_choice": "auto",
    }
    return requests.post(f"{prefix}{ID}", requests.CHAT, body, requests.QUEUE_S)


def refused(response: HttpResponse) -> bool:
    """Return True if a server refuses the request itself (4xx)."""
    return HTTPStatus.BAD_REQUEST <= response.get("status", 0) < HTTPStatus.INTERNAL_SERVER_ERROR


def judge_engine(model: str, response: HttpResponse) -> Verdict:
    """Return the verdict on the engine. A refusal has no result: a recipe may do without tools."""
    if refused(response):
        observed = f"the engine refuses tool_choice auto ({responses.status(response)}); to serve tools, {SET_PARSER}"
        return Verdict("failover", "engine-tools", None, observed)
    message = responses.read(response)
    fault = message.fault or ("" if message.model == model else f"the reply names model {quoted(message.model)}")
    if fault:
        return _failure("engine-tools", f"tool_choice auto: {fault}", model, "read the engine's log.")
    return Verdict("failover", "engine-tools", True, "answers tool_choice auto")


def judge_router(names: AbstractSet[str], engine: HttpResponse, response: HttpResponse, moved: float | None) -> Verdict:
    """Return the verdict on the router: it must answer as the engine does. `moved`: how many requests the engine has
    counted meanwhile, None if unknown."""
    fix = f"remove the router's fallback for this model; {SET_PARSER}."
    if refused(engine):
        if refused(response):
            return Verdict("failover", "router-tools", True, f"refuses like the engine: {responses.status(response)}")
        answered = responses.read(response)
        observed = answered.fault or f"the router answers tool_choice auto from model {quoted(answered.model)}"
        return _failure("router-tools", observed, f"the engine's refusal, status {engine.get('status')}", fix)
    message = responses.read(response)
    if message.fault and response.get("status") != HTTPStatus.OK:
        # Clients see this error: no other model answers.
        return Verdict(
            "failover", "router-tools", None, f"the router does not pass tool_choice auto on: {message.fault}"
        )
    if message.fault or message.model not in names:
        observed = message.fault or f"the reply names model {quoted(message.model)}"
        return _failure("router-tools", f"tool_choice auto: {observed}", " or ".join(sorted(names)), fix)
    if not moved or moved < 1:
        counted = "nothing" if moved is None else f"{moved:g} requests"
        return _failure("router-tools", f"tool_choice auto: the engine counts {counted}", "1 request or more", fix)
    return Verdict("failover", "router-tools", True, "answers tool_choice auto from this engine")
