"""Gates against the logs that the real engine printed, and against responses with one fault each."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import loader
from vllm_spark.verify import runner
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import fabric as fabric_gate
from vllm_spark.verify.gates import log as log_gate
from vllm_spark.verify.gates import ready

LOGS = DATA / "engine-logs"
LOG_GATES = {gate["id"]: gate for gate in loader.load("gemma-4-26b-a4b-nvfp4-patched").document["gates"]["log"]}


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text(errors="replace").splitlines()


# gate, a log of the real engine, whether it passes, a part of the observed value
ON_REAL_LOGS = [
    ("nvfp4-moe", "26b-a4b-nvfp4-marlin.serve.log", True, "MARLIN"),
    ("nvfp4-moe", "31b-nvfp4-marlin.log", False, "no line matches"),
    ("attention", "31b-nvfp4.not-enough-free-memory.serve.log", True, "TRITON_ATTN"),
    ("no-unknown-variable", "31b-nvfp4.not-enough-free-memory.serve.log", False, "VLLM_ATTENTION_BACKEND"),
    ("no-unknown-variable", "26b-a4b-nvfp4-marlin.serve.log", True, "not in the log"),
]


@pytest.mark.parametrize(("gate", "log", "holds", "says"), ON_REAL_LOGS)
def test_log_gates_on_real_logs(gate: str, log: str, holds: bool, says: str) -> None:
    verdict = log_gate.judge_entry(LOG_GATES[gate], lines(log))
    assert (verdict.ok, says in verdict.observed) == (holds, True), verdict
    assert holds or (paths.RUNBOOKS / f"{verdict.runbook}.md").is_file()


UNKNOWN = "Unknown vLLM environment variable detected: "


@pytest.mark.parametrize(
    ("variables", "passes"),
    [(["VLLM_RPC_TIMEOUT"], True), (["VLLM_ATTENTION_BACKEND"], False), ([], True), (None, False)],
)
def test_only_variables_of_the_launch_are_judged(variables: list[str] | None, passes: bool) -> None:
    """The image of v0.22.0 sets four variables that it does not know itself."""
    log = [f"{UNKNOWN}{name}" for name in ("VLLM_BUILD_COMMIT", "VLLM_IMAGE_TAG", "VLLM_ATTENTION_BACKEND")]
    verdict = log_gate.judge_entry(LOG_GATES["no-unknown-variable"], log, variables=variables)
    assert verdict.ok is passes
    if variables:
        assert ("VLLM_ATTENTION_BACKEND" in str(verdict)) is not passes


def test_the_request_has_the_names_of_the_launch_s_variables(resolve: Callable[..., Spec]) -> None:
    spec = dataclasses.replace(resolve(), secrets=("VLLM_API_KEY",))
    assert runner.gate_request(spec, "").variables == sorted({*spec.recipe.get("env", {}), "VLLM_API_KEY"})


def test_a_candidate_is_not_the_chosen_kernel() -> None:
    line = "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['VLLM_CUTLASS', 'MARLIN']."
    verdict = log_gate.judge_entry(LOG_GATES["nvfp4-moe"], [line])
    assert str(verdict).startswith("the log says VLLM_CUTLASS — expected: MARLIN. Fix: ")


@pytest.mark.parametrize(("printed", "holds"), [("146,240", True), ("4,095", False), ("none", False)])
def test_at_least_parses_numbers_of_the_engine(printed: str, holds: bool) -> None:
    gate = {"id": "kv", "pattern": r"size: (?P<value>\S+) tokens", "at_least": 4096, "why": "it must fit"}
    assert log_gate.judge_entry(gate, [f"GPU KV cache size: {printed} tokens"]).ok is holds


@pytest.fixture
def gate_request(resolve: Callable[..., Spec]) -> GateRequest:
    spec = resolve()
    return runner.gate_request(spec, launch.fingerprint(spec))


@pytest.fixture
def log(gate_request: GateRequest) -> list[str]:
    return [f"vllm-spark: launch {gate_request.launch}"]


def reply(status: int, body: Any) -> dict[str, Any]:
    return {"status": status, "json": body, "text": "", "seconds": 0.1}


def chat_reply(text: str) -> dict[str, Any]:
    return reply(200, {"choices": [{"message": {"content": text}}]})


# The response of the printed address, with what the action adds.
OUTSIDE = {**reply(200, None), "url": "http://spark1:8000", "source": "from this machine"}


@pytest.fixture
def healthy(gate_request: GateRequest) -> dict[str, Any]:
    """Return the probe of a healthy server."""
    card = {
        "id": gate_request.served_name,
        "root": gate_request.model_root,
        "max_model_len": gate_request.max_model_len,
    }
    return {
        "unit": {"ActiveState": "active", "NRestarts": "0"},
        "running_s": 100.0,
        "container": {"image": gate_request.image, "labels": {"vllm-spark.launch": gate_request.launch}},
        "responses": {
            "ready": reply(200, {"choices": [{"text": "2"}]}),
            "models": reply(200, {"data": [card]}),
            "version": reply(200, {"version": gate_request.engine_version + "+cu130"}),
            "unknown-model": reply(404, {"error": {}}),
            "answer-0": chat_reply("Paris"),
            "answer-1": chat_reply("437\n"),
            "reach": OUTSIDE,
        },
    }


def test_a_healthy_server_passes_every_gate(gate_request: GateRequest, healthy: dict[str, Any], log: list[str]) -> None:
    verdicts = runner.judge(gate_request, healthy, log)
    assert [verdict.gate for verdict in verdicts] == ["ready", "identity", "answer", "answer", "reach"]
    assert all(verdict.ok for verdict in verdicts)


# name -> (the id of the request, its faulty response, the gate that must fail, a part of its message)
FAULTS = {
    "refused": (
        "ready",
        {"error": "ConnectionRefusedError: [Errno 111]", "seconds": 0.0},
        "ready",
        "ConnectionRefused",
    ),
    "engine dead": ("ready", reply(500, {"error": {}}), "ready", "status 500"),
    "no choices": ("ready", reply(200, {"choices": []}), "ready", "no token"),
    "not json": ("ready", {**reply(200, None), "text": "<html>"}, "ready", "no token"),
    "another model": (
        "models",
        reply(200, {"data": [{"id": "qwen", "root": "/q"}]}),
        "identity",
        "served name is qwen",
    ),
    "no model": ("models", reply(200, {"data": []}), "identity", "served name is None"),
    "another engine": ("version", reply(200, {"version": "0.19.1"}), "identity", "engine version is 0.19.1"),
    "answers any name": ("unknown-model", reply(200, {"choices": [{}]}), "identity", "unknown model is 200"),
    "wrong answer": ("answer-0", chat_reply("!!!!!!!!"), "answer", "got '!!!!!!!!'"),
    "empty answer": ("answer-1", chat_reply(""), "answer", "expected: 437"),
    "null content": ("answer-1", reply(200, {"choices": [{"message": {"content": None}}]}), "answer", "got ''"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_its_gate_catches_a_fault(
    name: str, gate_request: GateRequest, healthy: dict[str, Any], log: list[str]
) -> None:
    id_, fault, gate, says = FAULTS[name]
    probe = copy.deepcopy(healthy)
    probe["responses"][id_] = fault
    verdicts = runner.judge(gate_request, probe, log)
    missed = [verdict for verdict in verdicts if verdict.ok is False]
    assert {verdict.gate for verdict in missed} == {gate}
    assert any(says in str(verdict) for verdict in missed), missed
    assert verdicts[-1].gate == gate, "a gate after the first miss was judged"


@pytest.mark.parametrize("field", ["image", "launch"])
def test_a_container_of_another_launch_fails(
    field: str, gate_request: GateRequest, healthy: dict[str, Any], log: list[str]
) -> None:
    verdicts = runner.judge(dataclasses.replace(gate_request, **{field: "other"}), healthy, log)
    assert [verdict.id for verdict in verdicts if verdict.ok is False] == [field]


def test_an_image_that_is_no_release_may_answer_any_version(
    gate_request: GateRequest, healthy: dict[str, Any], log: list[str]
) -> None:
    healthy["responses"]["version"] = reply(200, {"version": "0.1.dev20610+g4b276a363"})
    published = dataclasses.replace(gate_request, release=False)
    assert [verdict.gate for verdict in runner.judge(published, healthy, log) if verdict.ok is False] == []
    assert [verdict.gate for verdict in runner.judge(gate_request, healthy, log) if verdict.ok is False] == ["identity"]


def test_a_rotated_journal_is_unknown_and_not_a_failure(gate_request: GateRequest, healthy: dict[str, Any]) -> None:
    verdicts = runner.judge(
        dataclasses.replace(gate_request, log=[LOG_GATES["nvfp4-moe"]]), healthy, ["a line of today"]
    )
    assert [verdict.ok for verdict in verdicts if verdict.gate == "log"] == [None]
    assert not [verdict for verdict in verdicts if verdict.ok is False]


def test_every_request_has_a_timeout(gate_request: GateRequest) -> None:
    assert all(request["timeout_s"] > 0 for request in runner.requests(gate_request))


def test_the_logs_exist() -> None:
    assert {Path(log).name for _, log, _, _ in ON_REAL_LOGS} <= {file.name for file in LOGS.iterdir()}


# As NCCL prints it (src/transport/net_ib, src/transport/net.cc of 2.28); no log of a pair on InfiniBand is at hand.
ON_IB = [
    "spark1:1277:1277 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.100.10<0>",
    "spark1:1277:1277 [0] NCCL INFO Using network IB",
    "spark1:1277:1300 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
]
ON_BOTH = [*ON_IB, "(RayWorkerProc pid=7) spark2:7:7 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0"]


@pytest.mark.parametrize(
    ("network", "printed", "holds", "says"),
    [
        ("IB", ON_IB, True, "NCCL uses NET/IB"),
        ("IB", lines("31b-fp8-tp2-ray.two-nodes.log"), False, "NCCL uses NET/Socket"),
        ("Socket", lines("31b-fp8-tp2-ray.two-nodes.log"), True, "NCCL uses NET/Socket"),
        ("IB", ON_BOTH, False, "NCCL uses NET/IB, NET/Socket"),
        ("IB", lines("31b-bf16.log"), False, "NCCL names no network"),
    ],
)
def test_the_fabric_gate(network: str, printed: list[str], holds: bool, says: str, gate_request: GateRequest) -> None:
    whole = [f"vllm-spark: launch {gate_request.launch}", *printed]
    verdicts = list(fabric_gate.judge(dataclasses.replace(gate_request, fabric=network), {}, whole))
    assert [(verdict.ok, verdict.observed) for verdict in verdicts] == [(holds, says)]
    assert holds or (paths.RUNBOOKS / f"{verdicts[0].runbook}.md").is_file()


def test_the_fabric_gate_needs_a_network_and_a_whole_log(gate_request: GateRequest, log: list[str]) -> None:
    assert not list(fabric_gate.judge(dataclasses.replace(gate_request, fabric=None), {}, log))
    assert not list(fabric_gate.judge(dataclasses.replace(gate_request, fabric="IB"), {}, ON_IB))


def test_each_worker_is_judged_by_its_own_log(gate_request: GateRequest) -> None:
    """One rank of four falls back alone. Over Ray a worker's log has no line of NCCL."""
    request = dataclasses.replace(gate_request, fabric="IB", rank=2)
    start = f"vllm-spark: launch {gate_request.launch}"
    socket = lines("31b-fp8-tp2-ray.two-nodes.log")
    judged = {
        name: [verdict.ok for verdict in runner.rounds(request)[0].judges[1](request, {}, [start, *printed])]
        for name, printed in {"IB": ON_IB, "Socket": socket, "none": ["ray start --block"]}.items()
    }
    assert judged == {"IB": [True], "Socket": [False], "none": []}


