"""The gate failover through real routers: LiteLLM and nginx before a healthy mock engine and a healthy other model.

`make router` runs them. tests/unit/verify/test_gates_faulty_replies.py covers the possible behaviours of a router; this
file covers the real behaviour of these two.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import routers
import yaml

import loopback
from fakes.faulty_server import MockServer, Reply, refusal, serving
from fakes.gate_requests import gate_request
from project_files import load_module
from vllm_spark.core import paths
from vllm_spark.verify.gates import failover
from vllm_spark.verify.verdict import Verdict

HERE = Path(__file__).parent
LITELLM: dict[str, Any] = yaml.load((HERE / "litellm.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
NGINX: dict[str, Any] = yaml.load((HERE / "nginx.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
LITELLM_CASES = [(group, name) for group, described in LITELLM.items() for name in described["cases"]]

ENGINE_KEY, ROUTER_KEY, KEY_ENV = "key-of-the-engine", "sk-key-of-the-router", "ROUTER_KEY"

vllm_probe = load_module("vllm_probe")

Server = tuple[str, int]


def other_tokens(text: str) -> int:
    return len(text) // 4 + 2


def mock(name: str, **how: Any) -> MockServer:
    return MockServer(name, root="/models/it", version="0.20.2", max_model_len=4096, **how)


NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def without_tools(engine: MockServer) -> Callable[[str, Mapping[str, Any]], Reply]:
    """Return the answers of an engine whose recipe has no tool parser."""
    return lambda path, body: refusal(400, NO_PARSER) if "tools" in body else engine.answer(path, body)


class Servers:
    """The servers behind a router. Each starts at its first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[tuple[str, str], Server] = {}

    def at(self, place: str, name: str) -> Server:
        """Return (address, port) of a server: engine, twin and same-name serve the model `name`."""
        own = (place, name if place in ("engine", "no-tools", "twin", "same-name") else "")
        if own not in self._started:
            self._started[own] = self._start(place, name)
        return self._started[own]

    def url(self, place: str, name: str) -> str:
        return "http://{}:{}".format(*self.at(place, name))

    def _start(self, place: str, name: str) -> Server:
        if place == "nobody":
            return loopback.ADDRESS, self._stack.enter_context(loopback.refusing_port())
        refused = {"busy": (429, "Too many requests"), "broken": (500, "EngineCore died")}
        healthy = {
            "engine": mock(name),
            "twin": mock(name, seed=5),
            "same-name": mock(name, tokens_per_text=other_tokens),
            "no-tools": mock(name),
            "qwen": mock("qwen", tokens_per_text=other_tokens),
        }
        if place in refused:
            return self._stack.enter_context(serving(lambda path, body: refusal(*refused[place])))
        answer = without_tools(healthy[place]) if place == "no-tools" else healthy[place].answer
        key = ENGINE_KEY if place in ("engine", "no-tools") else ""
        return self._stack.enter_context(serving(answer, key))


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@dataclass(frozen=True)
class Seen:
    """One verification: the verdicts of the gate, and every response."""

    verdicts: list[Verdict]
    responses: Mapping[str, Any]

    def missed(self) -> list[str]:
        """Return every verdict that is not ✓, including those without a result."""
        return [verdict.id for verdict in self.verdicts if verdict.ok is not True]


def verified(engine: Server, name: str, through: str, asked_as: str = "", key_env: str = KEY_ENV) -> Seen:
    """Send the requests of the gate as the module does on the host, and judge the responses."""
    router = {"url": through, "key": key_env, **({"model": asked_as} if asked_as else {})}
    request = gate_request(served_name=name, gates={"failover": {}}, through=router)
    questions = list(failover.build_requests(request))
    responses = vllm_probe.send_all(engine, questions, ENGINE_KEY, {"VLLM_API_KEY": ENGINE_KEY, KEY_ENV: ROUTER_KEY})
    probe: Any = {"responses": responses}
    seen = Seen(list(failover.judge(request, probe, [])), responses)
    print("\n".join(verdict.line() for verdict in seen.verdicts))
    return seen


def judge(seen: Seen, caught: str | None, *, tools: bool = True) -> None:
    """Check the verdicts. `tools`: the engine has a tool parser; without one its own verdict has no result."""
    assert seen.missed() == [*([] if tools else ["engine-tools"]), *([caught] if caught else [])]
    held = [verdict.id for verdict in seen.verdicts if verdict.ok]
    engine = ["engine-tokenizer", "engine-counter", *(["engine-tools"] if tools else [])]
    assert held[: len(engine)] == engine
    assert held[len(engine) :] == ["router-tokenizer", "router-counter", "router-tools"] or caught
    reported = json.dumps([verdict.to_json() for verdict in seen.verdicts]) + json.dumps(seen.responses)
    assert ROUTER_KEY not in reported
    assert ENGINE_KEY not in reported


