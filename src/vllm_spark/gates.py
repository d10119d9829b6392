"""Gates: what must hold before a deployment counts as serving. Pure: requests out, verdicts in.

plugins/modules/vllm_probe.py puts the questions to the engine from the box itself; what its replies mean
is decided here. A 200 of /health proves nothing: it does not ask the workers (vLLM v1/engine/async_llm.py,
check_health), so the first question is a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from vllm_spark import launch, pair
from vllm_spark.refusal import message
from vllm_spark.spec import Spec

READY, IDENTITY, LOG, FABRIC, ANSWER = "ready", "identity", "log", "fabric", "answer"

MARKS = {True: "✓", False: "✗", None: "—"}

# Asked where a recipe names no questions of its own: any model that makes sense knows it.
DEFAULT_ANSWERS = (
    {"ask": "What is the capital of France? Answer with one word.", "expect": "Paris"},
    {"ask": "What is 19 * 23? Answer with the number only.", "expect": "437"},
)
DEFAULT_ANSWER_TOKENS = 64

# A name no server has: one that answers it serves something else than it says.
UNKNOWN_MODEL = "vllm-spark-no-such-model"

READY_TIMEOUT_S = 30
# At 4 tok/s, the slowest that the seeds report, 64 tokens take 16 s; a queue may stand before them.
ANSWER_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate's judgement. `ok` None: it could not be judged, and `said` tells why."""

    gate: str
    id: str
    ok: bool | None
    said: str
    expected: str = ""
    fix: str = ""
    runbook: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line of a run or a report: mark, gate, which, and what was seen."""
        return f"{MARKS[self.ok]} {self.gate} {self.id}: {self}"

    def __str__(self) -> str:
        return message(self.said, self.expected, self.fix, runbook=self.runbook) if self.ok is False else self.said


def request(spec: Spec, fingerprint: str) -> dict[str, Any]:
    """Everything that the gates of one rank need: what to ask, and what to expect. A worker has no API to ask."""
    recipe = spec.recipe
    name = recipe["model"]["served_name"]
    answers = recipe["gates"].get("answer", DEFAULT_ANSWERS)
    return {
        "deadline_s": recipe["gates"]["ready"]["deadline_s"],
        "rank": spec.rank,
        "state_path": f"{pair.RUN_DIR}/{spec.deployment.name}/state.json",
        "unit": spec.deployment.unit,
        "container": spec.deployment.container,
        "image": spec.image,
        "launch": fingerprint,
        "address": spec.deployment.local_address,
        "port": spec.deployment.port,
        "served_name": name,
        "api_key": "VLLM_API_KEY" in spec.secrets,
        "model_root": launch.snapshot(launch.HUB_IN_CONTAINER, recipe["model"]),
        "max_model_len": recipe["args"].get("max-model-len"),
        "engine_version": recipe["engine"]["version"],
        "log": recipe["gates"].get("log", []),
        "fabric": recipe["gates"].get("fabric", {}).get("network"),
        "answers": answers,
        "requests": [] if spec.rank else list(_requests(name, answers)),
    }


def _requests(name: str, answers: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    one_token = {"model": name, "prompt": "1", "max_tokens": 1, "temperature": 0}
    yield _post("ready", "/v1/completions", one_token, READY_TIMEOUT_S)
    yield {"id": "models", "method": "GET", "path": "/v1/models", "timeout_s": READY_TIMEOUT_S}
    yield {"id": "version", "method": "GET", "path": "/version", "timeout_s": READY_TIMEOUT_S}
    yield _post("unknown-model", "/v1/completions", {**one_token, "model": UNKNOWN_MODEL}, READY_TIMEOUT_S)
    for index, answer in enumerate(answers):
        body = {
            "model": name,
            "messages": [{"role": "user", "content": answer["ask"]}],
            "max_tokens": answer.get("max_tokens", DEFAULT_ANSWER_TOKENS),
            "temperature": 0,
        }
        yield _post(f"answer-{index}", "/v1/chat/completions", body, ANSWER_TIMEOUT_S)


def _post(name: str, path: str, body: Mapping[str, Any], timeout_s: int) -> dict[str, Any]:
    return {"id": name, "method": "POST", "path": path, "body": body, "timeout_s": timeout_s}


def is_ready(probe: Mapping[str, Any]) -> bool:
    """Did the engine give one token? Where nothing was asked, on a worker: does its head say that it serves?"""
    if not probe["responses"]:
        running = (probe.get("container") or {}).get("state") == "running"
        return running and probe.get("state", {}).get("state") == "serving"
    response = probe["responses"].get("ready", {})
    return response.get("status") == HTTPStatus.OK and bool((response.get("json") or {}).get("choices"))


def judge(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> list[Verdict]:
    """All verdicts, cheap gates first, up to and with the first gate that does not hold.

    `probe` is what vllm_probe returned; `log` the engine's lines since its start. A worker is judged by its container:
    what its engine says and answers comes through its head.
    """
    verdicts: list[Verdict] = []
    for gate in (_rank,) if wanted["rank"] else (_ready, _identity, _log, _fabric, _answers):
        found = list(gate(wanted, probe, log))
        verdicts += found
        if any(verdict.ok is False for verdict in found):
            break
    return verdicts


def _rank(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    """A worker: it runs what it should, and its head serves."""
    del log
    container, state = probe.get("container") or {}, probe.get("state", {})
    facts = (
        ("state", state.get("state"), "serving"),
        ("container", container.get("state"), "running"),
        ("image", container.get("image"), wanted["image"]),
        ("launch", container.get("labels", {}).get("vllm-spark.launch"), wanted["launch"]),
    )
    wrong = [(name, seen, expected) for name, seen, expected in facts if seen != expected]
    for name, seen, expected in wrong:
        why = f" ({state['why']})" if name == "state" and state.get("why") else ""
        yield _miss(
            READY, f"rank-{name}", f"{name} of rank {wanted['rank']} is {seen}{why}", f"{expected}",
            f"journalctl -u {wanted['unit']} -e on both Sparks.", runbook="pair-does-not-start",
        )  # fmt: skip
    if not wrong:
        yield Verdict(READY, "rank", True, f"rank {wanted['rank']} runs and its head serves")


def _ready(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    response = probe["responses"].get("ready", {})
    if is_ready(probe):
        yield Verdict(READY, "token", True, f"one token in {response['seconds']:.2f} s")
    else:
        yield _miss(
            READY, "token", f"no token from {wanted['served_name']}: {_reply(response)}",
            "a completion of one token", f"journalctl -u {wanted['unit']} -e", runbook="engine-failed-to-start",
        )  # fmt: skip


def _identity(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    replies = probe["responses"]
    cards = (replies["models"].get("json") or {}).get("data") or [{}]
    card = next((c for c in cards if c.get("id") == wanted["served_name"]), cards[0])
    version = (replies["version"].get("json") or {}).get("version", "")
    container = probe.get("container") or {}
    facts: list[tuple[str, object, object]] = [
        ("served name", card.get("id"), wanted["served_name"]),
        ("model", card.get("root"), wanted["model_root"]),
        # A build's local part (+cu130, +cpu) says how it was built, not what it is.
        ("engine version", version.partition("+")[0], wanted["engine_version"].partition("+")[0]),
        ("image", container.get("image"), wanted["image"]),
        ("launch", container.get("labels", {}).get("vllm-spark.launch"), wanted["launch"]),
        ("status for an unknown model", replies["unknown-model"].get("status"), HTTPStatus.NOT_FOUND.value),
    ]
    if wanted["max_model_len"] is not None:
        facts.append(("context length", card.get("max_model_len"), wanted["max_model_len"]))
    wrong = [(name, seen, expected) for name, seen, expected in facts if seen != expected]
    for name, seen, expected in wrong:
        yield _miss(
            IDENTITY, name.replace(" ", "-"), f"{name} is {seen}", f"{expected}",
            f"look for another server on port {wanted['port']}, then deploy again.", runbook="wrong-identity",
        )  # fmt: skip
    if not wrong:
        yield Verdict(IDENTITY, "all", True, f"{wanted['served_name']}, vLLM {version}, {wanted['image'][-12:]}")


def _log(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del probe
    if not any(f"vllm-spark: launch {wanted['launch']}" in line for line in log):
        if wanted["log"]:
            said = "the journal no longer holds the start of this engine; a restart would write it again"
            yield Verdict(LOG, "start", None, said)
        return
    for gate in wanted["log"]:
        yield log_verdict(gate, log, wanted["unit"])


# "Using network" is NCCL's own choice per communicator, "via NET/" what a channel then goes over (NCCL src/net.cc,
# src/transport/net.cc; seen in 2.28.9).
NETWORK = re.compile(r"NCCL INFO (?:Using network (\w+)|Channel .* via NET/(\w+))")


def _fabric(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    """NCCL falls back to TCP without a word where a container lacks /dev/infiniband; only its own log tells. GPUDirect
    RDMA is not asked for: a GB10 has none."""
    del probe
    if not wanted["fabric"] or not any(f"vllm-spark: launch {wanted['launch']}" in line for line in log):
        return
    seen = {first or second for line in log for first, second in NETWORK.findall(line)}
    if seen == {wanted["fabric"]}:
        yield Verdict(FABRIC, "network", True, f"NCCL uses NET/{wanted['fabric']}")
        return
    said = f"NCCL uses {', '.join(f'NET/{name}' for name in sorted(seen))}" if seen else "NCCL names no network"
    yield _miss(
        FABRIC, "network", said, f"NET/{wanted['fabric']} alone",
        "see that the container has /dev/infiniband and IPC_LOCK (runtime of the recipe), and that the HCAs are up.",
        runbook="fabric-nccl-socket",
    )  # fmt: skip


def log_verdict(gate: Mapping[str, Any], log: Sequence[str], unit: str = "vllm@NAME") -> Verdict:
    """Judge one log gate. Public because the engine's real logs are its test."""
    pattern = re.compile(gate["pattern"])
    match = next((found for line in log if (found := pattern.search(line))), None)
    fix = f"{gate['why']} journalctl -u {unit}"
    if gate.get("expect", "present") == "absent":
        if match is None:
            return Verdict(LOG, gate["id"], True, "not in the log")
        return _miss(LOG, gate["id"], f"the log says {match[0]!r}", "it absent", fix, runbook="log-gate")
    if match is None:
        return _miss(LOG, gate["id"], f"no line matches {gate['pattern']!r}", "one", fix, runbook="log-gate")
    value = match["value"] if "value" in pattern.groupindex else match[0]
    if "equals" in gate and value != gate["equals"]:
        return _miss(LOG, gate["id"], f"the log says {value}", gate["equals"], fix, runbook="log-gate")
    if "at_least" in gate and number(value) < gate["at_least"]:
        return _miss(LOG, gate["id"], f"the log says {value}", f"at least {gate['at_least']}", fix, runbook="log-gate")
    return Verdict(LOG, gate["id"], True, value)


