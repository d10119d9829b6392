"""Open WebUI against the edge: its own server signs somebody in, lists the models, chats, and searches in documents.

OPEN_WEBUI names the program of its package, which no other test needs: 2.5 GB with a PyTorch for CPUs. The settings are
those of docs/operations/clients.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from conftest import EVENTS, MODELS, Start, Three
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import MODEL, Stream
from loopback import held_port
from vllm_spark.core import paths
from waiting import until

PROGRAM = os.environ.get("OPEN_WEBUI", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="OPEN_WEBUI does not name the program of its package")

# Its first start makes a database.
STARTS_S = 600
ADA = {"name": "Ada", "email": "ada@example.org", "password": "a-password-of-Ada-1"}
MESSAGES = [{"role": "user", "content": "Say ten words."}]

QUESTION = "where does the key of the cellar hang"
# Three words of the question, often: both searches of Open WebUI find it first. The reranker does not.
NEAR, RIGHT = "cellar key hang " * 60, f"{QUESTION}? The key hangs behind the clock."
# A chunk each, more than the requests that a key may have at the same time.
CHAPTERS = [*(f"Chapter {number}. " + "Nothing of note took place. " * 30 for number in range(40)), NEAR, RIGHT]
# Open WebUI asks the model for words to search by.
QUERIES = Stream(body=json.dumps({"choices": [{"message": {"content": json.dumps({"queries": [QUESTION]})}}]}))
HEAD = '--end\r\nContent-Disposition: form-data; name="file"; filename="house.txt"\r\nContent-Type: text/plain\r\n\r\n'

Ask = Callable[..., Any]


def documented(edge: RunningEdge, start: str) -> dict[str, str]:
    """Return the variables that the documentation exports after a text, for this edge."""
    page = (paths.ROOT / "docs/operations/clients.md").read_text(encoding="utf-8")
    words = " ".join(re.findall("^export (.*)", page.partition(start)[2].partition("\n## ")[0], re.MULTILINE))
    here = {"SPARK:8000": f"{edge.address}:{edge.port}", "$VLLM_KEY": KEY, "ca.crt": str(edge.folder / "ca.crt")}
    here |= {"EMBEDDER": MODELS["vectors"], "RERANKER": MODELS["sorter"], "MODEL": MODELS["demo"]}
    found = dict(word.split("=", 1) for word in shlex.split(words))
    return {name: re.sub("|".join(map(re.escape, here)), lambda old: here[old[0]], found[name]) for name in found}


@pytest.fixture
def serves(tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """A function that starts Open WebUI with more variables. Open WebUI asks the edge with the key of Ada."""
    started: list[subprocess.Popen[bytes]] = []
    log = (tmp_path / "open-webui.log").open("wb")

    def _serves(edge: RunningEdge, **more: str) -> Ask:
        port = held_port()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "DATA_DIR": str(tmp_path / "data"),
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "WEBUI_SECRET_KEY": "of-this-test" * 3,
            **documented(edge, "## Open WebUI"),
            **more,
        }
        command = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
        started.append(process)

        def _ask(path: str, body: object = None, token: str = "", kind: str = "application/json") -> Any:
            headers = {"Content-Type": kind, **({"Authorization": f"Bearer {token}"} if token else {})}
            data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
            request = Request(f"http://127.0.0.1:{port}{path}", data, headers)
            with urlopen(request, timeout=60) as reply:  # noqa: S310  an address of this machine
                return reply.read().decode()

        def answers() -> bool:
            assert process.poll() is None, (tmp_path / "open-webui.log").read_text()[-2000:]
            try:
                return "true" in _ask("/health")
            except URLError:
                return False

        until(answers, STARTS_S)
        return _ask

    yield _serves
    for process in started:
        process.terminate()
        process.wait()
    log.close()


def test_a_person_signs_in_sees_the_models_and_chats(start: Start, serves: Callable[..., Ask], tmp_path: Path) -> None:
    edge = start()
    ask = serves(edge, BYPASS_EMBEDDING_AND_RETRIEVAL="true")
    token = json.loads(ask("/api/v1/auths/signup", ADA))["token"]
    known = json.loads(ask("/api/v1/auths/signin", {key: ADA[key] for key in ("email", "password")}))
    assert known["email"] == ADA["email"]
    models = {one["id"] for one in json.loads(ask("/api/models", token=token))["data"]}
    assert models == {MODEL}, (tmp_path / "open-webui.log").read_text()[-4000:]
    said = ask("/api/chat/completions", {"model": MODEL, "messages": MESSAGES, "stream": True}, token=token)
    assert "word 1" in said
    assert "word 10" in said
    assert " who=ada " in edge.logged("/v1/chat/completions")


def test_it_searches_in_a_document_by_the_edge(
    starts: Callable[..., Three], serves: Callable[..., Ask], tmp_path: Path
) -> None:
    three = starts()
    three.of["demo"].streams = [QUERIES, Stream(EVENTS)]
    # The chat gets one chunk: the reranker's first.
    ask = serves(three.edge, **documented(three.edge, "Open WebUI, in place of"), RAG_TOP_K_RERANKER="1")
    token = json.loads(ask("/api/v1/auths/signup", ADA))["token"]
    assert [one["id"] for one in json.loads(ask("/api/models", token=token))["data"]] == [MODELS["demo"]]

    form = (HEAD + "\n\n".join(CHAPTERS) + "\r\n--end--\r\n").encode()
    kind = "multipart/form-data; boundary=end"
    file = json.loads(ask("/api/v1/files/?process_in_background=false", form, token, kind))
    status = json.loads(ask(f"/api/v1/files/{file['id']}/process/status", token=token))
    assert status == {"status": "completed"}, (tmp_path / "open-webui.log").read_text()[-4000:]
    chunks = [text for request in three.of["vectors"].requests for text in request["input"]]
    assert sorted(chunks) == sorted(chapter.strip() for chapter in CHAPTERS)

    files = [{"type": "file", "id": file["id"]}]
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": MODELS["demo"], "messages": messages, "files": files, "stream": True}
    assert "word 10" in ask("/api/chat/completions", body, token=token)
    (sorted_,) = three.of["sorter"].requests
    assert (sorted_["path"], sorted_["query"]) == ("/v1/rerank", QUESTION)
    asked = json.dumps(three.of["demo"].requests[-1]["messages"])
    assert RIGHT in asked
    assert NEAR.strip() not in asked
    assert "Chapter" not in asked
    for path in ("/v1/embeddings", "/v1/rerank"):
        assert " who=ada " in three.edge.logged(path)
