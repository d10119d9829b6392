"""The readers under test. Each takes one damaged input, and returns `accepted` or `refused`; it raises what the reader
raises. An accepted launch is judged by the oracle, which raises WrongValueError."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import (
    spark_deployment_state,
    spark_holdings,
    spark_lock,
    spark_records,
    spark_requests,
    spark_status,
    spark_units,
)
from hypothesis import strategies as st

from fakes import gate_bench
from fakes.cases import intents
from fakes.deployed_spark import deployed_facts
from fuzz import authored, mutations, oracle
from project_files import DATA, RECIPE_FOLDERS
from vllm_spark.core import documents, paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import checks, launch, plan
from vllm_spark.inventory import intent, spec
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.lifecycle import history, operator_lock, rollback_target, status, status_table
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark.lifecycle.status import HostResult
from vllm_spark.recipe import lockfile
from vllm_spark.sizing import forecast
from vllm_spark.verify import runner
from vllm_spark.verify.gate_request import GateRequest

ACCEPTED, REFUSED = "accepted", "refused"
# Words that Python or a library says, and the toolkit does not.
FOREIGN_WORDS = re.compile(
    r"not supported between|_Ansible|Traceback|NoneType|object is not|object has no|unhashable|is greater than the"
    r"|is too short|should be non-empty|is not of type|does not match '|KeyError|TypeError|invalid literal"
)
NAME = "fuzzed"
DEMO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}
DEPLOYMENTS = [
    [
        {
            **DEMO,
            "port": 8001,
            "bind": "0.0.0.0",  # noqa: S104  the default of the inventory
            "overrides": {
                "args": {"max-model-len": 4096, "dtype": "bfloat16", "enable-prefix-caching": True},
                "env": {"OMP_NUM_THREADS": "4"},
                "memory": {"utilization": 0.5},
                "drafter": None,
                "gates": {"use": {"attention": "TRITON_ATTN", "kv-tokens": None}, "tools": {"cases": ["html"]}},
            },
            "through": {"url": "http://router:4000", "key": "ROUTER_KEY", "model": "m"},
            "accept_known_issues": [],
        },
        {**DEMO, "name": "other", "hosts": ["spark2"], "active": True},
    ],
    [DEMO, {**DEMO, "name": "second", "active": False}],
]
PINS = {"digest": f"sha256:{'1' * 64}", "platform": "linux/arm64", "seen": "registry, today"}
LOCKS = [
    {
        "images": {"vllm/vllm-openai:v0.20.2": PINS, "registry:5000/vllm-spark/engine:0.32.0-cpu": PINS},
        "models": {"org/name": {"revision": "2" * 40, "seen": "hub", "files": {"a.jinja": "3" * 64}}},
    }
]


class WrongValueError(Exception):
    """Raised for an accepted launch that no engine starts, and for a message in other words than the toolkit's."""


