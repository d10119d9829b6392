"""The document of a new recipe, from what is settled about its model. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.authoring import family
from vllm_spark.authoring.checkpoint import Checkpoint
from vllm_spark.authoring.family import Facts
from vllm_spark.authoring.model_facts import ModelFacts, Question
from vllm_spark.core.types import Document
from vllm_spark.recipe import heads
from vllm_spark.sizing import tensor_parallel
from vllm_spark.sizing.memory import DEFAULT_FLOOR_BYTES

# The share of the catalogue's recipes: at 0.78 a Spark had at least 13 GiB free, at 0.85 less than 5.
UTILIZATION = 0.78
# Requests at once where --streams asks for fewer.
LEAST_REQUESTS = 8
# Seconds to the first token: the catalogue's for one Spark, and for several. Of those for two one needed 707 s.
DEADLINES_S = {1: 900, 2: 1800}
NAME_CHARACTERS = 48
# Sparks whose cable needs no switch. Half of each layer is on each, so that no stage waits for the other. More may be
# the stages of a pipeline.
PAIR = 2
UNKNOWN_TOWER = "how large are the files? config.json has no size of the vision tower, and the forecast leaves it out"
SHARED = "can {} ranks share its heads evenly? If not, the rest of them are pipeline_parallel"
# Part of a family's `parsers` -> the flag.
PARSERS = {"reasoning": "reasoning-parser", "tools": "tool-call-parser"}


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asks for. `drafter` is auto, none, a method, or a repository of the family's table."""

    name: str
    context: int = 0
    streams: int = 1
    drafter: str = "auto"


def recipe_name(repository: str) -> str:
    """Return the name of a recipe for a repository: lower case, words joined by dashes or dots."""
    name = re.sub(r"[^a-z0-9.]+", "-", repository.rpartition("/")[2].lower())
    return re.sub(r"([-.])[-.]+", r"\1", name)[:NAME_CHARACTERS].strip("-.") or "model"


def compose(
    checkpoint: Checkpoint, model: ModelFacts, base: Document, request: Request, nodes: int
) -> tuple[dict[str, Any], list[Question]]:
    """Return the recipe for a number of Sparks, without max-model-len, and the questions that it leaves open.

    `base` has image and engine, and of a site's own recipe also runtime and memory.
    """
    facts = Facts(
        repository=checkpoint.repository,
        model_types=family.model_types(checkpoint.config),
        widths=model.widths(),
        nodes=nodes,
        own_head=bool(model.head),
        image=f"{base['image']['repository']}:{base['image']['tag']}",
    )
    questions = [*model.questions, *(_open(text) for text in model.family.get("open", ()))]
    shared = nodes
    if nodes > PAIR and model.built:
        shared = heads.most(model.built, nodes)
    elif nodes > PAIR:
        questions.append(Question("topology.tensor_parallel", SHARED.format(nodes)))
    if shared < nodes and request.drafter == "auto":
        request = replace(request, drafter="none")
    if model.vision and model.settled and not (checkpoint.size_bytes or model.architecture.get("vision")):
        questions.append(Question("model.size_bytes", UNKNOWN_TOWER))
    parsers, parser_questions = _parsers(checkpoint, model, facts)
    drafter, drafter_questions = _drafter(checkpoint, model, facts, request)
    questions += [*parser_questions, *drafter_questions]
    args: dict[str, Any] = {"max-num-seqs": max(LEAST_REQUESTS, request.streams), **parsers}
    for row in family.rows(model.family, "args", facts):
        args |= row["set"]
    repository = {
        "repository": checkpoint.repository,
        **({"revision": checkpoint.revision} if checkpoint.revision else {}),
    }
    sized = {"size_bytes": checkpoint.size_bytes} if checkpoint.size_bytes else {}
    settled = {"architecture": model.architecture["name"], "layout": model.layout} if model.settled else {}
    recipe: dict[str, Any] = {
        "schema_version": 1,
        "name": request.name,
        "summary": f"{checkpoint.repository} for {nodes} Spark{'s' * (nodes > 1)}, written by recipe new",
        "sources": _sources(checkpoint, model),
        "image": base["image"],
        "engine": base["engine"],
        "model": {**repository, **settled, "served_name": recipe_name(checkpoint.repository), **sized},
        **({"drafter": drafter} if drafter else {}),
        "env": {},
        "args": dict(sorted(args.items())),
        "topology": tensor_parallel.topology(nodes, shared),
        "memory": base.get("memory", {"utilization": UTILIZATION, "free_floor_bytes": DEFAULT_FLOOR_BYTES}),
        "runtime": base.get("runtime", {"shm_size": "16g"}),
        "gates": _gates(checkpoint, model, args, facts),
    }
    return with_additions(recipe, model.family.get("adds", {})), questions


def with_additions(recipe: dict[str, Any], adds: Document) -> dict[str, Any]:
    """Return a recipe with what its family adds to image.derive and env, and without a block of them that is empty."""
    image, env = recipe["image"], {**recipe["env"], **adds.get("env", {})}
    derive = {**image.get("derive", {}), **adds.get("derive", {})}
    changed = {**recipe, "image": {**image, **({"derive": derive} if derive else {})}, "env": env}
    return {key: value for key, value in changed.items() if key != "env" or value}


