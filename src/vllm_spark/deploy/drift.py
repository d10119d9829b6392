"""Drift: what `deploy` would change on a Spark, from the plan that `deploy` itself would make. Pure.

The Spark's side is facts.status of plugins/modules/spark_facts.py: checksums of files, names of variables, and the
launch without its secrets. Nothing here holds the value of one.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import host_layout
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Facts
from vllm_spark.deploy import plan
from vllm_spark.deploy.plan import File, Plan
from vllm_spark.inventory.spec import Spec

# A launch has some forty lines; one of another recipe differs in most of them.
DIFF_LINES = 40


@dataclass(frozen=True, slots=True)
class Drift:
    """`differs` is None where it cannot be known, and the first of `reasons` says why. `launch_diff` are lines of a
    unified diff, from what lies on the Spark to what `deploy` would place."""

    differs: bool | None
    reasons: tuple[str, ...] = ()
    launch_diff: tuple[str, ...] = ()

    def said(self, most: int = 2) -> str:
        """In a few words: `none`, or the first reasons."""
        if self.differs is False:
            return "none"
        more = len(self.reasons) - most
        return "; ".join([*self.reasons[:most], *([f"{more} more"] if more > 0 else [])])


def unknown(why: str) -> Drift:
    """Of a Spark that nobody could ask, or for which nobody knows what it shall run."""
    return Drift(None, (f"unknown: {why}",))


def of_host(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str, toolkit: str) -> Drift:
    """Of the deployment that a Spark shall serve. `specs` and `facts` are by host, of all hosts of the deployment."""
    absent = [name for name in specs[host].deployment.hosts if name not in facts or name not in specs]
    if absent:
        return unknown(f"{', '.join(absent)} was not asked")
    try:
        made, _ = plan.of_host(specs, facts, host, toolkit)
    except RefusedError as error:
        return Drift(True, (f"deploy refuses: {', '.join(refusal.id for refusal in error.refusals)}",))
    reasons = tuple(_reasons(made, facts[host]))
    return Drift(bool(reasons), reasons, tuple(_launch_diff(made, facts[host])))


def of_idle(facts: Facts) -> Drift:
    """Of a Spark that shall serve nothing."""
    stops = plan.idle_plan(facts)[0].stop_units
    return Drift(bool(stops), tuple(f"{unit} stops" for unit in stops))


def _reasons(made: Plan, facts: Facts) -> Iterator[str]:
    container = facts["docker"]["containers"].get(made.container)
    if container and container["image"] != made.image:
        yield f"image {_short(container['image'])} becomes {_short(made.image)}"
    if made.pull or made.build or made.transfer:
        yield f"image {_short(made.image)} is fetched or built"
    changed = [file for file in made.files if _differs(file, facts)]
    yield from _files(made, changed)
    yield from _env(facts["status"]["env"])
    if made.reload:
        yield "systemd reads its unit files anew"
    if not made.settled:
        # The plan's word for a unit: restarted or started.
        yield f"{made.unit} is {made.state}: {made.reason}"
    for unit in made.stop_units:
        yield f"{unit} stops"


def _files(made: Plan, changed: Iterable[File]) -> Iterator[str]:
    """The launch by itself, then the names of units, then those of other files."""
    names = [file.path for file in changed]
    launches = [name for name in names if name == _launch_path(made)]
    units = [name.rpartition("/")[2] for name in names if name.startswith(host_layout.UNIT_DIR)]
    others = [
        name.rpartition("/")[2] for name in names if name not in launches and not name.startswith(host_layout.UNIT_DIR)
    ]
    if launches:
        yield "launch"
    if units:
        yield f"units: {', '.join(units)}"
    if others:
        yield f"files: {', '.join(others)}"


def _env(env: Mapping[str, Any] | None) -> Iterator[str]:
    if env and not env["same"]:
        said = [f"{what} {', '.join(env[what])}" for what in ("added", "removed", "changed") if env[what]]
        yield f"env: {'; '.join(said) or 'its mode or its other lines'}"


def _differs(file: File, facts: Facts) -> bool:
    wanted = [hashlib.sha256(file.content.encode()).hexdigest(), file.mode]
    return list(facts["status"]["files"].get(file.path, [])) != wanted


def _launch_path(made: Plan) -> str:
    return f"{made.env_path.rpartition('/')[0]}/launch"


def _launch_diff(made: Plan, facts: Facts) -> Iterator[str]:
    """The lines that differ, none around them, and how many more there are."""
    wanted = next(file for file in made.files if file.path == _launch_path(made))
    if not _differs(wanted, facts):
        return
    name = made.unit.partition("@")[2].removesuffix(".service")
    there = facts["status"]["deployments"].get(name, {}).get("launch", "")
    found = difflib.unified_diff(there.splitlines(), wanted.content.splitlines(), n=0, lineterm="")
    lines = [line for line in list(found)[2:] if not line.startswith("@@")]
    yield from lines[:DIFF_LINES]
    if len(lines) > DIFF_LINES:
        yield f"… and {len(lines) - DIFF_LINES} lines more: deploy.yml --check --diff"


def _short(image: str) -> str:
    return image.rpartition(":")[2][:12]
