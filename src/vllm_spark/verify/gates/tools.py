"""Tool calls: the eight cases of field report 003, each whole and streamed.

A missing parser answers 400, and a router then asks another model (field report 004); a wrong one lets the template's
tags into the text or breaks the arguments (vLLM #38946, #38909, #39043, #42696).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm_spark.core import text as core_text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import TOOLS, Verdict, miss

NAME = TOOLS
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
    """`calls` are what must be called (name, argument, value); `says` what a text must hold where none must be."""

    ask: str
    tools: tuple[dict[str, Any], ...]
    calls: tuple[tuple[str, str, str], ...] = ()
    says: tuple[str, ...] = ()
    # What the tools returned already: (name, value of its argument, result).
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
        says=("31",),
        results=(("get_weather", "Paris", '{"temperature_c": 31, "sky": "clear"}'),),
    ),
    "html": Case(
        f"Write a page with exactly this HTML, changing nothing: {HTML}", (PAGE,), (("write_page", "html", HTML),)
    ),
    "choice": Case("What time is it in Tokyo? Use a tool.", (WEATHER, TIME, PAGE), (("get_time", "city", "Tokyo"),)),
    "loop": Case(
        "How warm is it in Paris and what time is it in Tokyo? Give both in digits.",
        (WEATHER, TIME),
        says=("31", "18:45"),
        results=(("get_weather", "Paris", '{"temperature_c": 31}'), ("get_time", "Tokyo", '{"time": "18:45"}')),
    ),
}

_miss = partial(miss, NAME, runbook="tools")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for case in options.get("cases", CASES):
        messages = [*gates_requests.user(CASES[case].ask), *_results(CASES[case])]
        asked = gates_requests.chat(
            f"tools-{case}", name, messages, MAX_TOKENS, tools=list(CASES[case].tools), tool_choice="auto"
        )
        yield from gates_requests.both_ways(asked)


def _results(case: Case) -> Iterator[dict[str, Any]]:
    """The turns of a conversation in which the tools were called and have answered."""
    if not case.results:
        return
    calls, answers = [], []
    arguments = {tool["function"]["name"]: tool["function"]["parameters"]["required"][0] for tool in case.tools}
    for index, (tool, value, result) in enumerate(case.results):
        # Some templates (Mistral's) take ids of nine letters and digits alone.
        call_id = f"call0000{index}"
        function = {"name": tool, "arguments": json.dumps({arguments[tool]: value})}
        calls.append({"id": call_id, "type": "function", "function": function})
        answers.append({"role": "tool", "tool_call_id": call_id, "name": tool, "content": result})
    yield {"role": "assistant", "content": "", "tool_calls": calls}
    yield from answers


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    for case in wanted["gates"][NAME].get("cases", CASES):
        for way in gates_requests.names(case):
            message = responses.read(probe["responses"].get(f"{NAME}-{way}", {}))
            wrong = message.fault or next(faults(CASES[case], message), "")
            if not wrong:
                yield Verdict(
                    NAME, way, True, "; ".join(map(_written, message.calls)) or core_text.shown(message.content)
                )
                continue
            yield _miss(
                way, wrong, _expected(CASES[case]),
                "set enable-auto-tool-choice and the tool-call-parser of this model's family, with its own template.",
            )  # fmt: skip


def faults(case: Case, message: responses.Message) -> Iterator[str]:
    """What is wrong with the reply to a case."""
    texts = (message.content, message.reasoning, *(f"{call.name} {call.arguments}" for call in message.calls))
    for text in texts:
        tag = responses.leaked(text, (*responses.TOOL_TAGS, *responses.CHANNEL_TAGS))
        if tag:
            yield f"{tag} stands in {core_text.shown(text)}"
    if case.says:
        yield from _in_text(case, message)
    else:
        yield from _in_calls(case, message)


def _in_text(case: Case, message: responses.Message) -> Iterator[str]:
    if message.calls:
        yield f"it calls {_written(message.calls[0])} again, whose result it has"
    if any(said not in message.content for said in case.says):
        yield f"the answer is {core_text.shown(message.content)}"


def _in_calls(case: Case, message: responses.Message) -> Iterator[str]:
    if not message.calls:
        yield f"no call but {core_text.shown(message.content)}"
    if message.finish != "tool_calls":
        yield f"finish_reason is {core_text.shown(message.finish)} where tools are called"
    ids = [call.id for call in message.calls]
    if not all(ids) or len(set(ids)) < len(ids):
        yield f"the calls' ids are {core_text.shown(ids)}"
    # Two calls may come in either order.
    if sorted(call.name for call in message.calls) != sorted(name for name, _, _ in case.calls):
        yield f"it calls {core_text.shown([call.name for call in message.calls])}"
    by_name = {call.name: call.arguments for call in message.calls}
    for name, argument, value in case.calls:
        if arguments(by_name.get(name, "")) != {argument: value}:
            yield f"the arguments of {name} are {core_text.shown(by_name.get(name, ''))}"


def arguments(text: str) -> object:
    """The arguments of a call; None where the text is no JSON. Raises nothing: a nesting too deep is none, too."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _written(call: responses.ToolCall) -> str:
    return core_text.shown(f"{call.name}({call.arguments})")


def _expected(case: Case) -> str:
    calls = ", ".join(f"{name}({argument}={value})" for name, argument, value in case.calls)
    return f"calls of {calls}" if case.calls else f"an answer with {' and '.join(case.says)}"
