"""Anthropic's API over chat completions, as vLLM translates it (vllm/entrypoints/anthropic/serving.py of 0.32.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.verify import messages

STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def chat_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat completion that a message asks for."""
    tools = [
        {"type": "function", "function": {**tool, "parameters": tool["input_schema"]}} for tool in body.get("tools", ())
    ]
    return {**body, **({"tools": tools, "tool_choice": "auto"} if tools else {})}


def message_of(completion: Mapping[str, Any], prompt_tokens: int | None = 1) -> dict[str, Any]:
    """Return the message of a chat completion."""
    choice = completion["choices"][0]
    said = choice["message"]
    thought = said.get("reasoning") or said.get("reasoning_content")
    blocks = [{"type": "thinking", "thinking": thought, "signature": "x"}] if thought else []
    blocks += [{"type": "text", "text": said["content"]}] if said.get("content") else []
    for call in said.get("tool_calls") or ():
        function = call["function"]
        block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**block, "input": messages.arguments(function["arguments"])})
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": blocks,
        "model": completion["model"],
        "stop_reason": STOPS[choice["finish_reason"]],
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 1},
    }


def events_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed message."""
    usage = message["usage"]
    start = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": {**message, **start}}
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[kind]
        whole = json.dumps(block["input"]) if kind == "tool_use" else block[field]
        delta, name = ("input_json_delta", "partial_json") if kind == "tool_use" else (f"{kind}_delta", kind)
        empty = {**block, field: {} if kind == "tool_use" else ""}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for piece in (whole[:5], whole[5:]):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, name: piece}}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": usage}
    yield {"type": "message_stop"}
