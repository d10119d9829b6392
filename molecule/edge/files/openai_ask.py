#!/usr/bin/env python3
"""Ask an edge with openai-python. Prints JSON: the answer's text, the number of events and the text of a stream, the
models, the names of the exceptions of a wrong key and of an unknown model, and the version of the library.

Arguments: base URL, name of a model. The key comes from VLLM_KEY, the site's authority from SSL_CERT_FILE.
"""

from __future__ import annotations

import json
import os
import sys

import openai

URL, MODEL = sys.argv[1:]
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=os.environ["VLLM_KEY"], max_retries=0)


def ask(client: openai.OpenAI = CLIENT, model: str = MODEL, stream: bool = False) -> object:
    messages = [{"role": "user", "content": "Hello"}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=stream)


def raised(client: openai.OpenAI, model: str) -> str:
    try:
        ask(client, model)
    except openai.APIError as error:
        return type(error).__name__
    return ""


parts = [chunk.choices[0].delta.content or "" for chunk in ask(stream=True) if chunk.choices]
print(
    json.dumps(
        {
            "text": ask().choices[0].message.content,
            "events": len(parts),
            "streamed": "".join(parts),
            "models": [model.id for model in CLIENT.models.list()],
            "wrong key": raised(CLIENT.with_options(api_key="sk-spark-wrong"), MODEL),
            "unknown model": raised(CLIENT, "nobody"),
            "version": openai.__version__,
        }
    )
)
