"""Runs the gates of one rank in their order: cheap ones first, and none after the first that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_spark.core import container_layout
from vllm_spark.core.types import Document
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import host_layout
from vllm_spark.recipe import flag_names, hub_cache, published_image, roles
from vllm_spark.sizing import budget, memory
from vllm_spark.verify.gate import Judge
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import answer, reach
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.registry import GATES, OPTIONAL
from vllm_spark.verify.verdict import Verdict, any_failed


@dataclass(frozen=True, slots=True)
class Round:
    """The requests of one probe, and the gates that its responses decide.

    The cheap gates share the first round. Every other gate has its own round, so that no request follows a gate that
    failed and an operator sees which gate is running.
    """

    name: str
    requests: Sequence[HttpRequest]
    judges: Sequence[Judge]

    def judge(self, request: GateRequest, probe: Probe, lines: Sequence[str]) -> list[Verdict]:
        """Return the verdicts of this round, up to and including the first gate that fails."""
        verdicts: list[Verdict] = []
        for judge_gate in self.judges:
            verdicts += judge_gate(request, probe, lines)
            if any_failed(verdicts):
                break
        return verdicts


def gate_request(spec: Spec, fingerprint: str) -> GateRequest:
    """Return the request for the gates of one rank. `fingerprint` is the launch's."""
    recipe = spec.recipe
    return GateRequest(
        deadline_s=recipe["gates"]["ready"]["deadline_s"],
        rank=spec.rank,
        state_path=f"{host_layout.RUN_DIR}/{spec.deployment.name}/state.json",
        unit=spec.deployment.unit,
        container=spec.deployment.container,
        image=spec.image,
        launch=fingerprint,
        address=spec.deployment.local_address,
        port=spec.deployment.port,
        served_name=recipe["model"]["served_name"],
        api_key=spec.has_engine_key,
        model_root=hub_cache.snapshot(container_layout.HUB_IN_CONTAINER, recipe["model"]),
        max_model_len=flag_names.positive_number(recipe["args"], "max-model-len"),
        engine_version=recipe["engine"]["version"],
        release=not published_image.is_published(recipe),
        log=recipe["gates"].get("log", []),
        variables=sorted({*recipe.get("env", {}), *spec.secrets}),
        fabric=recipe["gates"].get("fabric", {}).get("network"),
        answers=recipe["gates"].get("answer", answer.DEFAULT_ANSWERS),
        gates=_optional_gates(spec),
        through=dict(spec.deployment.through),
        bind=spec.deployment.bind,
        socket=spec.socket,
        edge=_edge(spec),
        role=roles.of(recipe),
        cache_tokens=budget.cache_tokens(recipe) if memory.WORKSPACE_KEY in recipe["memory"] else None,
    )


def _edge(spec: Spec) -> dict[str, str]:
    settings = spec.edge.settings
    site = {"site_port": str(settings.site_port)} if spec.edge.is_asked else {}
    return {} if settings.open else {"tls": settings.tls, **site}


def _optional_gates(spec: Spec) -> dict[str, Document]:
    """Return the options of each optional gate that the recipe or the router of the deployment switches on."""
    options = spec.recipe["gates"]
    routed = bool(spec.deployment.through)
    return {
        gate.name: options.get(gate.name, {})
        for gate in OPTIONAL
        if roles.of(spec.recipe) in gate.roles and (gate.name in options or (routed and gate.for_router))
    }


def rounds(request: GateRequest, *, thorough: bool = True) -> list[Round]:
    """Return the rounds of one rank in their order. A worker judges itself without requests, because its head serves
    the API, and then asks that head as a client does.

    If not `thorough`, the gates that a recipe names are left out: they prove properties of a launch, which do not
    change while it runs, some at the price of hundreds of tokens."""
    if request.rank:
        workers = [(gate.name, gate.judge_worker) for gate in GATES if gate.judge_worker]
        asks = [Round(reach.NAME, (), [reach.judge])] if reach.applies(request) else []
        return [Round(workers[0][0], (), [judge_worker for _, judge_worker in workers]), *asks]
    used = [gate for gate in GATES if request.role in gate.roles and gate.applies(request)]
    used = [gate for gate in used if not gate.optional or gate.name in request.gates]
    used = [gate for gate in used if thorough or not gate.optional]
    cheap = [gate for gate in used if gate.cheap]
    # A request without a response ends the probe, so the requests have the order of the gates.
    first = Round(cheap[0].name, [one for gate in cheap for one in gate.requests(request)], [g.judge for g in cheap])
    others = (Round(gate.name, list(gate.requests(request)), [gate.judge]) for gate in used if not gate.cheap)
    return [first, *others]


def requests(request: GateRequest) -> list[HttpRequest]:
    """Return the HTTP requests of all rounds."""
    return [one for each in rounds(request) for one in each.requests]


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> list[Verdict]:
    """Return all verdicts, up to and including the first gate that fails.

    `probe` holds the responses to the requests of all rounds; `lines` is the engine's log since its start.
    """
    verdicts: list[Verdict] = []
    for each in rounds(request):
        verdicts += each.judge(request, probe, lines)
        if any_failed(verdicts):
            break
    return verdicts
