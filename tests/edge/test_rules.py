"""Each rule of the edge, asked of a real HAProxy: what is refused, with which status, and what reaches the engine."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conftest import Start
from fakes import edge_cases
from fakes.network_namespaces import cable_to_this_machine, hosts
from fakes.running_edge import KEY, RunningEdge, check, haproxy
from fakes.scripted_engine import ScriptedEngine
from project_files import DATA
from vllm_spark.edge import authority, steps
from waiting import LIMIT_S

CHAT = "/v1/chat/completions"


def question(**more: Any) -> dict[str, Any]:
    return {"model": "model", "messages": [{"role": "user", "content": "SECRET PROMPT"}], **more}


@pytest.mark.parametrize("file", sorted((DATA / "edge").glob("*.cfg")), ids=lambda file: file.stem)
def test_haproxy_accepts_every_golden_configuration(file: Path, tmp_path: Path) -> None:
    pair = authority.new_authority(datetime.now(UTC))
    for name in ("keys.map", "states.map", "spent.map"):
        (tmp_path / name).touch()
    for name in ("tls.pem", "names.pem"):
        (tmp_path / name).write_text(pair.certificate + pair.private_key)
    (tmp_path / "certificates.list").write_text(f"{tmp_path}/tls.pem !*\n{tmp_path}/names.pem\n")
    (tmp_path / "ca.crt").write_text(pair.certificate)
    (tmp_path / "tokens.lua").write_text(steps.tokens_file())
    text = file.read_text().replace("/var/lib/vllm-spark/edge/", f"{tmp_path}/")
    for folder in ("/etc/vllm-spark/edge/", "/run/vllm-edge/", "/run/vllm-edge-route/", "/run/vllm-spark/states"):
        text = text.replace(folder, f"{tmp_path}/{'states' if folder.endswith('states') else ''}")
    verdict = check(text, tmp_path)
    assert (verdict.returncode, verdict.stderr) == (0, "")


# vllm-project/vllm#58144, and what else a vLLM has.
UNLISTED_GET = ("/metrics", "/docs", "/openapi.json", "/redoc", "/version", "/ping", "/load", "/")
UNLISTED_POST = (
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/pause",
    "/collective_rpc",
    "/scale_elastic_ep",
)
# Spellings of listed paths, and other methods.
ODD = [
    ("GET", "/v1/../metrics"),
    ("GET", "/v1/models/"),
    ("GET", "//v1/models"),
    ("GET", "/V1/models"),
    ("GET", "/v1/%6dodels"),
    ("GET", CHAT),
    ("DELETE", "/v1/models"),
    ("OPTIONS", CHAT),
    ("POST", "/health"),
]
# Method, path, key -> status.
REFUSED = [
    ("POST", CHAT, None, 401),
    ("POST", CHAT, "sk-of-nobody", 401),
    ("GET", "/v1/models", None, 401),
    *(("GET", path, KEY, 404) for path in UNLISTED_GET),
    *(("POST", path, KEY, 404) for path in UNLISTED_POST),
    *((method, path, KEY, 404) for method, path in ODD),
]


@pytest.fixture
def edge(start: Start) -> RunningEdge:
    return start()


def test_what_is_not_listed_is_refused_and_does_not_reach_the_engine(edge: RunningEdge, engine: ScriptedEngine) -> None:
    seen = [(method, path, key, edge.ask(method, path, key=key)) for method, path, key, _ in REFUSED]
    assert [(method, path, key, answer.status) for method, path, key, answer in seen] == REFUSED
    assert {answer.error["code"] for *_, answer in seen} == {"invalid_api_key", "not_found"}
    assert engine.heads == []


def test_a_401_names_the_scheme(edge: RunningEdge) -> None:
    assert edge.ask("GET", "/v1/models", key=None).headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("SPARK1:8000", 200),
        ("spark1.local", 200),
        ("evil.example", 421),
        ("spark1.evil.example", 421),
        ("", 421),
        ("spark1,evil.example", 421),
        ("spark1@evil.example", 421),
        ("169.254.169.254", 421),
    ],
)
def test_only_names_of_the_spark_are_answered(edge: RunningEdge, host: str, status: int) -> None:
    answer = edge.ask("GET", "/v1/models", headers={"Host": host})
    # HAProxy 2.8 takes a character that no host name has for a faulty request.
    assert answer.status == status or (answer.status == 400 and set(host) & set(",@"))
    assert answer.status != 421 or answer.error["code"] == "misdirected_request"


def test_a_listed_path_reaches_the_engine_without_key_cookie_and_host(
    edge: RunningEdge, engine: ScriptedEngine
) -> None:
    headers = {"Cookie": "a=b", "X-Forwarded-For": "10.0.0.1"}
    answer = edge.ask("GET", "/v1/models", headers=headers)
    assert json.loads(answer.body)["data"][0]["id"] == "scripted"
    (head,) = engine.heads
    assert head.startswith("GET /v1/models HTTP/1.1\r\n")
    assert "\r\nhost: engine\r\n" in head
    assert all(name not in head.lower() for name in ("authorization", "cookie", "forwarded", KEY))


def test_the_edge_answers_for_its_own_health(edge: RunningEdge, engine: ScriptedEngine) -> None:
    assert edge.ask("GET", "/health", key=None).body == b'{"status":"ok"}'
    assert engine.heads == []


def test_a_client_outside_of_the_networks_is_refused(tmp_path: Path) -> None:
    """The host itself may always ask: the gates do so."""
    planned = edge_cases.edge_of([edge_cases.DEMO], {"open": False, "allow_from": ["10.0.0.0/8"]})
    with hosts("client") as (client,), cable_to_this_machine(client, "198.51.100.1", "198.51.100.2") as address:
        edge = RunningEdge(planned, tmp_path, address=address)
        edge.start()
        try:
            assert edge.ask("GET", "/health", key=None).status == 200
            assert edge.ask("GET", "/v1/models", key=None).status == 401
            for path in ("/health", "/v1/models"):
                argv = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", f"https://{address}:{edge.port}{path}")
                assert client.run(*argv) == "403"
        finally:
            edge.close()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (question(), 200, ""),
        ({"messages": [{"role": "user", "content": "x" * 900_000}], "model": "model"}, 200, ""),
        (question(model="other-model"), 503, "model_not_active"),
        ({"messages": [{"role": "user", "content": "x" * 900_000}], "model": "o/1"}, 503, "model_not_active"),
        # An adapter, no model, and no JSON: the engine itself answers.
        (question(model="an-adapter"), 200, ""),
        ({"messages": []}, 200, ""),
    ],
)
def test_a_request_is_routed_by_its_model(
    start: Start, body: dict[str, Any], status: int, code: str, engine: ScriptedEngine
) -> None:
    edge = start(limits={"body_mib": 1})
    answer = edge.ask("POST", CHAT, body)
    assert answer.status == status
    assert len(engine.requests) == (status == 200)
    if code:
        assert answer.error["code"] == code
        assert f"{body['model']} is not active: this Spark serves model." in answer.error["message"]
        assert answer.error["message"].endswith("ansible-playbook switch.yml -e to=other")


def test_no_engine_is_a_503(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    edge.admin_route("disable server demo/engine")
    assert edge.ask("GET", "/v1/models").error["code"] == "nothing_started"
    answer = edge.ask("POST", CHAT, question())
    assert (answer.status, answer.error["code"]) == (503, "model_not_active")
    assert "this Spark serves no model." in answer.error["message"]


def test_a_large_body_is_refused_with_and_without_its_length(start: Start, engine: ScriptedEngine) -> None:
    edge = start(limits={"body_mib": 1})
    large = b'{"model": "model", "messages": "' + b"x" * (1 << 20) + b'"}'
    # The answer comes before the body: a client that sends on is cut.
    connection = edge.connect()
    connection.putrequest("POST", CHAT)
    connection.putheader("Authorization", f"Bearer {KEY}")
    connection.putheader("Content-Length", str(len(large)))
    connection.endheaders()
    declared = connection.getresponse()
    assert (declared.status, json.loads(declared.read())["error"]["code"]) == (413, "body_too_large")
    connection.close()
    connection = edge.connect()
    connection.request("POST", CHAT, iter([large]), {"Authorization": f"Bearer {KEY}"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert engine.heads == []


@pytest.mark.parametrize("length", ["16777217", "4294967296", "1099511627776"])
def test_a_large_length_is_refused_before_the_body(start: Start, length: str, engine: ScriptedEngine) -> None:
    assert start().ask("POST", CHAT, headers={"Content-Length": length}).error["code"] == "body_too_large"
    assert engine.heads == []


def test_a_large_header_is_refused(start: Start) -> None:
    edge = start(limits={"header_kib": 4})
    assert edge.ask("GET", "/v1/models", headers={"X-More": "x" * 5000}).error["code"] == "header_too_large"


def test_a_dripping_header_is_cut(start: Start) -> None:
    edge = start(tls="off", limits={"header_timeout_s": 1})
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", edge.port), timeout=LIMIT_S) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        client.settimeout(0.2)
        received = b""
        # Each line comes within the limit: a limit that began anew with each would never cut.
        while time.monotonic() < began + LIMIT_S:
            try:
                client.sendall(b"X: y\r\n")
                part = client.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            received += part
            if not part:
                break
    assert received.startswith(b"HTTP/1.1 408")
    assert 0.8 < time.monotonic() - began < LIMIT_S


def test_one_request_too_many_in_a_minute_is_refused(start: Start) -> None:
    edge = start(limits={"requests_per_minute": 5})
    assert [edge.ask("GET", "/v1/models").status for _ in range(5)] == [200] * 5
    answer = edge.ask("GET", "/v1/models")
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "30"
    # The limit is a key's, not everybody's.
    edge.admin(f"add map {edge.files.keys} {'0' * 64} bob")
    assert edge.ask("GET", "/health").status == 200


def test_the_log_has_who_and_which_model_and_no_content(edge: RunningEdge) -> None:
    lines = []
    for ask in (
        lambda: edge.ask("POST", CHAT, question()),
        lambda: edge.ask("POST", CHAT, question(model="SECRET MODEL")),
        lambda: edge.ask("GET", "/SECRET/path", headers={"User-Agent": "SECRET"}),
    ):
        ask()
        # HAProxy has several threads, which do not wait for each other with their lines.
        lines.append(edge.logged())
    assert "who=ada model=model path=/v1/chat/completions status=200" in lines[0]
    assert "who=ada model=- path=/v1/chat/completions status=200" in lines[1]
    assert "who=- model=- path=- status=404" in lines[2]
    assert "SECRET" not in "".join(lines)
    assert KEY not in "".join(lines)


def test_the_certificate_is_of_the_authority_and_old_tls_is_refused(edge: RunningEdge) -> None:
    openssl = [shutil.which("openssl") or "openssl", "s_client", "-connect", f"127.0.0.1:{edge.port}", "-CAfile"]
    command = [*openssl, str(edge.folder / "ca.crt"), "-verify_return_error", "-verify_hostname", "spark1.local"]

    def handshake(*more: str) -> str:
        done = subprocess.run([*command, *more], input="", capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "Verify return code: 0 (ok)" in handshake("-alpn", "h2")
    assert "ALPN protocol: h2" in handshake("-alpn", "h2")
    assert "Verify return code: 0 (ok)" in handshake("-tls1_2")
    assert "Cipher is (NONE)" in handshake("-tls1_1", "-cipher", "ALL:@SECLEVEL=0")


def test_metrics_have_an_address_of_their_own(start: Start, engine: ScriptedEngine) -> None:
    engine.counters["vllm:num_requests_running"] = 3.0
    from loopback import held_port  # noqa: PLC0415

    port = held_port()
    edge = start(tls="off", metrics_from=["127.0.0.1"], metrics_port=port)
    edge.port, api = port, edge.port
    assert edge.ask("GET", "/metrics", key=None).body == b"vllm:num_requests_running 3.0\n"
    assert b"haproxy_process_current_connections" in edge.ask("GET", "/metrics/edge", key=None).body
    assert edge.ask("GET", "/v1/models").status == 404
    edge.port = api
    assert edge.ask("GET", "/metrics").status == 404


def test_the_program_is_there() -> None:
    assert Path(haproxy()).exists()
