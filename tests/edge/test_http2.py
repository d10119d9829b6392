"""HTTP/2 through a real HAProxy, with curl: Python's own client speaks HTTP/1.1 alone."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import EVENTS, Start
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import ScriptedEngine, Stream

CHAT = "/v1/chat/completions"


def curl(edge: RunningEdge, path: str, *options: str, key: str = KEY) -> list[str]:
    """Return the argv of a request. The last line of its output is the version and the status."""
    trust = ["curl", "-sS", "--http2", "--no-buffer", "--cacert", str(edge.folder / "ca.crt")]
    after = ["-w", "\n%{http_version} %{http_code}", f"https://127.0.0.1:{edge.port}{path}"]
    return [*trust, "-H", f"Authorization: Bearer {key}", *options, *after]


def ask(edge: RunningEdge, path: str, *options: str, key: str = KEY) -> tuple[str, str]:
    """Return (version and status, body)."""
    done = subprocess.run(curl(edge, path, *options, key=key), capture_output=True, text=True, check=False)
    body, _, end = done.stdout.rpartition("\n")
    return end, body


def test_the_rules_hold(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    assert ask(edge, "/health") == ("2 200", '{"status":"ok"}')
    assert ask(edge, "/v1/models")[0] == "2 200"
    assert ask(edge, "/metrics")[0] == "2 404"
    assert ask(edge, "/v1/../metrics", "--path-as-is")[0] == "2 404"
    assert ask(edge, "/v1/models", key="sk-of-nobody")[0] == "2 401"
    assert ask(edge, "/v1/models", "-H", "Host: evil.example")[0] == "2 421"
    assert len(engine.heads) == 1


@pytest.mark.parametrize(("size", "status"), [(100, "2 200"), (15 << 20, "2 200"), (17 << 20, "")])
def test_a_body_of_the_default_limit_is_routed(
    start: Start, engine: ScriptedEngine, tmp_path: Path, size: int, status: str
) -> None:
    edge = start()
    file = tmp_path / "body.json"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * size}], "model": "model"}
    file.write_text(json.dumps(body))
    seen = ask(edge, CHAT, "--data-binary", f"@{file}")[0]
    # curl goes on sending, so that it may find the end of the stream before the answer.
    assert seen == status or (not status and seen in ("2 413", "0 000"))
    assert [request == body for request in engine.requests] == ([True] if status else [])


def test_events_arrive_one_by_one(start: Start, engine: ScriptedEngine) -> None:
    engine.turns = threading.Semaphore(0)
    command = curl(start(), CHAT, "--max-time", "60", "-d", '{"model": "model", "stream": true}')
    arrived = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # The next one is not sent before this one has arrived.
        engine.turns.release()
        for line in process.stdout:
            if line.startswith(b"data: {"):
                arrived.append(line.decode())
                engine.turns.release()
    assert len(arrived) == len(EVENTS)
    assert all(event.content in line for event, line in zip(EVENTS, arrived, strict=True))


def test_the_log_has_the_tokens(start: Start, engine: ScriptedEngine) -> None:
    engine.streams = [Stream(EVENTS[:2], usage={"prompt_tokens": 12, "completion_tokens": 34})]
    edge = start()
    assert ask(edge, CHAT, "-d", '{"model": "model", "stream": true}')[0] == "2 200"
    assert "who=ada model=model path=/v1/chat/completions status=200" in (line := edge.logged())
    assert " in_tokens=12 out_tokens=34 events=4 " in line
