"""docs/reference/checklist.md: conditions before, during and after a deployment. The middle part lists the gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import paths
from vllm_spark.docs.markdown import table
from vllm_spark.recipe import loader, shared_gates
from vllm_spark.verify import registry
from vllm_spark.verify.gates import answer, log, ready

HEAD = """\
# Deployment checklist

Made by `vllm-spark docs` from the gates and `recipes/*.yml`; do not edit it. Before a deployment, each line names the
command that checks it; the command ends with a fault and its fix where the line does not hold. The gates judge the
deployment itself. Only its owner can judge what comes after them.
"""
GATES_HEAD = """\
`ansible-playbook deploy.yml -l HOST` ends with the gates, and `ansible-playbook verify.yml -l HOST` judges them again.
Cheap gates come first, and no gate follows one that fails. A recipe switches an optional gate on by naming it:
`recipes/schema.json`, under `gates`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A condition, and the command that checks it or shows what to judge. `refusals` are the ids with which the command
    ends if the condition does not hold."""

    what: str
    command: str
    refusals: tuple[str, ...] = ()
    runbooks: tuple[str, ...] = ()


BEFORE = (
    Line(
        "The recipe and its files are what its schema and its checksums say.",
        "vllm-spark check", ("bad-recipe",), ("recipe-refused",),
    ),
    Line(
        "The image has a digest, not a tag alone: one tag is no superset of another with a similar name.",
        "ansible-playbook lock.yml -l HOST", (), ("image-not-locked", "lock-moved"),
    ),
    Line(
        "Model and drafter have a commit, and a file that the recipe mounts over the engine's has a checksum.",
        "ansible-playbook lock.yml -l HOST", (), ("lock-model",),
    ),
    Line(
        "Model, engine version, kernels and parsers are no combination that is known to fail.",
        "vllm-spark plan RECIPE", (), ("known-issue",),
    ),
    Line(
        "It fits into memory and on the disk, and the speed foreseen is fast enough: a dense model on a Spark is not.",
        "ansible-playbook plan.yml -l HOST", ("no-room-for-the-cache", "too-little-disk"), ("plan-no-go", "slow"),
    ),
    Line(
        "Model and drafter are on every Spark, at the recipe's commit, and mounted files have their checksum.",
        "ansible-playbook precheck.yml -l HOST", ("no-model", "wrong-checksum"), ("model-missing",),
    ),
    Line(
        "Nothing else holds the memory or the port: no desktop program, no model of Ollama, no other server.",
        "ansible-playbook precheck.yml -l HOST", ("too-little-memory", "port-taken"),
        ("too-little-memory", "gpu-memory-held", "port-taken"),
    ),
    Line(
        "GPU, driver and Docker answer, and the image is for this machine.",
        "ansible-playbook precheck.yml -l HOST", ("no-gpu", "no-docker", "wrong-architecture"),
        ("wrong-host", "docker-missing"),
    ),
    Line(
        "Two Sparks: cable, addresses, MTU and GIDs fit each other.",
        "ansible-playbook precheck.yml -l HEAD,WORKER",
        ("fabric-none", "fabric-no-address", "fabric-mtu", "fabric-no-gid"),
        ("fabric-none", "fabric-no-address", "fabric-mtu", "fabric-no-gid"),
    ),
    Line(
        "The launch is what you mean to run: image by digest, flags, mounts, variables.",
        "ansible-playbook deploy.yml --check --diff -l HOST",
    ),
)  # fmt: skip

AFTER = (
    Line("The report of every host is kept, with the recipe's commit.", "vllm-spark report"),
    Line(
        "Speed is inside the interval foreseen, and the same over several runs.", "vllm-spark plan RECIPE", (),
        ("slow", "gpu-clocks", "drafter"),
    ),
    Line(
        "Behind a router: it asks no other model when this one refuses.", "ansible-playbook verify.yml -l HOST", (),
        ("silent-failover",),
    ),
    Line("Whoever reaches the port is meant to, or the server has a key.", "ansible-playbook precheck.yml -l HOST"),
    Line("After a reboot it serves by itself.", "ansible-playbook status.yml -l HOST", (), ("engine-failed-to-start",)),
    Line(
        "The log of the start holds no finding.",
        "ssh HOST sudo journalctl -u vllm@NAME -o cat -b | vllm-spark doctor -",
    ),
)  # fmt: skip


def text() -> str:
    """Return the text of the page."""
    recipes = {name: loader.load(name).document["gates"] for name in sorted(loader.names([paths.RECIPES]))}
    parts = [
        HEAD.rstrip(),
        "## Before",
        "\n".join(map(_box, BEFORE)),
        "## The gates",
        GATES_HEAD,
        table(("gate", "proves", "judged where"), _gate_rows()),
        "### By recipe",
        "Gates that every deployment has are left out. Ready: the time limit for the first token.",
        table(("recipe", "ready", "lines of the log", "other gates"), _recipe_rows(recipes)),
        "### Lines of the log",
        table(("id", "on a miss"), ((f"`{name}`", gate["why"]) for name, gate in shared_gates.load().items())),
        "## After",
        "\n".join(map(_box, AFTER)),
    ]
    return "\n\n".join(parts) + "\n"


def _box(line: Line) -> str:
    read = ", ".join(f"[{name}](../runbooks/{name}.md)" for name in line.runbooks)
    return f"- [ ] {line.what}\n      `{line.command}`" + (f" — {read}" if read else "")


def _gate_rows() -> Iterator[tuple[str, str, str]]:
    for gate in registry.GATES:
        yield f"`{gate.name}`", gate.proves, gate.judged_where


def _recipe_rows(recipes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    own_column = {ready.NAME, log.NAME, answer.NAME}
    for name, used in recipes.items():
        others = [gate.name for gate in registry.GATES if gate.name in used and gate.name not in own_column]
        yield (
            f"[{name}](recipes.md#{name.replace('.', '')})",
            f"{used['ready']['deadline_s']} s",
            "; ".join(map(_log_gate, used.get("log", []))) or "—",
            ", ".join(others) or "—",
        )


def _log_gate(gate: Mapping[str, Any]) -> str:
    if "equals" in gate:
        return f"{gate['id']} is {gate['equals']}"
    if "at_least" in gate:
        return f"{gate['id']} at least {gate['at_least']:,}"
    return gate["id"] if gate.get("expect") != "absent" else f"{gate['id']} (absent)"
