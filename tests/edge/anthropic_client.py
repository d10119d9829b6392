"""Asks an edge with Anthropic's library, and prints a line of JSON for each thing that a test judges.

    python anthropic_client.py CASE URL KEY

The environment has the packages and the certificate: PYTHONPATH, SSL_CERT_FILE."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic

MODEL = "model"
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "get_weather", "description": "Current weather of a city.", "input_schema": SCHEMA}]


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def chat(client: anthropic.Anthropic) -> None:
    """The text, and the tokens of the answer."""
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=MESSAGES)
    say(text=[block.text for block in answer.content if block.type == "text"], tokens=answer.usage.output_tokens)


def stream(client: anthropic.Anthropic) -> None:
    """The texts of the events, and the tokens of the answer."""
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as events:
        say(texts=list(events.text_stream), tokens=events.get_final_message().usage.output_tokens)


def tools(client: anthropic.Anthropic) -> None:
    """The call's name and arguments, of a stream."""
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES, tools=TOOLS) as events:
        (call,) = (block for block in events.get_final_message().content if block.type == "tool_use")
    say(name=call.name, input=call.input)


def count(client: anthropic.Anthropic) -> None:
    """The tokens of the prompt."""
    say(tokens=client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens)


def errors(client: anthropic.Anthropic) -> None:
    """Exception, status and type: a wrong key, an inactive model, a path that is not served, a large body."""
    large: Any = [{"role": "user", "content": "x" * (17 << 20)}]
    asks: list[Callable[[], object]] = [
        lambda: client.with_options(api_key="sk-spark-wrong").messages.create(
            model=MODEL, max_tokens=5, messages=MESSAGES
        ),
        lambda: client.messages.create(model="other-model", max_tokens=5, messages=MESSAGES),
        client.messages.batches.list,
        lambda: client.messages.create(model=MODEL, max_tokens=5, messages=large),
    ]
    for ask in asks:
        try:
            ask()
            say(raised=None)
        except anthropic.APIStatusError as error:
            body: Any = error.body
            say(raised=type(error).__name__, status=error.status_code, type=body["error"]["type"])


CASES = {case.__name__: case for case in (chat, stream, tools, count, errors)}


def main() -> None:
    case, url, key = sys.argv[1:]
    CASES[case](anthropic.Anthropic(base_url=url, api_key=key, max_retries=0))


if __name__ == "__main__":
    main()