# --- LiteLLM


def model(servers: Servers, case: str, asked_as: str, server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of one server of a model in LiteLLM's config."""
    upstream = "qwen" if server["at"] == "qwen" else case
    params = {key: value for key, value in server.items() if key not in ("at", "prefix")}
    return {
        "model_name": asked_as,
        "litellm_params": {
            "model": f"{server.get('prefix', 'hosted_vllm')}/{upstream}",
            "api_base": f"{servers.url(server['at'], case)}/v1",
            "api_key": ENGINE_KEY,
            **params,
        },
    }


def litellm_config(group: Mapping[str, Any], servers: Servers) -> dict[str, Any]:
    models = [
        model(servers, name, case.get("asked_as", name), server)
        for name, case in group["cases"].items()
        for server in case["servers"]
    ]
    models.append(model(servers, "qwen", "qwen", {"at": "qwen"}))
    models += [model(servers, "qwen", name, {"at": "qwen"}) for name in group.get("also_qwen", [])]
    settings = {**group["settings"], "general_settings": {"master_key": ROUTER_KEY}}
    return {"model_list": models, **settings}


@pytest.fixture(scope="module")
def litellms(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Yield the URL of the LiteLLM of a group of cases. One runs at a time: a start takes seconds and 300 MB."""
    with ExitStack() as stack:
        running: dict[str, str] = {}

        def url(group: str) -> str:
            if group not in running:
                stack.close()
                running.clear()
                config = litellm_config(LITELLM[group], servers)
                running[group] = stack.enter_context(routers.litellm(config, tmp_path_factory.mktemp(group)))
            return running[group]

        yield url


@pytest.mark.parametrize(("group", "name"), LITELLM_CASES)
def test_litellm(group: str, name: str, litellms: Callable[[str], str], servers: Servers) -> None:
    case = LITELLM[group]["cases"][name]
    place = case.get("engine", "engine")
    seen = verified(servers.at(place, name), name, litellms(group), case.get("asked_as", ""))
    judge(seen, case.get("caught"), tools=place != "no-tools")


def test_the_example_without_fallback_returns_the_refusal(servers: Servers, tmp_path: Path) -> None:
    example = yaml.load((paths.ROOT / "docs/examples/litellm.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    (entry,) = example["model_list"]
    with serving(lambda path, body: refusal(400, NO_PARSER)) as (address, port):
        entry["litellm_params"] |= {"api_base": f"http://{address}:{port}/v1", "api_key": ENGINE_KEY}
        example["model_list"].append(model(servers, "qwen", "qwen", {"at": "qwen"}))
        example["general_settings"]["master_key"] = ROUTER_KEY
        with routers.litellm(example, tmp_path) as url:
            status, text = ask_with_tools(url, entry["model_name"])
    assert status == 400
    # LiteLLM quotes the engine's reply, with its quotation marks escaped.
    assert "requires --enable-auto-tool-choice and --tool-call-parser" in text


def ask_with_tools(url: str, name: str) -> tuple[int, str]:
    """Return status and text of a chat request with `tool_choice: auto`, as field report 004's client sends it."""
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "auto"}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ROUTER_KEY}"}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def test_litellm_requires_its_key(litellms: Callable[[str], str], servers: Servers) -> None:
    seen = verified(servers.at("engine", "healthy"), "healthy", litellms("every-name"), key_env="")
    judge(seen, "router-model")


def test_litellm_is_the_one_that_is_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    (metadata,) = routers.litellm_packages().glob("litellm-*.dist-info")
    installed = metadata.name.removesuffix(".dist-info")
    assert f"{installed.replace('-', '==')} " in routers.LITELLM.read_text(encoding="utf-8")
    print_version(capsys, installed)


def print_version(capsys: pytest.CaptureFixture[str], version: str) -> None:
    """Print the version of the router that was tested."""
    with capsys.disabled():
        print(f" [{version}] ", end="")


# --- nginx


def test_nginx_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([routers.nginx_binary(), "-v"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print_version(capsys, done.stderr.strip())


@pytest.mark.parametrize("name", NGINX)
def test_nginx(name: str, servers: Servers, tmp_path: Path) -> None:
    case, served = NGINX[name], f"nginx-{name}"
    lines = case["http"]
    for place in ("engine", "qwen", "same-name", "twin", "nobody", "broken"):
        if f"{{{place}}}" in lines:
            lines = lines.replace(f"{{{place}}}", "{}:{}".format(*servers.at(place, served)))
    with routers.nginx(lines, tmp_path) as url:
        # nginx has no key and forwards the client's.
        through = url + case.get("path", "")
        seen = verified(servers.at("engine", served), served, through, key_env="VLLM_API_KEY")
    judge(seen, case.get("caught"))
