"""Gate: the engine speaks Anthropic's API, which Claude Code and Anthropic's libraries use: a message and a tool call,
each whole and streamed, and the tokens of a prompt.

vLLM translates that API into its own, and writes another stream. Strict clients refuse a first event without its type
and role (vLLM #45367).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from vllm_spark.core.text import quoted
from vllm_spark.core.types import Document
from vllm_spark.recipe.engine_paths import COUNT_TOKENS, MESSAGES, lacking
from vllm_spark.verify import messages, requests, responses
from vllm_spark.verify.gate import Gate, cases_schema
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import tools
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "anthropic"
CASES = ("message", "tool", "count")
PROMPT = "What is the capital of France? Answer with one word."
CALL = tools.CASES["single"]
TAGS = (*responses.TOOL_TAGS, *responses.CHANNEL_TAGS)

_failure = partial(failure, NAME, runbook="anthropic")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield a message and a tool call, each whole and streamed, and a question for the tokens of the message."""
    for case in cases(request):
        more = {"tools": [_tool(tools.WEATHER)], "tool_choice": {"type": "auto"}} if case == "tool" else {}
        prompt = requests.user(CALL.prompt if case == "tool" else PROMPT)
        whole = requests.chat(f"{NAME}-{case}", request.served_name, prompt, tools.MAX_TOKENS, **more)
        yield {**whole, "path": path_of(case)}
        if case != "count":
            body = {**whole["body"], "stream": True}
            yield {**whole, "id": requests.both_ids(whole["id"])[1], "path": MESSAGES, "body": body}


def path_of(case: str) -> str:
    return COUNT_TOKENS if case == "count" else MESSAGES


def cases(request: GateRequest) -> list[str]:
    """Return the cases that the recipe wants and the engine has."""
    lacks = lacking(request.engine_version)
    wanted = request.gates[NAME].get("cases", CASES)
    return [case for case in wanted if path_of(case) not in lacks]


def _tool(tool: Document) -> dict[str, Any]:
    """Return a tool of OpenAI's API as one of Anthropic's."""
    function = {**tool["function"]}
    return {"input_schema": function.pop("parameters"), **function}


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield a verdict per case and form, and one per path that the engine does not have."""
    for path, first in lacking(request.engine_version).items():
        yield Verdict(
            NAME, path, None, f"vLLM {request.engine_version} does not have it: {first} is the first that has"
        )
    found = {id_: messages.read(response) for id_, response in probe["responses"].items() if id_.startswith(NAME)}
    for case in cases(request):
        if case == "count":
            yield _counted(probe["responses"].get("anthropic-count", {}), found.get("anthropic-message"))
            continue
        for id_ in requests.both_ids(case):
            reply = found.get(f"{NAME}-{id_}", messages.Reply(fault="no response"))
            fault = reply.fault or next(_faults(case, reply), "")
            if fault:
                yield _failure(id_, fault, _expected(case), FIXES[case])
            else:
                yield Verdict(NAME, id_, True, quoted(reply.calls or reply.text))


def _faults(case: str, reply: messages.Reply) -> Iterator[str]:
    if tag := responses.leaked(reply.text, TAGS):
        yield f"{tag} stands in {quoted(reply.text)}"
    if case == "message" and (not reply.text.strip() or reply.stop != "end_turn"):
        yield f"the text is {quoted(reply.text)}, and stop_reason is {quoted(reply.stop)}"
    expected = tuple((name, {argument: value}) for name, argument, value in CALL.calls)
    if case == "tool" and (reply.calls != expected or reply.stop != "tool_use"):
        said = reply.calls or reply.text
        yield f"the calls are {quoted(said)}, and stop_reason is {quoted(reply.stop)}"


def _counted(response: Any, message: messages.Reply | None) -> Verdict:
    """Return the verdict on the tokens of a prompt: those of the same message, if it was asked for."""
    tokens = responses.count(responses.dig(response.get("json"), "input_tokens"))
    used = message.prompt_tokens if message else 0
    if not tokens or (used and tokens != used):
        observed = f"{tokens} tokens" if tokens else responses.status(response)
        return _failure("count", observed, f"the {used or ''} tokens of the prompt", FIXES["count"])
    return Verdict(NAME, "count", True, f"{tokens} tokens")


def _expected(case: str) -> str:
    return "a message of Anthropic's API" + (f" that calls {CALL.calls[0][0]}" if case == "tool" else " with a text")


FIXES = {
    "message": "look in vLLM's issues for the field or event that differs; gates.anthropic.cases can leave it out.",
    "tool": "if the gate tools passes, look in vLLM's issues for the event that differs; otherwise it has the fix.",
    "count": "look in vLLM's issues for count_tokens; clients that do not count need no such case.",
}

GATE = Gate(
    name=NAME,
    proves="clients of Anthropic's API get a message, a tool call and the tokens of a prompt; whole and streamed",
    order=95,
    schema=cases_schema(
        "Anthropic's API: a message and a tool call, each whole and streamed, and count_tokens. {} switches them on.",
        CASES,
        "Default: all.",
    ),
    requests=build_requests,
    judge=judge,
)
