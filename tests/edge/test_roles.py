"""A chat, a server for embeddings and a reranker behind one address: paths by role, one list, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from listed_client import answers, said
from test_clients import client

from conftest import MODELS, Three
from fakes.faulty_server import vector
from loopback import held_port
from vllm_spark.node import edge_quota
from vllm_spark.recipe.engine_paths import BY_ROLE

CHAT, EMBEDDINGS, RERANK = (paths[0] for paths in BY_ROLE.values())


def test_each_path_reaches_the_model_of_its_role(starts: Callable[..., Three]) -> None:
    three = starts()
    assert three.ask(CHAT, "model", messages=[]).status == 200
    answer = three.ask(EMBEDDINGS, MODELS["vectors"], input="bread")
    assert (answer.status, json.loads(answer.body)["data"][0]["embedding"]) == (200, vector("bread"))
    for path in BY_ROLE["rerank"]:
        answer = three.ask(path, MODELS["sorter"], query="bread", documents=["law", "bread"])
        assert (answer.status, json.loads(answer.body)["results"][0]["index"]) == (200, 1)
    assert [len(engine.requests) for engine in three.of.values()] == [1, 1, len(BY_ROLE["rerank"])]


def test_one_list_has_the_models_of_all_roles_that_are_up(starts: Callable[..., Three]) -> None:
    three = starts()
    listed = [one["id"] for one in json.loads(three.edge.ask("GET", "/v1/models").body)["data"]]
    assert listed == list(MODELS.values())
    three.engines.stop("demo")
    three.edge.wait_for("demo", "DOWN")
    listed = [one["id"] for one in json.loads(three.edge.ask("GET", "/v1/models").body)["data"]]
    assert listed == [MODELS["vectors"], MODELS["sorter"]]
    refused = three.ask(CHAT, "model", messages=[])
    assert (refused.status, refused.error["code"]) == (503, "model_not_active")
    assert "serves qwen3-embedding-0.6b, qwen3-reranker-0.6b." in refused.error["message"]
    # An unknown model of a role that has no server.
    refused = three.ask(CHAT, "nobody", messages=[])
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "deployment", "said_"),
    [
        (CHAT, "vectors", "This model makes vectors of texts: ask /v1/embeddings."),
        (CHAT, "sorter", "This model sorts documents: ask /v1/rerank."),
        (EMBEDDINGS, "demo", "This model chats: ask /v1/chat/completions."),
        (RERANK, "vectors", "This model makes vectors of texts: ask /v1/embeddings."),
    ],
)
def test_a_path_of_another_role_is_refused_with_the_right_one(
    path: str, deployment: str, said_: str, starts: Callable[..., Three]
) -> None:
    three = starts()
    refused = three.ask(path, MODELS[deployment], messages=[])
    assert (refused.status, refused.error["code"], refused.error["message"]) == (400, "wrong_role", said_)
    assert [engine.requests for engine in three.of.values()] == [[], [], []]
    three.engines.stop(deployment)
    three.edge.wait_for(deployment, "DOWN")
    assert three.ask(path, MODELS[deployment], messages=[]).status == 400


def test_a_request_without_a_model_goes_to_the_server_of_its_path(starts: Callable[..., Three]) -> None:
    three = starts()
    three.of["vectors"].streams = three.of["sorter"].streams = []
    assert three.ask(EMBEDDINGS, "an-adapter", input="a").status == 200
    assert three.ask(RERANK, "an-adapter", query="a", documents=["a"]).status == 200
    assert [len(engine.requests) for engine in three.of.values()] == [0, 1, 1]


def test_each_engine_has_its_figures(starts: Callable[..., Three]) -> None:
    port = held_port()
    three = starts(tls="off", metrics_from=["127.0.0.1"], metrics_port=port)
    for number, engine in enumerate(three.of.values(), 1):
        engine.counters["vllm:num_requests_running"] = float(number)
    three.edge.port = port

    def figure(question: str) -> tuple[int, bytes]:
        answer = three.edge.ask("GET", f"/metrics{question}", key=None)
        return answer.status, answer.body.split()[-1]

    assert [figure(f"?engine={name}") for name in three.of] == [(200, b"1.0"), (200, b"2.0"), (200, b"3.0")]
    assert figure("") == (200, b"1.0")
    assert [figure(f"?engine={name}")[0] for name in ("nobody", "")] == [503, 503]
    three.engines.stop("demo")
    three.edge.wait_for("demo", "DOWN")
    assert figure("?engine=demo")[0] == 503
    assert figure("") == figure("?engine=vectors") == (200, b"2.0")


def test_the_tokens_of_vectors_and_orders_count(starts: Callable[..., Three]) -> None:
    three = starts()
    three.ask(EMBEDDINGS, MODELS["vectors"], input="bread")
    three.ask(RERANK, MODELS["sorter"], query="bread", documents=["law"])
    lines = [line for line in three.edge.logged().splitlines() if " in_tokens=" in line]
    assert [dict(edge_quota.FIELD.findall(line))["in_tokens"] for line in lines][-1] == "9"
    assert all(edge_quota.cost(dict(edge_quota.FIELD.findall(line))) == 9 for line in lines)


def test_openai_python(starts: Callable[..., Three]) -> None:
    three = starts()
    models, embedded, wrong, other = said(client(three.edge, "roles"))
    assert models["models"] == sorted(MODELS.values())
    assert embedded["tokens"] == 9
    assert embedded["vectors"] == [pytest.approx(vector(text)) for text in ("bread at home", "a law")]
    assert three.of["vectors"].requests[0]["encoding_format"] == "base64"
    assert (wrong["raised"], wrong["status"], wrong["code"]) == ("BadRequestError", 400, "wrong_role")
    assert (other["raised"], other["message"]) == ("BadRequestError", "This model chats: ask /v1/chat/completions.")


def test_litellm(starts: Callable[..., Three]) -> None:
    three = starts()
    embedded, ordered = said(client(three.edge, "litellm_roles"))
    assert embedded["vectors"] == [pytest.approx(vector("bread at home"))]
    assert ordered["order"] == [1, 0]
    assert three.of["sorter"].requests[0]["path"] in BY_ROLE["rerank"]


def test_langchain(starts: Callable[..., Three]) -> None:
    three = starts()
    embedded, ordered = answers("langchain", three.edge)
    assert embedded["documents"] == [pytest.approx(vector(text)) for text in ("a law", "bread at home")]
    assert embedded["query"] == pytest.approx(vector("bread"))
    # Texts, and not numbers of another model's tokens.
    assert three.of["vectors"].requests[0]["input"] == ["a law", "bread at home"]
    assert [text for text, _ in ordered["found"]] == ["bread at home", "a law"]
    assert three.of["sorter"].requests[0]["path"] in BY_ROLE["rerank"]


def test_llamaindex(starts: Callable[..., Three]) -> None:
    three = starts()
    near, right = "how is bread, is bread", "how bread is made at home by hand"
    (answer,) = answers("llamaindex", three.edge)
    indexed, asked = three.of["vectors"].requests
    assert (len(indexed["input"]), asked["input"]) == (3, ["how is bread made"])
    assert (answer["found"], answer["kept"]) == ([near, right, "a law"], [right, near])
    assert three.of["sorter"].requests[0]["path"] == RERANK