@dataclass(frozen=True)
class Target:
    """A reader: the inputs, and what reads one of them in an empty folder."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any, Path], str]


def run(target: Target, value: Any, folder: Path) -> str:
    """Return `accepted` or `refused`. Raises what the reader raises, and WrongValueError. `folder` is for the files of
    this target alone; the next run writes each of them again."""
    try:
        return target.read(value, folder)
    except RefusedError as error:
        check_words(str(error))
        return REFUSED


def check_words(text: str) -> None:
    """Raise WrongValueError for a message with the words of Python, without a fix, or in several lines per refusal."""
    if (match := FOREIGN_WORDS.search(text)) is not None:
        raise WrongValueError(f"a message with {match[0]!r}: {text[:300]}")
    if "Fix: " not in text:
        raise WrongValueError(f"a message without a fix: {text[:300]}")


def sound_facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((DATA / "facts" / "spark.json").read_text())
    return facts


def sound_recipes() -> list[dict[str, Any]]:
    """Return recipes of several kinds, each with the name of the fuzzed file and without files beside it."""
    files = [DATA / "recipes" / "everything.yml"]
    files += [paths.RECIPES / f"{name}.yml" for name in ("gemma-4-26b-a4b-fp8", "gemma-4-31b-fp8")]
    recipes = [documents.read_yaml(file) for file in files if file.is_file()]
    for recipe in recipes:
        recipe["name"] = NAME
        recipe["mounts"] = [mount for mount in recipe.get("mounts", []) if mount["from"] == "model"]
        recipe.pop("patches", None)
    return recipes


def resolve_and_plan(deployments: Any, folders: tuple[Path, ...], lock: Path | None = None) -> str:
    """Do what plan.yml does on spark1, and judge the launch."""
    inventory = spec.Inventory(
        deployments=deployments,
        sparks=("spark1", "spark2"),
        limit=("spark1", "spark2"),
        recipe_folders=folders,
        lock_file=lock,
        secrets={"HF_TOKEN": True, "ROUTER_KEY": True},
    )
    resolved = intent.resolve(inventory, "spark1").rank
    if resolved is None:
        return ACCEPTED
    resolved = spec.Spec.from_json(json.loads(json.dumps(resolved.to_json(), allow_nan=False)))
    if len(resolved.deployment.hosts) == 1:
        if wrong := oracle.faults(launch.argv(resolved)):
            raise WrongValueError("; ".join(wrong)[:500])
        facts = sound_facts()
        facts["paths"] |= dict.fromkeys(checks.model_folders(resolved), True)
        request, context = forecast.ForecastRequest(), forecast.ForecastContext(catalogue=())
        forecast.forecast(resolved.recipe["name"], resolved.recipe, {"spark1": facts}, request, context)
        plan.of_host(intents({"spark1": resolved}), {"spark1": facts}, "spark1", "test")
    return ACCEPTED


def read_recipe(content: bytes, folder: Path) -> str:
    (folder / f"{NAME}.yml").write_bytes(content)
    return resolve_and_plan([{**DEMO, "recipe": NAME}], (folder,))


def read_deployments(deployments: Any, _: Path) -> str:
    return resolve_and_plan(deployments, RECIPE_FOLDERS)


def read_lock(content: bytes, folder: Path) -> str:
    file = folder / "lock.yml"
    file.write_bytes(content)
    lockfile.text(lockfile.read(file))
    return resolve_and_plan([{**DEMO, "recipe": "tiny-gemma4"}], (paths.ROOT / "sandbox" / "recipes",), file)


def sound_spec() -> spec.Spec:
    inventory = spec.Inventory(
        [DEMO], ("spark1",), ("spark1",), RECIPE_FOLDERS, secrets={"HF_TOKEN": True}, edge={"open": True}
    )
    resolved = spec.resolve(inventory, "spark1")
    assert resolved is not None
    return resolved


SPEC = sound_spec()
SOUND_FACTS = deployed_facts(SPEC, sound_facts())
RECORD = {**SOUND_FACTS["records"]["demo"], "previous": {"launch": "b" * 64, "recipe": "old", "image": "a:1"}}
BENCH = gate_bench.bench_of(SPEC)
HISTORY = {
    **{"time": "2026-01-02T03:04:05Z", "verb": "deploy", "who": "anna@desk", "holds": True, "ready_s": 61.5},
    **{"gates": {"held": ["ready"], "missed": []}, "missed": "", "report": "reports/x.json", "launch": "c" * 64},
}
LOCK_OF_RUN = {
    **{"run": "desk:boot:pid:12:345", "user": "anna", "controller": "desk", "machine": "boot:pid", "pid": 12},
    **{"started": "345", "verb": "deploy"},
    **{"since": 1.5e9, "connection": {"pid": 1, "started": "5"}},
}
# Path below the root of a host -> its sound content.
RECORDS: dict[str, Any] = {
    "etc/vllm-spark/demo/deployed.json": RECORD,
    "etc/vllm-spark/demo/previous/deployed.json": RECORD,
    "etc/vllm-spark/demo/swapping/deployed.json": RECORD,
    "etc/vllm-spark/demo/failed/deployed.json": RECORD,
    "etc/vllm-spark/demo/gates.json": BENCH.request.to_json(),
    "etc/vllm-spark/demo/liveness.json": {"address": "127.0.0.1", "port": 9, "model": "m", "deadline_s": 60},
    "run/vllm-spark/demo/liveness.json": {"ready": True, "misses": 1, "invocation": "a", "progress": 4.0},
    "run/vllm-spark/demo/state.json": {"state": "serving", "why": "", "since": 1.5e9, "last_end": "status 1"},
    "var/lib/vllm-spark/states/demo.jsonl": {"time": 1.5e9, "state": "serving", "why": ""},
    "run/vllm-spark/operator.lock": LOCK_OF_RUN,
    "var/lib/vllm-spark/history/demo.jsonl": HISTORY,
}


@st.composite
def hosts(draw: st.DrawFn) -> tuple[str, bytes]:
    """The path of one record, and its damaged content."""
    path = draw(st.sampled_from(sorted(RECORDS)))
    return path, draw(mutations.json_files([RECORDS[path]]))


def read_record(value: tuple[str, bytes], root: Path) -> str:
    """Do what status, rollback, history, verify and the lock do with a host on which one record is damaged."""
    for path, sound in RECORDS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(json.dumps(sound) + "\n")
        if path.endswith("deployed.json"):
            (root / path).with_name("launch").write_text("#!/bin/sh\n\nexec docker run image\n")
    (root / value[0]).write_bytes(value[1])
    folder = root / "etc/vllm-spark/demo"
    facts = copy.deepcopy(SOUND_FACTS)
    records, broken, _ = spark_units.records({"demo": str(folder / "deployed.json")})
    facts |= {"records": records, "broken_records": broken}
    lock = spark_lock.read_holder(str(root / "run/vllm-spark"), proc=str(root))
    assert lock is not None
    check_words(str(operator_lock.refusal("spark1", LockHolder.from_json(lock), None)))
    deployment = spark_status.deployment("demo", str(root))
    deployment["counters"] = []
    facts["status"] = {**facts["status"], "lock": lock, "deployments": {"demo": deployment}}
    places = spark_deployment_state.Places(run=str(root / "run/vllm-spark"))
    facts["states"] = {"demo": spark_deployment_state.present("demo", places)}
    document = status.document({"spark1": HostResult(HostIntent.of_rank(SPEC), facts)}, "now", "test")
    status_table.table(json.loads(json.dumps(document, allow_nan=False)))
    entries = spark_holdings.history(str(root))["demo"]
    history.table(history.rows({"spark1": entries}))
    if gates := spark_records.gates_of(str(folder)):
        GateRequest.from_json(gates)
    held = {"deployments": spark_holdings.deployments(str(root), count=False), "units": {}, "unit_files": []}
    docker: dict[str, Any] = {"error": "", "images": [], "containers": []}
    state = {**held, "docker": docker, "history": {"demo": entries}, "pulled": [], "states": []}
    for target in _rollback(state):
        target.line()
    plan.of_host(intents({"spark1": SPEC}), {"spark1": facts}, "spark1", "test")
    return ACCEPTED


def _rollback(state: Mapping[str, Any]) -> list[rollback_target.RollbackTarget]:
    try:
        return list(rollback_target.targets({"spark1": state}, "demo").values())
    except RefusedError as error:
        check_words(str(error))
        return []


REQUESTS = runner.requests(BENCH.request)
ANSWERS = {request["id"]: BENCH.mock.answer(request["path"], request.get("body") or {}) for request in REQUESTS}
SOUND_RESPONSES = {request["id"]: gate_bench.parsed(request, ANSWERS[request["id"]]) for request in REQUESTS}


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """The id of one request, the status of its reply, and its damaged bytes."""
    request = draw(st.sampled_from(REQUESTS))
    raw = b"".join(ANSWERS[request["id"]].pieces).decode()
    sound = ANSWERS[request["id"]].status
    code = draw(st.sampled_from((sound, sound, sound, sound, 200, 400, 401, 404, 500, 503)))
    if raw.startswith("{"):
        return request["id"], code, draw(mutations.json_files([json.loads(raw)]))
    events = [line[6:] for line in raw.splitlines() if line.startswith("data: {")]
    if not events:
        return request["id"], code, draw(mutations.damaged(raw))
    at = draw(st.integers(0, len(events) - 1))
    event = draw(mutations.json_files([json.loads(events[at])])).decode(errors="replace")
    return request["id"], code, draw(mutations.damaged(raw.replace(events[at], event, 1)))


def read_reply(value: tuple[str, int, bytes], _: Path) -> str:
    """Judge every gate with one damaged reply."""
    id_, code, raw = value
    request = next(one for one in REQUESTS if one["id"] == id_)
    streamed = (request.get("body") or {}).get("stream") and code == 200
    content = spark_requests.parse_stream(raw) if streamed else spark_requests.parse_body(raw, request.get("prefix"))
    response = {"status": code, **content, "seconds": 0.1}
    verdicts = BENCH.judge({**SOUND_RESPONSES, id_: response})
    lines = "\n".join(f"{verdict.line()} {verdict}" for verdict in verdicts)
    json.dumps([verdict.to_json() for verdict in verdicts], allow_nan=False).encode()
    lines.encode()
    return ACCEPTED if all(verdict.ok is not False for verdict in verdicts) else REFUSED


def read_checkpoint(value: authored.Damage, folder: Path) -> str:
    authored.read_checkpoint(value, folder)
    return ACCEPTED


def read_import(content: bytes, folder: Path) -> str:
    authored.read_import(content, folder)
    return ACCEPTED


TARGETS: Mapping[str, Target] = {
    "recipes": Target(mutations.yaml_files(sound_recipes()), read_recipe),
    "inventories": Target(mutations.mutated(DEPLOYMENTS), read_deployments),
    "lock files": Target(mutations.yaml_files(LOCKS), read_lock),
    "records": Target(hosts(), read_record),
    "replies": Target(replies(), read_reply),
    "checkpoints": Target(authored.checkpoints(), read_checkpoint),
    "imports": Target(mutations.yaml_files(authored.sound_imports()), read_import),
}
