"""Gate: tools are called correctly, in the cases of field report 003, each whole and streamed.

Without a parser the engine answers 400, and a router then asks another model (field report 004). A wrong parser lets
the template's tags into the text or breaks the arguments (vLLM #38946, #38909, #39043, #42696).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate, cases_schema
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "tools"
MAX_TOKENS = 256

HTML = '<div class="a"><b>Hello</b></div>'


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = _tool("get_weather", "Current weather of a city.", "city")
TIME = _tool("get_time", "Current local time of a city.", "city")
PAGE = _tool("write_page", "Writes a page. The HTML is stored exactly as given.", "html")


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation. `calls` are the expected calls (name, argument, value). If it is empty, no call is expected and
    `in_text` are the expected parts of the text. `results` are what the tools returned already: (name, value of its
    argument, result)."""

    prompt: str
    tools: tuple[dict[str, Any], ...]
    calls: tuple[tuple[str, str, str], ...] = ()
    in_text: tuple[str, ...] = ()
    results: tuple[tuple[str, str, str], ...] = ()


CASES = {
    "single": Case("What is the weather in Paris? Use the tool.", (WEATHER,), (("get_weather", "city", "Paris"),)),
    "parallel": Case(
        "What is the weather in Paris and what time is it in Tokyo? Call both tools at once.",
        (WEATHER, TIME),
        (("get_weather", "city", "Paris"), ("get_time", "city", "Tokyo")),
    ),
    "synthesis": Case(
        "What is the weather in Paris? Give the temperature in digits.",
        (WEATHER,),
        in_text=("31",),
        results=(("get_weather", "Paris", '{"temperature_c": 31, "sky": "clear"}'),),
    ),
    "html": Case(
        f"Write a page with exactly this HTML, changing nothing: {HTML}", (PAGE,), (("write_page", "html", HTML),)
    ),
    "choice": Case("What time is it in Tokyo? Use a tool.", (WEATHER, TIME, PAGE), (("get_time", "city", "Tokyo"),)),
    "loop": Case(
        "How warm is it in Paris and what time is it in Tokyo? Give both in digits.",
        (WEATHER, TIME),
        in_text=("31", "18:45"),
        results=(("get_weather", "Paris", '{"temperature_c": 31}'), ("get_time", "Tokyo", '{"time": "18:45"}')),
    ),
}

_failure = partial(failure, NAME, runbook="tools")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one request per case, whole and streamed."""
    for name in request.gates[NAME].get("cases", CASES):
        case = CASES[name]
        messages = [*requests.user(case.prompt), *_earlier_turns(case)]
        extra = {"tools": list(case.tools), "tool_choice": "auto"}
        yield from requests.both_forms(
            requests.chat(f"tools-{name}", request.served_name, messages, MAX_TOKENS, **extra)
        )


def _earlier_turns(case: Case) -> Iterator[dict[str, Any]]:
    """Yield the turns in which the tools were called and have answered."""
    if not case.results:
        return
    calls, answers = [], []
    arguments = {tool["function"]["name"]: tool["function"]["parameters"]["required"][0] for tool in case.tools}
    for index, (tool, value, result) in enumerate(case.results):
        # Some templates (Mistral's) accept only ids of nine letters and digits.
        call_id = f"call0000{index}"
        function = {"name": tool, "arguments": json.dumps({arguments[tool]: value})}
        calls.append({"id": call_id, "type": "function", "function": function})
        answers.append({"role": "tool", "tool_call_id": call_id, "name": tool, "content": result})
    yield {"role": "assistant", "content": "", "tool_calls": calls}
    yield from answers


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict per case and form."""
    for name in request.gates[NAME].get("cases", CASES):
        for id_ in requests.both_ids(name):
            message = responses.read(probe["responses"].get(f"{NAME}-{id_}", {}))
            fault = message.fault or next(faults(CASES[name], message), "")
            if not fault:
                observed = "; ".join(map(_format_call, message.calls)) or quoted(message.content)
                yield Verdict(NAME, id_, True, observed)
                continue
            yield _failure(
                id_, fault, _expected(CASES[name]),
                "set enable-auto-tool-choice and the tool-call-parser of this model's family, with its own template.",
            )  # fmt: skip


def faults(case: Case, message: responses.Message) -> Iterator[str]:
    """Yield the faults of the reply to a case."""
    texts = (message.content, message.reasoning, *(f"{call.name} {call.arguments}" for call in message.calls))
    for text in texts:
        tag = responses.leaked(text, (*responses.TOOL_TAGS, *responses.CHANNEL_TAGS))
        if tag:
            yield f"{tag} stands in {quoted(text)}"
    if case.in_text:
        yield from _text_faults(case, message)
    else:
        yield from _call_faults(case, message)


def _text_faults(case: Case, message: responses.Message) -> Iterator[str]:
    if message.calls:
        yield f"it calls {_format_call(message.calls[0])} again, whose result it has"
    if any(part not in message.content for part in case.in_text):
        yield f"the answer is {quoted(message.content)}"


def _call_faults(case: Case, message: responses.Message) -> Iterator[str]:
    if not message.calls:
        yield f"no call but {quoted(message.content)}"
    if message.finish != "tool_calls":
        yield f"finish_reason is {quoted(message.finish)} where tools are called"
    ids = [call.id for call in message.calls]
    if not all(ids) or len(set(ids)) < len(ids):
        yield f"the calls' ids are {quoted(ids)}"
    # Two calls may come in either order.
    if sorted(call.name for call in message.calls) != sorted(name for name, _, _ in case.calls):
        yield f"it calls {quoted([call.name for call in message.calls])}"
    by_name = {call.name: call.arguments for call in message.calls}
    for name, argument, value in case.calls:
        if responses.arguments(by_name.get(name, "")) != {argument: value}:
            yield f"the arguments of {name} are {quoted(by_name.get(name, ''))}"


def _format_call(call: responses.ToolCall) -> str:
    return quoted(f"{call.name}({call.arguments})")


def _expected(case: Case) -> str:
    calls = ", ".join(f"{name}({argument}={value})" for name, argument, value in case.calls)
    return f"calls of {calls}" if case.calls else f"an answer with {' and '.join(case.in_text)}"


GATE = Gate(
    name=NAME,
    proves="tools are called with the right arguments, byte for byte, and no tag leaks; whole and streamed",
    order=90,
    needs_reason_to_omit=True,
    schema=cases_schema(
        "Tool calls of field report 003, each whole and streamed, with tool_choice auto. {} switches them on.",
        CASES,
        "Default: all.",
    ),
    requests=build_requests,
    judge=judge,
)
