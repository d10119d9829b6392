"""Questions of openai-python and LiteLLM to an edge, in a process with their packages. Prints one JSON line per answer.

    SSL_CERT_FILE=CA python clients.py CASE BASE_URL KEY [SOCKET]

The lines are documented at each case. Only the standard library and the two clients are here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import openai

MODEL = "model"
# Models of other roles.
VECTORS, SORTER = "qwen3-embedding-0.6b", "qwen3-reranker-0.6b"
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter — ☔",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
# Bytes of a picture below and above the default limit of a body. Base64 makes a third more of them.
SMALL_PICTURE, LARGE_PICTURE = 6 << 20, 13 << 20


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def picture(size: int) -> Any:
    """Return messages with a picture as a data URL."""
    url = "data:image/png;base64," + base64.b64encode(random.Random(size).randbytes(size)).decode()  # noqa: S311
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": content}]


def refused(ask: Callable[[], object]) -> dict[str, Any]:
    """Return what openai-python makes of an error: its exception, the status, and the error's code and message."""
    try:
        ask()
    except openai.APIStatusError as error:
        body: Any = error.body or {}
        kind = type(error).__name__
        return {"raised": kind, "status": error.status_code, "code": body.get("code"), "message": body.get("message")}
    except openai.APIConnectionError as error:
        return {"raised": type(error).__name__, "message": repr(error.__cause__)}
    return {"raised": None}


def chat(client: openai.OpenAI) -> None:
    """The answer's text, then the bytes of the whole answer."""
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    say(text=answer.parse().choices[0].message.content, body=answer.text)


def tools(client: openai.OpenAI) -> None:
    """The call's name and arguments, and the bytes of the whole answer."""
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    (call,) = answer.parse().choices[0].message.tool_calls or []
    say(name=call.function.name, arguments=call.function.arguments, body=answer.text)  # type: ignore[union-attr]


def stream(client: openai.OpenAI) -> None:
    """The texts of the events, and the milliseconds between them."""
    texts, moments = [], []
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
        moments.append(time.monotonic())
        texts.append(chunk.choices[0].delta.content)
    gaps = [1000 * (after - before) for before, after in pairwise(moments)]
    say(texts=texts, median_ms=statistics.median(gaps), max_ms=max(gaps))


def small_picture(client: openai.OpenAI) -> None:
    """The SHA-256 of the messages."""
    messages = picture(SMALL_PICTURE)
    client.chat.completions.create(model=MODEL, messages=messages)
    say(sha256=digest(messages))


def digest(messages: Any) -> str:
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


def large_picture(client: openai.OpenAI) -> None:
    """Ten refusals: whether the client reads the answer or finds a cut connection depends on who is faster."""
    messages = picture(LARGE_PICTURE)
    for _ in range(10):
        say(**refused(lambda: client.chat.completions.create(model=MODEL, messages=messages)))


def errors(client: openai.OpenAI) -> None:
    """A wrong key, a model that the engine does not know, one that is inactive, a path that the edge does not serve."""
    wrong = client.with_options(api_key="sk-spark-wrong")
    say(**refused(wrong.models.list))
    say(**refused(lambda: client.chat.completions.create(model="nobody", messages=MESSAGES)))
    say(**refused(lambda: client.chat.completions.create(model="other-model", messages=MESSAGES)))
    say(**refused(lambda: client.moderations.create(input="a")))


def busy(client: openai.OpenAI) -> None:
    """Without repetitions: the exception. With one: a line per answer of the edge, then the text."""
    say(**refused(lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES)))
    seen = httpx.Client(event_hooks={"response": [lambda response: say(status=response.status_code)]})
    patient = openai.OpenAI(base_url=client.base_url, api_key=client.api_key, http_client=seen, max_retries=1)
    began = time.monotonic()
    answer = patient.chat.completions.create(model=MODEL, messages=MESSAGES)
    say(text=answer.choices[0].message.content, seconds=time.monotonic() - began)


def litellm(client: openai.OpenAI) -> None:
    """Chat, tools, the texts of a stream, and what LiteLLM makes of a wrong key."""
    import litellm as library  # noqa: PLC0415  seconds, and only this case needs it

    library.suppress_debug_info = True  # lines among the answers

    def ask(**more: Any) -> Any:
        words = {"api_base": str(client.base_url), "api_key": client.api_key, "max_retries": 0, **more}
        return library.completion(model=f"openai/{MODEL}", messages=MESSAGES, **words)

    say(text=ask().choices[0].message.content)
    (call,) = ask(tools=TOOLS).choices[0].message.tool_calls
    say(name=call.function.name, arguments=call.function.arguments)
    say(texts=[chunk.choices[0].delta.content for chunk in ask(stream=True)])
    try:
        ask(api_key="sk-spark-wrong")
    except library.exceptions.AuthenticationError as error:
        say(raised=type(error).__name__, message=str(error))


def roles(client: openai.OpenAI) -> None:
    """The ids of all models, vectors of two texts, and what the client makes of a chat with a model for vectors."""
    say(models=sorted(model.id for model in client.models.list()))
    answer = client.embeddings.create(model=VECTORS, input=["bread at home", "a law"])
    say(vectors=[entry.embedding for entry in answer.data], tokens=answer.usage.prompt_tokens)
    say(**refused(lambda: client.chat.completions.create(model=VECTORS, messages=MESSAGES)))
    say(**refused(lambda: client.embeddings.create(model=MODEL, input="a")))


def litellm_roles(client: openai.OpenAI) -> None:
    """Vectors, and the order of two documents."""
    import litellm as library  # noqa: PLC0415  seconds, and only this case needs it

    library.suppress_debug_info = True
    words: Any = {"api_base": str(client.base_url), "api_key": client.api_key}
    answer = library.embedding(model=f"hosted_vllm/{VECTORS}", input=["bread at home"], **words)
    say(vectors=[entry["embedding"] for entry in answer.data], tokens=answer.usage.prompt_tokens)
    documents = ["a law", "bread at home"]
    answer = library.rerank(model=f"hosted_vllm/{SORTER}", query="bread", documents=documents, **words)
    say(order=[result["index"] for result in answer.results])


CASES = {
    case.__name__: case
    for case in (chat, tools, stream, small_picture, large_picture, errors, busy, litellm, roles, litellm_roles)
}


def main() -> None:
    case, url, key, *socket = sys.argv[1:]
    direct = httpx.Client(transport=httpx.HTTPTransport(uds=socket[0])) if socket else None
    CASES[case](openai.OpenAI(base_url=f"{url}/v1", api_key=key, http_client=direct, max_retries=0))


if __name__ == "__main__":
    main()
