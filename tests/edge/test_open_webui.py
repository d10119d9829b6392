"""Open WebUI against the edge: its own server signs somebody in, lists the models and chats, with the site's authority.

OPEN_WEBUI names the program of its package (`pip install open-webui`, 2 GB), which no other test needs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from conftest import Start
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import MODEL
from loopback import held_port
from waiting import until

PROGRAM = os.environ.get("OPEN_WEBUI", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="OPEN_WEBUI does not name the program of its package")

# Its first start makes a database.
STARTS_S = 600
ADA = {"name": "Ada", "email": "ada@example.org", "password": "a-password-of-Ada-1"}
MESSAGES = [{"role": "user", "content": "Say ten words."}]

Ask = Callable[..., Any]


@pytest.fixture
def edge(start: Start) -> RunningEdge:
    return start()


@pytest.fixture
def ask(edge: RunningEdge, tmp_path: Path) -> Iterator[Ask]:
    """A function that asks Open WebUI, which asks the edge with the key of Ada."""
    port = held_port()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DATA_DIR": str(tmp_path / "data"),
        "OPENAI_API_BASE_URL": f"https://{edge.address}:{edge.port}/v1",
        "OPENAI_API_KEY": KEY,
        "AIOHTTP_CLIENT_SSL_CERT_FILE": str(edge.folder / "ca.crt"),
        "ENABLE_OLLAMA_API": "false",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
        "WEBUI_SECRET_KEY": "of-this-test" * 3,
    }
    log = (tmp_path / "open-webui.log").open("wb")
    command = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}"

    def _ask(path: str, body: object = None, token: str = "") -> Any:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = json.dumps(body).encode() if body else None
        request = Request(base + path, data, headers)  # noqa: S310  an address of this machine
        with urlopen(request, timeout=60) as reply:  # noqa: S310  an address of this machine
            return reply.read().decode()

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "open-webui.log").read_text()[-2000:]
        try:
            return "true" in _ask("/health")
        except URLError:
            return False

    until(answers, STARTS_S)
    yield _ask
    process.terminate()
    process.wait()
    log.close()


def test_a_person_signs_in_sees_the_models_and_chats(ask: Ask, edge: RunningEdge, tmp_path: Path) -> None:
    token = json.loads(ask("/api/v1/auths/signup", ADA))["token"]
    known = json.loads(ask("/api/v1/auths/signin", {key: ADA[key] for key in ("email", "password")}))
    assert known["email"] == ADA["email"]
    models = {one["id"] for one in json.loads(ask("/api/models", token=token))["data"]}
    assert models == {MODEL}, (tmp_path / "open-webui.log").read_text()[-4000:]
    said = ask("/api/chat/completions", {"model": MODEL, "messages": MESSAGES, "stream": True}, token=token)
    assert "word 1" in said
    assert "word 10" in said
    assert " who=ada " in edge.logged("/v1/chat/completions")
