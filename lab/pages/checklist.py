"""docs/reference/checklist.md: checks before a deployment, its gates, and checks after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lab.pages.markdown import table
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.recipe import loader, shared_gates
from vllm_spark.verify import registry
from vllm_spark.verify.gates import answer, log, ready

HEAD = """\
# Deployment checklist

`make docs` writes this page from the gates and `recipes/*.yml`; do not edit it. Each line before a deployment
names the command that checks it. The command ends with a fault and its fix if the line is not true. The gates check the
deployment itself. The owner checks the lines after a deployment.
"""
GATES_HEAD = """\
`vllm-spark deploy -l HOST` ends with the gates, and `vllm-spark verify -l HOST` repeats them. Cheap
gates run first. No gate runs after one that fails. A recipe enables a gate by naming it: see `gates` in
`recipes/schema.json`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A condition and the command that checks or shows it.

    `refusals` are the ids of the refusals that the command ends with if the condition is not true.
    """

    what: str
    command: str
    refusals: tuple[str, ...] = ()
    runbooks: tuple[str, ...] = ()


BEFORE = (
    Line(
        "The recipe matches its schema, and its files match their checksums.",
        "vllm-spark check", ("bad-recipe",), ("recipe-refused",),
    ),
    Line(
        "The image has a digest, not only a tag: a tag with a similar name may be a different engine.",
        "vllm-spark lock -l HOST", (), ("image-not-locked", "lock-moved"),
    ),
    Line(
        "Model and drafter have a commit, and each file that the recipe mounts over an engine file has a checksum.",
        "vllm-spark lock -l HOST", (), ("lock-model",),
    ),
    Line(
        "The combination of model, engine version, kernels and parsers is not known to fail.",
        "vllm-spark plan RECIPE", (), ("known-issue",),
    ),
    Line(
        "The model fits into memory and on the disk, and the forecast is not below the speed that you need.",
        "vllm-spark plan -l HOST -e vllm_plan_min_speed=TOK_S",
        ("no-room-for-the-cache", "too-little-disk", "too-slow"), ("plan-no-go", "slow"),
    ),
    Line(
        "Model and drafter are on every Spark at the recipe's commit, and mounted files have their checksum.",
        "vllm-spark precheck -l HOST", ("no-model", "wrong-checksum", "model-unreadable", "model-outside"),
        ("model-missing",),
    ),
    Line(
        "No other program uses the memory or the port: no desktop program, no Ollama model, no other server.",
        "vllm-spark precheck -l HOST", ("too-little-memory", "port-taken"),
        ("too-little-memory", "gpu-memory-held", "port-taken"),
    ),
    Line(
        "GPU, driver and Docker respond, and the image has the host's architecture.",
        "vllm-spark precheck -l HOST", ("no-gpu", "no-docker", "wrong-architecture"),
        ("wrong-host", "docker-missing"),
    ),
    Line(
        "Two Sparks: cable, addresses, MTU and GIDs match.",
        "vllm-spark precheck -l HEAD,WORKER",
        ("fabric-none", "fabric-no-address", "fabric-mtu", "fabric-no-gid"),
        ("fabric-none", "fabric-no-address", "fabric-mtu", "fabric-no-gid"),
    ),
    Line(
        "The launch is the intended one: image by digest, flags, mounts, variables.",
        "vllm-spark deploy --check --diff -l HOST",
    ),
)  # fmt: skip

AFTER = (
    Line("A report of every host is stored, with the recipe's commit.", "vllm-spark report"),
    Line(
        "The speed is inside the forecast interval, and equal over several runs.", "vllm-spark plan RECIPE", (),
        ("slow", "gpu-clocks", "drafter"),
    ),
    Line(
        "A router in front does not send requests to another model when this one refuses.",
        "vllm-spark verify -l HOST", (), ("silent-failover",),
    ),
    Line("Only intended clients reach the port, or the server has a key.", "vllm-spark precheck -l HOST"),
    Line(
        "The deployment serves again after a reboot.", "vllm-spark status -l HOST", (),
        ("engine-failed-to-start",),
    ),
    Line(
        "The log of the start has no finding.",
        "ssh USER@ADDRESS journalctl -u vllm@NAME -o cat -b | vllm-spark doctor -",
    ),
)  # fmt: skip


def text() -> str:
    """Return the page."""
    recipes = {name: loader.load(name).document["gates"] for name in sorted(loader.names([paths.RECIPES]))}
    parts = [
        HEAD.rstrip(),
        "## Before",
        "\n".join(map(_list_item, BEFORE)),
        "## The gates",
        GATES_HEAD,
        table(("gate", "proves", "runs for"), _gate_rows()),
        "### By recipe",
        "The gates of every deployment are left out. The column ready is the deadline of the first token.",
        table(("recipe", "ready", "log lines", "other gates"), _recipe_rows(recipes)),
        "### Log lines",
        table(
            ("id", "reason of the check"), ((f"`{name}`", gate["why"]) for name, gate in shared_gates.load().items())
        ),
        "## After",
        "\n".join(map(_list_item, AFTER)),
    ]
    return "\n\n".join(parts) + "\n"


def _list_item(line: Line) -> str:
    runbooks = ", ".join(f"[{name}](../runbooks/{name}.md)" for name in line.runbooks)
    return f"- [ ] {line.what}\n      `{line.command}`" + (f" — {runbooks}" if runbooks else "")


def _gate_rows() -> Iterator[tuple[str, str, str]]:
    for gate in registry.GATES:
        yield f"`{gate.name}`", gate.proves, gate.judged_where


def _recipe_rows(recipes: Mapping[str, Document]) -> Iterator[tuple[str, str, str, str]]:
    own_column = {ready.NAME, log.NAME, answer.NAME}
    for name, used in recipes.items():
        others = [gate.name for gate in registry.GATES if gate.name in used and gate.name not in own_column]
        yield (
            f"[{name}](recipes.md#{name.replace('.', '')})",
            f"{used['ready']['deadline_s']} s",
            "; ".join(map(_log_gate, used.get("log", []))) or "—",
            ", ".join(others) or "—",
        )


def _log_gate(gate: Document) -> str:
    if "equals" in gate:
        return f"{gate['id']} is {gate['equals']}"
    if "at_least" in gate:
        return f"{gate['id']} at least {gate['at_least']:,}"
    return str(gate["id"]) if gate.get("expect") != "absent" else f"{gate['id']} (absent)"
