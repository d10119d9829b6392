"""The lies that the mock server is told, as data: by name the gate that must catch each, and what is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lying_server import Lie, Reply, Said, refusal

Of = Callable[[str, Mapping[str, Any]], bool]


def prose(path: str, body: Mapping[str, Any]) -> bool:
    return path.endswith("chat/completions") and bool(body.get("return_token_ids"))


def calling(path: str, body: Mapping[str, Any]) -> bool:
    return "tools" in body and body["messages"][-1]["role"] == "user"


def told(path: str, body: Mapping[str, Any]) -> bool:
    return "tools" in body and body["messages"][-1]["role"] == "tool"


def any_tools(path: str, body: Mapping[str, Any]) -> bool:
    return "tools" in body


def html(path: str, body: Mapping[str, Any]) -> bool:
    return calling(path, body) and "HTML" in body["messages"][0]["content"]


def parallel(path: str, body: Mapping[str, Any]) -> bool:
    return calling(path, body) and "both tools" in body["messages"][0]["content"]


def schema(path: str, body: Mapping[str, Any]) -> bool:
    return "response_format" in body


def choice(path: str, body: Mapping[str, Any]) -> bool:
    return "structured_outputs" in body


def thinking(path: str, body: Mapping[str, Any]) -> bool:
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking"))


def picture(path: str, body: Mapping[str, Any]) -> bool:
    return "image_url" in json.dumps(body)


def question(part: str) -> Of:
    return lambda path, body: part in json.dumps(body.get("messages", ""))


def one_token(path: str, body: Mapping[str, Any]) -> bool:
    return path == "/v1/completions"


def at(path: str) -> Of:
    return lambda asked, body: asked == path


def says(**fields: Any) -> Callable[[Said], None]:
    """Set these fields of what is said."""

    def change(said: Said) -> None:
        for name, value in fields.items():
            setattr(said, name, value)

    return change


def garbled(text: str, ids: list[Any] | None) -> Callable[[Said], None]:
    return says(content=text, token_ids=ids)


def in_calls(change: Callable[[dict[str, str]], None]) -> Callable[[Said], None]:
    def change_all(said: Said) -> None:
        for call in said.calls:
            change(call)

    return change_all


def put(name: str, value: Callable[[str], str]) -> Callable[[Said], None]:
    return in_calls(lambda call: call.__setitem__(name, value(call[name])))


def first_logprob(value: Any) -> Callable[[Said], None]:
    def change(said: Said) -> None:
        assert said.logprobs
        said.logprobs[0] = value

    return change


def half_zero(said: Said) -> None:
    assert said.token_ids
    said.token_ids = [0 if index % 4 == 0 else number for index, number in enumerate(said.token_ids)]


def call_again(said: Said) -> None:
    said.calls = [{"id": "again", "name": "get_weather", "arguments": '{"city": "Paris"}'}]


def refuses(status: int, message: str) -> Callable[[Reply], Reply]:
    return lambda reply: refusal(status, message)


def body(document: Any) -> Callable[[Reply], Reply]:
    return lambda reply: Reply(200, [json.dumps(document).encode()])


def counts(value: bytes) -> Callable[[Reply], Reply]:
    """Every counter in the metrics has this value."""
    return lambda reply: Reply(200, [re.sub(rb"\S+$", value, reply.pieces[0], flags=re.MULTILINE)])


AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'

# Told whole and streamed, one at a time.
BOTH_WAYS = {
    "exclamation marks": Lie("garbage", prose, garbled("!" * 160, [0] * 160)),
    "pads that nobody sees": Lie("garbage", prose, garbled("", [0] * 160)),
    "sound text over one id": Lie("garbage", prose, says(token_ids=[7] * 80)),
    "every fourth id is 0": Lie("garbage", prose, half_zero),
    "two ids over and over": Lie("garbage", prose, garbled("'s't" * 40, [21, 22] * 80)),
    "a loop without ids": Lie("garbage", prose, garbled("the the of " * 40, None)),
    "one character in a row": Lie("garbage", prose, says(content="The dough risesssssssssssssss and then stops.")),
    "mostly one character": Lie("garbage", prose, says(content="aXaYaZaaWaaVaaUaaTaaSaaRaa")),
    "no text at all": Lie("garbage", prose, says(content=None)),
    "blanks": Lie("garbage", prose, says(content=" \n \n ")),
    "no character to print": Lie("garbage", prose, says(content="the \x00\x01\x02\x03 dough \x7f\x1b rises" * 2)),
    "replacement characters": Lie("garbage", prose, says(content="dough \ufffd\ufffd\ufffd\ufffd rises now")),
    "logprob NaN": Lie("garbage", prose, first_logprob(float("nan"))),
    "logprob infinite": Lie("garbage", prose, first_logprob(float("-inf"))),
    "logprob -9999": Lie("garbage", prose, first_logprob(-9999.0)),
    "logprob null": Lie("garbage", prose, first_logprob(None)),
    "neither ids nor logprobs": Lie("garbage", prose, says(token_ids=None, logprobs=None)),
    "no parser": Lie("tools", any_tools, reply=refuses(400, AUTO)),
    "tags in the text": Lie("tools", calling, says(content="<|tool_call>call:get_weather{city:Paris}", calls=[])),
    "tags beside a call": Lie("tools", calling, says(content='<|"|>')),
    "tags in the arguments": Lie(
        "tools", calling, put("arguments", lambda text: text.replace('Paris"', 'Paris<|\\"|>"'))
    ),
    "tags after the results": Lie("tools", told, says(content="It is 31 at 18:45.<tool_call|>")),
    "doubled brackets": Lie("tools", html, put("arguments", lambda text: text.replace("<b>", "<<b>"))),
    "escaped html": Lie("tools", html, put("arguments", lambda text: text.replace("<", "&lt;"))),
    "a blank more": Lie("tools", html, put("arguments", lambda text: text.replace("<b>", " <b>"))),
    "cut arguments": Lie("tools", calling, put("arguments", lambda text: text[:-1])),
    "another key": Lie("tools", calling, put("arguments", lambda text: text.replace('{"', '{"x": 1, "'))),
    "no id": Lie("tools", calling, put("id", lambda text: "")),
    "one id for two": Lie("tools", parallel, put("id", lambda text: "same")),
    "one call of two": Lie("tools", parallel, lambda said: said.calls.pop()),
    "another tool": Lie("tools", calling, put("name", lambda text: "get_news")),
    "a name twice": Lie("tools", calling, put("name", lambda text: text * 2)),
    "finish_reason stop": Lie("tools", calling, says(finish="stop")),
    "no call": Lie("tools", calling, says(content="I cannot do that.", calls=[], finish="stop")),
    "the same call again": Lie("tools", told, call_again),
    "the result is ignored": Lie("tools", told, says(content="It is sunny.")),
    "reasoning null": Lie("reasoning", thinking, says(reasoning=None)),
    "reasoning empty": Lie("reasoning", thinking, says(reasoning="")),
    "content null": Lie("reasoning", thinking, says(content=None)),
    "all in reasoning": Lie("reasoning", thinking, says(content="", finish="length")),
    "channel in content": Lie("reasoning", thinking, says(content="<|channel>thought\nCount.<channel|>8 euros.")),
    "channel in reasoning": Lie("reasoning", thinking, says(reasoning="Count.<channel|>")),
    "think in content": Lie("reasoning", thinking, says(content="Count.</think>8 euros.")),
    "no grammar": Lie("structured", schema, says(content="A lighthouse warns ships of rocks.")),
    "fenced": Lie("structured", schema, says(content='```json\n{"kind": "tower", "floors": 3, "open": true}\n```')),
    "a key more": Lie("structured", schema, says(content='{"kind": "tower", "floors": 3, "open": true, "n": 1}')),
    "a key less": Lie("structured", schema, says(content='{"kind": "tower", "floors": 3}')),
    "no such kind": Lie("structured", schema, says(content='{"kind": "ship", "floors": 3, "open": true}')),
    "another type": Lie("structured", schema, says(content='{"kind": "tower", "floors": 3.0, "open": 1}')),
    "cut JSON": Lie("structured", schema, says(content='{"kind": "tower", "floors": 3, "op', finish="length")),
    "no choice": Lie("structured", choice, says(content="Paris")),
    "a choice in a sentence": Lie("structured", choice, says(content="violet-7 is it")),
}

# Asked one way only.
WHOLE = {
    "no token": Lie("ready", one_token, reply=refuses(500, "EngineCore encountered an issue")),
    "another card": Lie("identity", at("/v1/models"), reply=body({"data": [{"id": "qwen", "root": "/q"}]})),
    "another version": Lie("identity", at("/version"), reply=body({"version": "0.1.0"})),
    "another name in the reply": Lie("failover", one_token, says(model="qwen")),
    "no metrics": Lie("failover", at("/metrics"), reply=lambda reply: Reply(200, [b"up 1\n"])),
    "no token counts": Lie("failover", one_token, says(prompt_tokens=None)),
    "a counter that stands": Lie("failover", at("/metrics"), reply=counts(b"5.0")),
    "a counter of NaN": Lie("failover", at("/metrics"), reply=counts(b"NaN")),
    "another capital": Lie("answer", question("one word"), says(content="Lyon")),
    "an empty answer": Lie("answer", question("19 * 23"), says(content="")),
    "always red, blue": Lie("vision", picture, says(content="red, blue")),
    "one colour": Lie("vision", picture, says(content="blue")),
    "the picture is dropped": Lie("vision", picture, says(prompt_tokens=40)),
    "no pictures": Lie("vision", picture, reply=refuses(400, "At most 0 image(s) may be provided in one prompt.")),
    "a small mind": Lie("probe", question("step by step"), says(content="Answer: 12")),
    "no answer line": Lie("probe", question("step by step"), says(content="I think it is 9.")),
}
