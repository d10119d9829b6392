"""The faults of the mock server as data: name -> the gate that must catch it, and the change to the reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from fakes.faulty_server import ANONYMOUS, Completion, Fault, Reply, refusal
from vllm_spark.recipe.engine_paths import COUNT_TOKENS, MESSAGES

Applies = Callable[[str, Mapping[str, Any]], bool]


def prose(path: str, body: Mapping[str, Any]) -> bool:
    return path.endswith("chat/completions") and bool(body.get("return_token_ids"))


def calling(path: str, body: Mapping[str, Any]) -> bool:
    return "tools" in body and body["messages"][-1]["role"] == "user"


def after_results(path: str, body: Mapping[str, Any]) -> bool:
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


def question(part: str) -> Applies:
    return lambda path, body: part in json.dumps(body.get("messages", ""))


def message(path: str, body: Mapping[str, Any]) -> bool:
    return path == MESSAGES and "tools" not in body


def message_call(path: str, body: Mapping[str, Any]) -> bool:
    return path == MESSAGES and "tools" in body


def streamed_message(path: str, body: Mapping[str, Any]) -> bool:
    return message(path, body) and bool(body.get("stream"))


def one_token(path: str, body: Mapping[str, Any]) -> bool:
    return path == "/v1/completions"


def anonymous(path: str, body: Mapping[str, Any]) -> bool:
    return body.get("user") == ANONYMOUS


def at(path: str) -> Applies:
    return lambda requested, body: requested == path


def fields(**values: Any) -> Callable[[Completion], None]:
    """Return a change that sets these fields of the completion."""

    def change(completion: Completion) -> None:
        for name, value in values.items():
            setattr(completion, name, value)

    return change


def garbage(text: str, ids: list[Any] | None) -> Callable[[Completion], None]:
    return fields(content=text, token_ids=ids)


def in_calls(change: Callable[[dict[str, str]], None]) -> Callable[[Completion], None]:
    def change_all(completion: Completion) -> None:
        for call in completion.calls:
            change(call)

    return change_all


def put(name: str, value: Callable[[str], str]) -> Callable[[Completion], None]:
    return in_calls(lambda call: call.__setitem__(name, value(call[name])))


def first_logprob(value: Any) -> Callable[[Completion], None]:
    def change(completion: Completion) -> None:
        assert completion.logprobs
        completion.logprobs[0] = value

    return change


def half_zero(completion: Completion) -> None:
    assert completion.token_ids
    completion.token_ids = [0 if index % 4 == 0 else number for index, number in enumerate(completion.token_ids)]


def call_again(completion: Completion) -> None:
    completion.calls = [{"id": "again", "name": "get_weather", "arguments": '{"city": "Paris"}'}]


def refuses(status: int, message: str) -> Callable[[Reply], Reply]:
    return lambda reply: refusal(status, message)


def body(document: Any) -> Callable[[Reply], Reply]:
    return lambda reply: Reply(200, [json.dumps(document).encode()])


def without(part: bytes) -> Callable[[Reply], Reply]:
    """Return a change that leaves out a part of each piece, and pieces that then are empty."""
    return lambda reply: Reply(200, [re.sub(part, b"", piece) for piece in reply.pieces], reply.kind)


def counts(value: bytes) -> Callable[[Reply], Reply]:
    """Return a change that sets every counter in the metrics to this value."""
    return lambda reply: Reply(200, [re.sub(rb"\S+$", value, reply.pieces[0], flags=re.MULTILINE)])


AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'

# Applied to whole and to streamed replies, one at a time.
BOTH_FORMS = {
    "exclamation marks": Fault("garbage", prose, garbage("!" * 160, [0] * 160)),
    "invisible pads": Fault("garbage", prose, garbage("", [0] * 160)),
    "sound text over one id": Fault("garbage", prose, fields(token_ids=[7] * 80)),
    "every fourth id is 0": Fault("garbage", prose, half_zero),
    "two ids over and over": Fault("garbage", prose, garbage("'s't" * 40, [21, 22] * 80)),
    "a loop without ids": Fault("garbage", prose, garbage("the the of " * 40, None)),
    "one character in a row": Fault("garbage", prose, fields(content="The dough risesssssssssssssss and then stops.")),
    "mostly one character": Fault("garbage", prose, fields(content="aXaYaZaaWaaVaaUaaTaaSaaRaa")),
    "no text at all": Fault("garbage", prose, fields(content=None)),
    "blanks": Fault("garbage", prose, fields(content=" \n \n ")),
    "no character to print": Fault("garbage", prose, fields(content="the \x00\x01\x02\x03 dough \x7f\x1b rises" * 2)),
    "replacement characters": Fault("garbage", prose, fields(content="dough \ufffd\ufffd\ufffd\ufffd rises now")),
    "logprob NaN": Fault("garbage", prose, first_logprob(float("nan"))),
    "logprob infinite": Fault("garbage", prose, first_logprob(float("-inf"))),
    "logprob -9999": Fault("garbage", prose, first_logprob(-9999.0)),
    "logprob null": Fault("garbage", prose, first_logprob(None)),
    "neither ids nor logprobs": Fault("garbage", prose, fields(token_ids=None, logprobs=None)),
    "no parser": Fault("tools", any_tools, reply=refuses(400, AUTO)),
    "tags in the text": Fault("tools", calling, fields(content="<|tool_call>call:get_weather{city:Paris}", calls=[])),
    "tags beside a call": Fault("tools", calling, fields(content='<|"|>')),
    "tags in the arguments": Fault(
        "tools", calling, put("arguments", lambda text: text.replace('Paris"', 'Paris<|\\"|>"'))
    ),
    "tags after the results": Fault("tools", after_results, fields(content="It is 31 at 18:45.<tool_call|>")),
    "doubled brackets": Fault("tools", html, put("arguments", lambda text: text.replace("<b>", "<<b>"))),
    "escaped html": Fault("tools", html, put("arguments", lambda text: text.replace("<", "&lt;"))),
    "a blank more": Fault("tools", html, put("arguments", lambda text: text.replace("<b>", " <b>"))),
    "cut arguments": Fault("tools", calling, put("arguments", lambda text: text[:-1])),
    "another key": Fault("tools", calling, put("arguments", lambda text: text.replace('{"', '{"x": 1, "'))),
    "no id": Fault("tools", calling, put("id", lambda text: "")),
    "one id for two": Fault("tools", parallel, put("id", lambda text: "same")),
    "one call of two": Fault("tools", parallel, lambda completion: completion.calls.pop()),
    "another tool": Fault("tools", calling, put("name", lambda text: "get_news")),
    "a name twice": Fault("tools", calling, put("name", lambda text: text * 2)),
    "finish_reason stop": Fault("tools", calling, fields(finish="stop")),
    "no call": Fault("tools", calling, fields(content="I cannot do that.", calls=[], finish="stop")),
    "the same call again": Fault("tools", after_results, call_again),
    "the result is ignored": Fault("tools", after_results, fields(content="It is sunny.")),
    "reasoning null": Fault("reasoning", thinking, fields(reasoning=None)),
    "reasoning empty": Fault("reasoning", thinking, fields(reasoning="")),
    "content null": Fault("reasoning", thinking, fields(content=None)),
    "all in reasoning": Fault("reasoning", thinking, fields(content="", finish="length")),
    "channel in content": Fault("reasoning", thinking, fields(content="<|channel>thought\nCount.<channel|>8 euros.")),
    "channel in reasoning": Fault("reasoning", thinking, fields(reasoning="Count.<channel|>")),
    "think in content": Fault("reasoning", thinking, fields(content="Count.</think>8 euros.")),
    "no grammar": Fault("structured", schema, fields(content="A lighthouse warns ships of rocks.")),
    "fenced": Fault("structured", schema, fields(content='```json\n{"kind": "tower", "floors": 3, "open": true}\n```')),
    "a key more": Fault("structured", schema, fields(content='{"kind": "tower", "floors": 3, "open": true, "n": 1}')),
    "a key less": Fault("structured", schema, fields(content='{"kind": "tower", "floors": 3}')),
    "no such kind": Fault("structured", schema, fields(content='{"kind": "ship", "floors": 3, "open": true}')),
    "another type": Fault("structured", schema, fields(content='{"kind": "tower", "floors": 3.0, "open": 1}')),
    "cut JSON": Fault("structured", schema, fields(content='{"kind": "tower", "floors": 3, "op', finish="length")),
    "no choice": Fault("structured", choice, fields(content="Paris")),
    "a choice in a sentence": Fault("structured", choice, fields(content="violet-7 is it")),
    "no messages": Fault("anthropic", message, reply=refuses(404, "Not Found")),
    "a message without a text": Fault("anthropic", message, fields(content="")),
    "a cut message": Fault("anthropic", message, fields(finish="length")),
    "a tag in a message": Fault("anthropic", message, fields(content="<think>Paris")),
    "a message that calls nothing": Fault("anthropic", message_call, fields(content="No.", calls=[], finish="stop")),
    "a call that ends the turn": Fault("anthropic", message_call, fields(finish="stop")),
    "a call for another city": Fault("anthropic", message_call, put("arguments", lambda text: '{"city": "Rome"}')),
    "a call of a message without an id": Fault("anthropic", message_call, put("id", lambda text: "")),
}

# Faults of requests that exist in one form only.
WHOLE_ONLY = {
    "no token": Fault("ready", one_token, reply=refuses(500, "EngineCore encountered an issue")),
    "another card": Fault("identity", at("/v1/models"), reply=body({"data": [{"id": "qwen", "root": "/q"}]})),
    "another version": Fault("identity", at("/version"), reply=body({"version": "0.1.0"})),
    "a key that guards nothing": Fault("key", anonymous, reply=body({"choices": [{"text": "2"}]})),
    "another name in the reply": Fault("failover", one_token, fields(model="qwen")),
    "no metrics": Fault("failover", at("/metrics"), reply=lambda reply: Reply(200, [b"up 1\n"])),
    "no token counts": Fault("failover", one_token, fields(prompt_tokens=None)),
    "a counter that stands": Fault("failover", at("/metrics"), reply=counts(b"5.0")),
    "a counter of NaN": Fault("failover", at("/metrics"), reply=counts(b"NaN")),
    "another capital": Fault("answer", question("one word"), fields(content="Lyon")),
    "an empty answer": Fault("answer", question("19 * 23"), fields(content="")),
    "always red, blue": Fault("vision", picture, fields(content="red, blue")),
    "one colour": Fault("vision", picture, fields(content="blue")),
    "the picture is dropped": Fault("vision", picture, fields(prompt_tokens=40)),
    "no pictures": Fault("vision", picture, reply=refuses(400, "At most 0 image(s) may be provided in one prompt.")),
    "a small mind": Fault("probe", question("step by step"), fields(content="Answer: 12")),
    "a first event without type and role": Fault(
        "anthropic", streamed_message, reply=without(rb'"type": "message", "role": "assistant", ')
    ),
    "a message that does not end": Fault("anthropic", streamed_message, reply=without(rb"(?s)event: message_stop.*")),
    "a block that does not begin": Fault("anthropic", streamed_message, reply=without(rb"(?s).*content_block_start.*")),
    "a block that does not end": Fault("anthropic", streamed_message, reply=without(rb"(?s).*content_block_stop.*")),
    "a message without usage": Fault("anthropic", message, reply=without(rb'"usage": \{[^}]*')),
    "other tokens": Fault("anthropic", at(COUNT_TOKENS), reply=body({"input_tokens": 1})),
    "no tokens": Fault("anthropic", at(COUNT_TOKENS), reply=refuses(404, "Not Found")),
    "no answer line": Fault("probe", question("step by step"), fields(content="I think it is 9.")),
}
