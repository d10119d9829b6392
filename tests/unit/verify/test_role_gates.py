"""The gates of the roles embed and rerank, against a sound server and one that is wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fakes.faulty_server import VECTOR, MockServer
from fakes.gate_bench import parsed
from fakes.gate_requests import gate_request
from vllm_spark.node.engine_api import CHAT, EMBED, PROOFS, RERANK
from vllm_spark.recipe import roles
from vllm_spark.verify import registry, report, runner, startup
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import key, ready
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.verdict import Verdict

OPTIONS: Mapping[str, Mapping[str, Any]] = {EMBED: {"dimensions": VECTOR}, RERANK: {}}

Change = Callable[[str, Any], Any]


def request_of(role: str, **options: Any) -> GateRequest:
    return gate_request(role=role, gates={role: {**OPTIONS[role], **options}}, api_key=True)


def responses_of(request: GateRequest, change: Change = lambda path, document: document) -> dict[str, Any]:
    """Return what a sound server answers to every request of the gates, changed."""
    server = MockServer(request.served_name, request.model_root, request.engine_version, request.max_model_len)
    found = {}
    for each in runner.requests(request):
        response = parsed(each, server.answer(each["path"], each.get("body") or {}))
        found[each["id"]] = {**response, "json": change(each["path"], json.loads(json.dumps(response.get("json"))))}
    return found


def judged(request: GateRequest, responses: Mapping[str, Any]) -> list[Verdict]:
    labels = {"vllm-spark.launch": request.launch}
    container = {"image": request.image, "labels": labels}
    probe: Any = {"container": container, "responses": responses, "unit": {}, "running_s": 1.0, "lines": []}
    return runner.judge(request, probe, [f"vllm-spark: launch {request.launch}"])


@pytest.mark.parametrize("role", OPTIONS)
def test_a_sound_server_of_a_role_passes_its_gates_and_none_of_chats(role: str) -> None:
    request = request_of(role)
    verdicts = judged(request, responses_of(request))
    assert [str(verdict) for verdict in verdicts if verdict.ok is False] == []
    assert list(dict.fromkeys(verdict.gate for verdict in verdicts)) == ["ready", "identity", "key", role]
    paths = {one["path"] for one in runner.requests(request)}
    assert paths == {PROOFS[role].path, "/v1/models", "/version", key.INVOCATIONS}


def test_a_brief_verification_leaves_the_gate_of_the_role_out() -> None:
    assert EMBED not in [each.name for each in runner.rounds(request_of(EMBED), thorough=False)]
    assert EMBED in [each.name for each in runner.rounds(request_of(EMBED))]


def of_vectors(change: Callable[[list[list[float]]], list[Any]]) -> Change:
    """Return a change of every answer with three vectors."""

    def changed(path: str, document: Any) -> Any:
        if path == PROOFS[EMBED].path and len(document.get("data", ())) == 3:
            vectors = change([entry["embedding"] for entry in document["data"]])
            return {**document, "data": [{"embedding": vector} for vector in vectors]}
        return document

    return changed


def of_results(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    """Return a change of every order of three documents."""

    def changed(path: str, document: Any) -> Any:
        results = document.get("results", ()) if path == PROOFS[RERANK].path else ()
        return {**document, "results": change(results)} if len(results) == 3 else document

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_vectors(lambda vectors: [vector[:32] for vector in vectors]), "a vector has 32 numbers — expected: 64"),
        (of_vectors(lambda vectors: [[3 * n for n in vector] for vector in vectors]), "the norms are 3.000"),
        (of_vectors(lambda vectors: [[0.0] * 64 for _ in vectors]), "a vector is 0"),
        (of_vectors(lambda vectors: [[None, *vectors[0][1:]], *vectors[1:]]), "not finite, the first is None"),
        (of_vectors(lambda vectors: [vectors[1], vectors[0], vectors[2]]), "one text twice has the similarity 0."),
        (of_vectors(lambda vectors: [vectors[0], vectors[2], vectors[1]]), "a near text has the similarity 0."),
        (of_vectors(lambda vectors: [vectors[0]] * 3), "expected: the near text nearer"),
        (of_vectors(lambda vectors: vectors[:2]), "2 and 1 vectors — expected: 3 and 1"),
        (of_vectors(lambda vectors: ["AAAA" for _ in vectors]), "is not a list of numbers"),
    ],
)
def test_a_faulty_vector_fails(change: Change, said: str) -> None:
    request = request_of(EMBED)
    failed = [verdict for verdict in judged(request, responses_of(request, change)) if verdict.ok is False]
    assert [verdict.gate for verdict in failed] == [EMBED] * len(failed)
    assert said in str(failed[0])
    assert "docs/runbooks/embeddings.md" in str(failed[0])


def test_a_model_without_norm_says_so_in_its_recipe() -> None:
    request = request_of(EMBED, normalized=False)
    longer = of_vectors(lambda vectors: [[3 * number for number in vector] for vector in vectors])
    assert all(verdict.ok for verdict in judged(request, responses_of(request, longer)) if verdict.gate == EMBED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_results(lambda results: sorted(results, key=lambda one: one["index"])), "not sorted by its scores"),
        (of_results(lambda results: [{**one, "relevance_score": 0.5} for one in results]), "comes first"),
        (of_results(lambda results: [{**one, "index": 2 - one["index"]} for one in results]), "document 2 comes first"),
        (of_results(lambda results: [results[0]] * 3), "the documents of the answer are [0, 0, 0]"),
        (of_results(lambda results: [{**one, "relevance_score": None} for one in results]), "not finite"),
        (of_results(lambda results: [{**one, "index": "0"} for one in results]), "a result without an index"),
        (of_results(lambda results: []), "an answer without a score"),
    ],
)
def test_a_faulty_order_fails(change: Change, said: str) -> None:
    request = request_of(RERANK)
    failed = [verdict for verdict in judged(request, responses_of(request, change)) if verdict.ok is False]
    assert {verdict.gate for verdict in failed} == {RERANK}
    assert said in "\n".join(map(str, failed))


@pytest.mark.parametrize("role", OPTIONS)
def test_a_server_without_a_vector_or_score_is_not_ready(role: str) -> None:
    request = request_of(role)
    word = PROOFS[role].word
    refused = {"status": 404, "json": {"error": {"message": "Not Found"}}, "seconds": 0.1}
    probe: Any = {"container": None, "responses": {"ready": refused}, "unit": {}, "running_s": 1.0, "lines": []}
    (verdict,) = ready.judge(request, probe, [])
    assert f"no {word} from {request.served_name}: status 404: 'Not Found' — expected: one {word}" in str(verdict)
    watch = startup.StartupWatch(60, word)
    assert watch.add(probe) == "refused"
    answered: Probe = {**probe, "responses": {"ready": responses_of(request)["ready"]}}
    assert watch.add(answered) == "ready"
    assert f"gave no {word} within 60 s" in str(startup.overdue(startup.StartupWatch(60, word), "vllm@x.service", "s1"))


@pytest.mark.parametrize("role", OPTIONS)
def test_the_closing_line_has_a_request_of_the_role(role: str) -> None:
    request = request_of(role)
    assert f":8000/v1{report.EXAMPLES[role][0]} -H" in report.closing(request, [], "192.0.2.1")
    assert f"/v1{report.EXAMPLES[role][0]}" == PROOFS[role].path


def test_gates_json_of_a_chat_is_as_before_there_was_a_role() -> None:
    assert "role" not in gate_request().to_json()
    assert GateRequest.from_json(gate_request().to_json()).role == CHAT
    assert GateRequest.from_json(request_of(RERANK).to_json()).role == RERANK


def test_each_optional_gate_of_another_role_has_its_name_and_the_rules_know_which_all_have() -> None:
    for gate in registry.GATES:
        if gate.roles == {CHAT}:
            assert gate.name not in (*roles.COMMON_GATES, *PROOFS)
        elif len(gate.roles) == 1:
            assert gate.roles == {gate.name}
    fields = {
        name
        for gate in registry.GATES
        if gate.roles == {*PROOFS} and gate.schema
        for name in (gate.name, *gate.more_fields)
    }
    assert fields == {*roles.COMMON_GATES}