def _open(text: str) -> Question:
    field, _, question = text.partition(": ")
    return Question(field, question)


def _sources(checkpoint: Checkpoint, model: ModelFacts) -> list[str]:
    what = "config.json" if checkpoint.alone else "config.json and the safetensors headers"
    origin = f"{checkpoint.repository}@{checkpoint.revision}" if checkpoint.revision else checkpoint.name
    return [f"{what} of {origin}", *model.family["sources"]]


def _chats(checkpoint: Checkpoint, model: ModelFacts) -> bool:
    """Return True if the files have a chat template, or the engine writes the prompts itself."""
    return bool(checkpoint.template or model.family.get("parsers", {}).get("engine_writes"))


def _parsers(checkpoint: Checkpoint, model: ModelFacts, facts: Facts) -> tuple[dict[str, Any], list[Question]]:
    """Return the arguments of the parsers, and a question for each parser that the template does not settle."""
    known = model.family.get("parsers", {})
    if not _chats(checkpoint, model):
        what = "config.json alone was read" if checkpoint.alone else "the files have none"
        return {}, [
            Question(
                "args.chat-template",
                f"which template do chats use? {what}. Without it the gates of chats, tools and reasoning are left out",
            )
        ]
    if not checkpoint.template:
        flags = {PARSERS[kind]: known[kind][0]["name"] for kind in PARSERS if kind in known}
        return flags | ({"enable-auto-tool-choice": True} if "tools" in known else {}), []
    args: dict[str, Any] = {}
    questions = []
    for kind, pattern in (("reasoning", r"<think>|enable_thinking|reasoning|channel"), ("tools", r"\btools\b")):
        row = family.parser(known.get(kind, ()), checkpoint.template, facts.model_types)
        flag = PARSERS[kind]
        if row and (kind == "reasoning" or re.search(pattern, checkpoint.template)):
            args[flag] = row["name"]
        elif not row and re.search(pattern, checkpoint.template):
            questions.append(Question(f"args.{flag}", f"which parser reads its {kind}? The template has them, and the "
                                      f"family {model.family['name']} names none for its format"))  # fmt: skip
    if "tool-call-parser" in args:
        args["enable-auto-tool-choice"] = True
    return args, questions


def _drafter(
    checkpoint: Checkpoint, model: ModelFacts, facts: Facts, request: Request
) -> tuple[dict[str, Any], list[Question]]:
    """Return the block `drafter`, empty for none."""
    if request.drafter == "none":
        return {}, []
    rows = family.rows(model.family, "drafters", facts)
    wanted = [row for row in rows if request.drafter in {"auto", row["method"], row.get("repository")}]
    if not wanted:
        known = ", ".join(row.get("repository", row["method"]) for row in rows) or "none for this model"
        asked = Question(
            "drafter", f"is {request.drafter} a drafter of this model? The family {model.family['name']} knows {known}"
        )
        return {}, [asked] if request.drafter != "auto" else []
    row = wanted[0]
    block = {
        key: row[key] for key in ("repository", "revision", "architecture", "size_bytes", "acceptance") if key in row
    }
    if "repository" not in block:
        revision = {"revision": checkpoint.revision} if checkpoint.revision else {}
        block = {"repository": checkpoint.repository, **revision, "architecture": model.head["name"], **block}
    block["speculative_tokens"] = row["tokens"]
    if "config" in row:
        block["config"] = row["config"]
    questions = [] if "acceptance" in block else [
        Question("drafter.acceptance", "which share of the drafted tokens does the model accept? No source has it for "
                 f"{row['tokens']} tokens a step; `vllm-spark bench` measures it")
    ]  # fmt: skip
    return block, questions


def gates(args: Mapping[str, Any], nodes: int, *, chats: bool = True, vision: bool = False) -> dict[str, Any]:
    """Return the gates that the flags permit. Known answers and the probe need a sound run first. Without `chats` there
    is no template, and no gate asks for an answer."""
    calls_tools = chats and "tool-call-parser" in args
    answering = {
        "garbage": chats,
        "structured": chats,
        "tools": calls_tools,
        "anthropic": calls_tools,
        "vision": chats and vision,
        "reasoning": chats and "reasoning-parser" in args,
    }
    return {
        "ready": {"deadline_s": DEADLINES_S[min(nodes, 2)]},
        "use": {"no-unknown-variable": True},
        **({"fabric": {"network": "IB"}} if nodes > 1 else {}),
        "failover": {},
        **{name: {} for name, permitted in answering.items() if permitted},
    }


def _gates(checkpoint: Checkpoint, model: ModelFacts, args: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return the gates with those of the family."""
    found = gates(args, facts.nodes, chats=_chats(checkpoint, model), vision=model.vision)
    for row in family.rows(model.family, "gates", facts):
        found["use"] = row["use"] | found["use"]
    if "reasoning" in found:
        found["reasoning"] = dict(model.family.get("thinking", {}))
    return found
