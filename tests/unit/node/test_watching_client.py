"""Judge answers as the clients do that watch a server in the scenarios (molecule/shared/files/chat.py)."""

from __future__ import annotations

from typing import Any

import pytest

from chat import ANSWER, judge

MODEL = "tiny-gemma4"


def answer(text: str | None, finish_reason: str = "stop", model: str = MODEL) -> dict[str, Any]:
    return {"model": model, "choices": [{"message": {"content": text}, "finish_reason": finish_reason}]}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        pytest.param(answer(ANSWER), "good", id="whole"),
        pytest.param(answer(f"\n{ANSWER} "), "good", id="white-space"),
        # As the engine of the sandbox sent it to a request that arrived while it was told to stop.
        pytest.param(answer(None, "abort"), "cut", id="nothing-and-marked"),
        pytest.param(answer(ANSWER[:12], "abort"), "cut", id="beginning-and-marked"),
        pytest.param(answer(None), "wrong", id="nothing-without-a-mark"),
        pytest.param(answer(ANSWER[:12], "length"), "wrong", id="beginning-without-a-mark"),
        pytest.param(answer("Goodbye", "abort"), "wrong", id="another-text-and-marked"),
        pytest.param(answer(ANSWER, model="tiny-other"), "wrong", id="another-model"),
        pytest.param(answer(None, "abort", "tiny-other"), "wrong", id="another-model-and-marked"),
    ],
)
def test_an_answer_is_judged(reply: dict[str, Any], kind: str) -> None:
    assert judge(reply, MODEL) == kind