@pytest.fixture
def worker(gate_request: GateRequest) -> tuple[GateRequest, dict[str, Any]]:
    """Return the request for a worker, and a probe of a good one."""
    labels = {"vllm-spark.launch": gate_request.launch}
    container = {"state": "running", "image": gate_request.image, "labels": labels}
    return dataclasses.replace(gate_request, rank=1), {
        "responses": {"reach": OUTSIDE},
        "container": container,
        "state": {"state": "serving"},
    }


def test_a_worker_is_judged_by_its_container_and_its_head(worker: tuple[GateRequest, dict[str, Any]]) -> None:
    rank, probe = worker
    assert ready.is_ready({**probe, "responses": {}})
    assert [verdict.line() for verdict in runner.judge(rank, probe, [])] == [
        "✓ ready rank: rank 1 runs and its head serves",
        "✓ reach address: http://spark1:8000 answers from this machine",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"state": {"state": "wanted", "why": "no spark1"}},
            "state of rank 1 is wanted (no spark1)",
        ),
        ({"state": {}}, "state of rank 1 is None"),
        ({"container": None}, "container of rank 1 is None"),
        ({"container": {"state": "paused", "image": "other"}}, "image of rank 1 is other"),
    ],
)
def test_a_worker_that_does_not_serve_fails(
    change: dict[str, Any], says: str, worker: tuple[GateRequest, dict[str, Any]]
) -> None:
    rank, probe = worker
    changed = {**probe, "responses": {}, **change}
    assert not ready.is_ready(changed)
    verdicts = runner.judge(rank, changed, [])
    assert says in "\n".join(str(verdict) for verdict in verdicts)
    assert all((paths.RUNBOOKS / f"{verdict.runbook}.md").is_file() for verdict in verdicts)
