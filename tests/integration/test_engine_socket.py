"""Every program that asks an engine, against a server on a real unix socket. None sends a key there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_docker, spark_requests, spark_status

from fakes.fake_http import Reply, Request, serving
from project_files import load_module
from vllm_spark.deploy import files
from vllm_spark.node import engine_api, host_layout, liveness, switch, unix_http
from vllm_spark.node.bench import job, start_job
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.supervise import server_wait

METRICS = 'vllm:generation_tokens_total{engine="0"} 7.0\nvllm:num_requests_running{engine="0"} 1.0\n'
TOKEN = {"choices": [{"text": "a"}]}
KEY = "sk-not-for-an-engine"


def engine(path: str, _: Mapping[str, str]) -> Reply:
    """Return what an engine returns for a path."""
    return Reply(METRICS if path == "/metrics" else "" if path == "/health" else TOKEN)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[Request]]]:
    """A server on a socket: the path of the socket, and the requests so far. The env file beside it has a key."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "env").write_text(f"VLLM_API_KEY={KEY}\n")
    with serving(engine, path=tmp_path / "api.sock") as (_, requests):
        yield str(tmp_path / "api.sock"), requests
        assert not [headers for _, headers in requests if KEY in json.dumps(headers)]


def places(folder: Path) -> Places:
    return Places(*(str(folder / name) for name in ("run", "states", "wants")), str(folder), str(folder / "starts"))


def api(path: str) -> Any:
    return {"socket": path, "model": "m", "deadline_s": 300}