def number(text: str) -> float:
    """A number as the engine prints it, e.g. `146,240`. What is none counts as less than any bound."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("-inf")


def _answers(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    for index, answer in enumerate(wanted["answers"]):
        response = probe["responses"].get(f"answer-{index}", {})
        said = content(response)
        expected = answer["expect"]
        good = said.strip() == expected if answer.get("match") == "exact" else expected in said
        if good:
            yield Verdict(ANSWER, str(index), True, f"{answer['ask']} {said.strip()}")
        else:
            yield _miss(
                ANSWER, str(index), f"asked {answer['ask']!r}, got {said[:200]!r} ({_reply(response)})", expected,
                "the weights, the kernels or the chat template are wrong; compare with the recipe's known issues.",
                runbook="wrong-answers",
            )  # fmt: skip


def content(response: Mapping[str, Any]) -> str:
    """The text of a chat completion, empty where there is none."""
    choices = (response.get("json") or {}).get("choices") or [{}]
    return (choices[0].get("message") or {}).get("content") or ""


def _reply(response: Mapping[str, Any]) -> str:
    if response.get("error"):
        return str(response["error"])
    return f"status {response['status']}" if "status" in response else "not asked"


def _miss(gate: str, name: str, what: str, expected: str, fix: str, *, runbook: str) -> Verdict:  # noqa: PLR0913
    return Verdict(gate, name, False, what, expected, fix, runbook)
