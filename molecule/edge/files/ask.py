#!/usr/bin/env python3
"""Ask an edge as a client of the network does. Prints {name of a request: status, or the error} as JSON.

Arguments: base URL, file of the site's authority, name of a model. The key comes from VLLM_KEY.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request

URL, AUTHORITY, MODEL = sys.argv[1:]
KEY = {"Authorization": f"Bearer {os.environ.get('VLLM_KEY', '')}"}
TIMEOUT_S = 60


def chat(model: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": "Hello"}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 4, **more}).encode()


# name -> (path, headers, body)
REQUESTS: dict[str, tuple[str, dict[str, str], bytes | None]] = {
    "chat": ("/v1/chat/completions", KEY, chat(MODEL)),
    "stream": ("/v1/chat/completions", KEY, chat(MODEL, stream=True)),
    "models": ("/v1/models", KEY, None),
    "health without a key": ("/health", {}, None),
    "no key": ("/v1/chat/completions", {}, chat(MODEL)),
    "another key": ("/v1/chat/completions", {"Authorization": "Bearer sk-spark-wrong"}, chat(MODEL)),
    "metrics": ("/metrics", KEY, None),
    "metrics by a way around": ("/v1/../metrics", KEY, None),
    "invocations": ("/invocations", KEY, chat(MODEL)),
    "tokenize": ("/tokenize", KEY, json.dumps({"model": MODEL, "prompt": "a"}).encode()),
    "docs": ("/docs", KEY, None),
    "another host": ("/v1/models", {**KEY, "Host": "evil.example"}, None),
    "a picture of the network": (
        "/v1/chat/completions",
        KEY,
        json.dumps(
            {
                "model": MODEL,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://10.231.0.5/a.png"}}],
                    }
                ],
            }
        ).encode(),
    ),
}


def ask(path: str, headers: dict[str, str], body: bytes | None) -> int | str:
    """Return the status of the response, or the reason why there is none."""
    trusted = ssl.create_default_context(cafile=AUTHORITY)
    request = urllib.request.Request(URL + path, data=body, headers={"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        # Every error has the shape of OpenAI's.
        own = "message" in json.loads(error.read()).get("error", {})
        return error.code if own else f"{error.code} of another shape"
    except OSError as error:
        return str(error)


print(json.dumps({name: ask(*request) for name, request in REQUESTS.items()}))