def test_liveness_asks_the_socket(
    served: tuple[str, list[Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "PLACES", places(tmp_path))
    path, requests = served
    probe = liveness.probe_token("demo", api(path), 1.0)
    assert probe["answered"]
    assert "vllm:generation_tokens_total" in liveness.progress(api(path))
    assert [sent for sent, _ in requests] == ["/v1/completions", "/metrics"]


def test_the_switch_asks_the_socket(
    served: tuple[str, list[Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "PLACES", places(tmp_path))
    monkeypatch.setattr(switch, "CONFIG_DIR", tmp_path)
    path, requests = served
    (tmp_path / "demo" / "liveness.json").write_text(json.dumps(api(path)))
    assert engine_api.request_token(api(path), tmp_path / "demo" / "env") == (200, json.dumps(TOKEN))
    assert switch.drain("demo", 0.0, "for other")["left"] == 1
    assert [sent for sent, _ in requests] == ["/v1/completions", "/metrics"]


def test_the_supervisor_waits_for_the_socket(served: tuple[str, list[Request]]) -> None:
    path, requests = served
    asyncio.run(asyncio.wait_for(server_wait.wait_for_server(f"unix:{path}", "/health"), 60))
    asyncio.run(asyncio.wait_for(server_wait.wait_for_server(f"unix:{path}", None), 60))
    assert [sent for sent, _ in requests] == ["/health"]
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(server_wait.wait_for_server(f"unix:{path}-none", None), 0.7))


def test_status_reads_the_counters_of_the_socket(served: tuple[str, list[Request]]) -> None:
    sample = spark_status.first_sample(api(served[0]))
    assert sample
    assert (sample["running"], sample["tokens"]) == (1.0, 7.0)
    assert spark_status.first_sample(api(f"{served[0]}-none")) is None


def test_the_start_of_a_bench_asks_the_socket(served: tuple[str, list[Request]], tmp_path: Path) -> None:
    path, _ = served
    server = job.endpoint(f"unix:{path}", str(tmp_path / "demo" / "env"))
    assert start_job._answers(server, "m")
    assert not start_job._answers(job.endpoint(f"unix:{path}-none", ""), "m")
    assert job.endpoint("http://127.0.0.1:1", str(tmp_path / "demo" / "env")).key == KEY


def test_the_probe_asks_the_socket(
    served: tuple[str, list[Request]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = load_module("vllm_probe")
    monkeypatch.setattr(module, "unit_properties", lambda *_: {})
    monkeypatch.setattr(module, "journal", lambda *_: ([], ""))
    monkeypatch.setattr(module, "container_state", lambda _: None)
    request = {"id": "one", "method": "POST", "path": "/v1/completions", "body": {"model": "m"}, "timeout_s": 60}
    args = {"unit": "vllm@demo", "container": "vllm-demo", "port": 1, "socket": served[0]}
    args |= {"env_path": str(tmp_path / "demo" / "env"), "requests": [request]}
    with patch_module_args(args), pytest.raises(SystemExit):
        module.main()
    response = json.loads(capsys.readouterr().out)["probe"]["responses"]["one"]
    assert (response["status"], response["json"]) == (200, TOKEN)


def test_docker_is_asked_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linked.sock").symlink_to(tmp_path / "docker.sock")
    monkeypatch.setattr(spark_docker, "SOCKET", str(tmp_path / "linked.sock"))
    with serving(lambda path, _: Reply({"path": path}), path=tmp_path / "docker.sock"):
        assert spark_docker.Docker().get("/version") == {"path": "/version"}


def test_a_link_of_the_engine_leads_root_nowhere(served: tuple[str, list[Request]], tmp_path: Path) -> None:
    path, requests = served
    planted = tmp_path / "planted.sock"
    planted.symlink_to(path)
    with pytest.raises(ConnectionRefusedError):
        unix_http.connect(str(planted), 1.0)
    assert engine_api.send(api(str(planted)), "GET", "/metrics")[0] == 0
    assert spark_status.first_sample(api(str(planted))) is None
    request = {"id": "one", "method": "GET", "path": "/metrics", "timeout_s": 60}
    assert "ConnectionRefusedError" in spark_requests.send(str(planted), request, "")["error"]
    assert requests == []


def test_a_socket_without_a_server_leaves_no_descriptor(tmp_path: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "dead.sock"))
    before = open_files()
    for path in ("dead.sock", "none.sock"):
        with pytest.raises(OSError, match=r"refused|No such file"):
            unix_http.connect(str(tmp_path / path), 1.0)
    # A thread of an earlier test may close a file of its own meanwhile.
    assert open_files() <= before
    bound.close()


def open_files() -> set[str]:
    """Return what the descriptors of this process lead to. A socket has a number of its own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {target for target in found if target.startswith("socket:")}


Send = Callable[[str], object]


@pytest.mark.parametrize(
    ("send", "most"),
    [
        (lambda path: len(engine_api.send(api(path), "GET", "/")[1]), engine_api.MAX_REPLY_BYTES),
        (lambda path: spark_status.first_sample(api(path)), None),
        (
            lambda path: spark_requests.send(path, {"id": "a", "method": "GET", "path": "/", "timeout_s": 60}, "")[
                "status"
            ],
            200,
        ),
        (lambda path: start_job._answers(job.endpoint(f"unix:{path}", ""), "m"), True),
    ],
    ids=["liveness and switch", "status", "probe", "bench"],
)
def test_an_endless_reply_is_cut(send: Send, most: object, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path / "api.sock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        began = time.monotonic()
        answer = send(str(tmp_path / "api.sock"))
        assert time.monotonic() - began < 60
        assert answer == most or (most is None and answer)
    finally:
        server.kill()
        server.wait()


# Sends the body of a reply until the client closes.
ENDLESS = """
import contextlib, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    with contextlib.suppress(OSError):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        while True:
            connection.sendall(b"a" * 65536)
"""


@pytest.mark.parametrize("program", ["liveness", "vllm-switch"])
def test_the_placed_programs_find_the_placed_module(
    program: str, served: tuple[str, list[Request]], tmp_path: Path
) -> None:
    """The programs run as on a Spark: Python knows no package of the toolkit but the one that deploy places."""
    sources = {"liveness": liveness.__file__, "vllm-switch": switch.__file__}
    text = Path(sources[program]).read_text().replace(host_layout.MODULES, str(tmp_path / "modules"))
    assert str(tmp_path) in text
    (tmp_path / program).write_text(text)
    for file in files.modules():
        path = tmp_path / "modules" / Path(file.path).relative_to(host_layout.MODULES)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
    ask = "import json, runpy, sys; program = runpy.run_path(sys.argv[1]); "
    ask += "print(program['engine_api'].connect(json.loads(sys.argv[2])).__class__)"
    argv = [sys.executable, "-I", "-S", "-c", ask, str(tmp_path / program), json.dumps(api(served[0]))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "<class 'vllm_spark.node.unix_http.UnixConnection'>\n", done.stderr
    assert not list((tmp_path / "modules").rglob("__pycache__"))
