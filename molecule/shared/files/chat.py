"""The one question of the clients that watch a server, and what its answer is worth."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32, "temperature": 0}
ANSWER = "Hello from tiny Gemma: the engine is real, its weights are not."
# A busy machine answers late.
ASK_S = 60
NOT_HERE = 404


def post(url: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the JSON answer of a server whose key is in VLLM_API_KEY. Raises OSError or ValueError."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['VLLM_API_KEY']}"}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return json.load(reply)


def ask(url: str, model: str) -> tuple[str, str]:
    """Return the kind of the answer, and the answer itself if it is wrong or cut, or the error.

    Kinds: those of `judge`; absent, the server does not know the model; refused, another error with a status;
    down, no answer.
    """
    try:
        answer = post(url, "/v1/chat/completions", {"model": model, **QUESTION}, ASK_S)
    except urllib.error.HTTPError as error:
        return "absent" if error.code == NOT_HERE else "refused", str(error)
    except (OSError, ValueError) as error:
        return "down", str(error)
    kind = judge(answer, model)
    return kind, "" if kind == "good" else json.dumps(answer)


def judge(answer: dict[str, Any], model: str) -> str:
    """Return the kind of an answer with status 200.

    good: the whole answer of this model.
    cut: its beginning, which the engine itself marks as aborted. vLLM 0.32 answers so if it is told to stop
    (v1/engine/core.py, _send_abort_outputs and _reject_add_in_shutdown).
    wrong: another model, another text, or a cut text without that mark.
    """
    choice = answer["choices"][0]
    text = (choice["message"]["content"] or "").strip()
    if answer.get("model") != model:
        return "wrong"
    if text == ANSWER:
        return "good"
    return "cut" if choice["finish_reason"] == "abort" and ANSWER.startswith(text) else "wrong"
