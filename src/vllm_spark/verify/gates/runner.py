"""The gates in their order: cheap first, and none after the first that does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import host_layout
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import hub_cache
from vllm_spark.verify.gates import (
    answer,
    failover,
    garbage,
    log,
    ready,
    reasoning,
    reasoning_probe,
    structured,
    tools,
    vision,
)
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates.identity import UNKNOWN_MODEL, identity
from vllm_spark.verify.gates.verdict import READY, Verdict

Gate = Callable[[Mapping[str, Any], Mapping[str, Any], Sequence[str]], Iterator[Verdict]]

# Those that a recipe switches on by naming them, after the answers; failover's fifteen tokens come before.
AFTER_ANSWERS = (garbage, structured, tools, vision, reasoning, reasoning_probe)
OPTIONAL = (failover, *AFTER_ANSWERS)


@dataclass(frozen=True, slots=True)
class Round:
    """What is asked in one look at the box, and the gates that its replies decide. The cheap gates share the first; the
    others have one each, so that nothing is asked after a gate that does not hold, and a person sees which is on."""

    name: str
    requests: Sequence[Mapping[str, Any]]
    gates: Sequence[Gate]

    def judge(self, wanted: Mapping[str, Any], probe: Mapping[str, Any], lines: Sequence[str]) -> list[Verdict]:
        """The verdicts of this round, up to and with the first gate that does not hold."""
        verdicts: list[Verdict] = []
        for gate in self.gates:
            verdicts += gate(wanted, probe, lines)
            if missed(verdicts):
                break
        return verdicts


def request(spec: Spec, fingerprint: str) -> dict[str, Any]:
    """Everything that the gates of one rank need to know: whom to ask, and what to expect. Holds no secret, and is kept
    on the box, so that a launch that comes back is judged as it was when it was new.
    """
    recipe = spec.recipe
    name = recipe["model"]["served_name"]
    return {
        "deadline_s": recipe["gates"]["ready"]["deadline_s"],
        "rank": spec.rank,
        "state_path": f"{host_layout.RUN_DIR}/{spec.deployment.name}/state.json",
        "unit": spec.deployment.unit,
        "container": spec.deployment.container,
        "image": spec.image,
        "launch": fingerprint,
        "address": spec.deployment.local_address,
        "port": spec.deployment.port,
        "served_name": name,
        "api_key": "VLLM_API_KEY" in spec.secrets,
        "model_root": hub_cache.snapshot(hub_cache.HUB_IN_CONTAINER, recipe["model"]),
        "max_model_len": recipe["args"].get("max-model-len"),
        "engine_version": recipe["engine"]["version"],
        "log": recipe["gates"].get("log", []),
        "fabric": recipe["gates"].get("fabric", {}).get("network"),
        "answers": recipe["gates"].get("answer", answer.DEFAULT_ANSWERS),
        "gates": _used(spec),
        "through": dict(spec.deployment.through),
    }


def _used(spec: Spec) -> dict[str, Any]:
    """The gates that the recipe switches on, with what it says of each; a router wants to be judged in any case."""
    named = spec.recipe["gates"]
    used = {gate.NAME: named[gate.NAME] for gate in OPTIONAL if gate.NAME in named}
    return {failover.NAME: {}, **used} if spec.deployment.through else used


def rounds(wanted: Mapping[str, Any]) -> list[Round]:
    """The rounds of one rank, in their order. A worker is judged by its container: what its engine says and answers
    comes through its head."""
    if wanted["rank"]:
        return [Round(READY, (), (ready.rank,))]
    name, used = wanted["served_name"], wanted["gates"]
    cheap = [ready.token, identity, log.log, log.fabric, *([failover.verdicts] if failover.NAME in used else [])]
    return [
        Round(READY, list(_cheap_requests(wanted)), [*cheap, answer.verdicts]),
        *(
            Round(gate.NAME, list(gate.requests(name, used[gate.NAME])), [gate.verdicts])
            for gate in AFTER_ANSWERS
            if gate.NAME in used
        ),
    ]


def _cheap_requests(wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """In the order of the gates, because a request without a reply ends the asking."""
    name = wanted["served_name"]
    yield gates_requests.post(
        "ready", gates_requests.COMPLETIONS, gates_requests.one_token(name, "1"), gates_requests.SHORT_TIMEOUT_S
    )
    yield gates_requests.get("models", "/v1/models")
    yield gates_requests.get("version", "/version")
    yield gates_requests.post(
        "unknown-model",
        gates_requests.COMPLETIONS,
        gates_requests.one_token(UNKNOWN_MODEL, "1"),
        gates_requests.SHORT_TIMEOUT_S,
    )
    if failover.NAME in wanted["gates"]:
        yield from failover.requests(name, wanted["through"])
    yield from answer.requests(name, wanted["answers"])


def requests(wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The requests of all rounds."""
    return [request for part in rounds(wanted) for request in part.requests]


def judge(wanted: Mapping[str, Any], probe: Mapping[str, Any], lines: Sequence[str]) -> list[Verdict]:
    """All verdicts, up to and with the first gate that does not hold.

    `probe` is what vllm_probe returned to the requests of all rounds; `lines` the engine's log since its start.
    """
    verdicts: list[Verdict] = []
    for part in rounds(wanted):
        verdicts += part.judge(wanted, probe, lines)
        if missed(verdicts):
            break
    return verdicts


def missed(verdicts: Sequence[Verdict]) -> bool:
    """Does one of the gates not hold? One that could not be judged is none of these."""
    return any(verdict.ok is False for verdict in verdicts)
