"""The container that times the all-reduces of a server: the image, the fabric and the variables of its launch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core import paths
from vllm_spark.core.ports import MASTER_PORT
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.types import Facts
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec

NO_TIMING = register("no-timing", runbook="all-reduce")

# Options of the launch that decide how ranks reach each other and their GPU. Others belong to the engine: its files,
# its API, its limits and its secrets.
KEPT = (
    *("--cap-add", "--device", "--env", "--gpus", "--init", "--network", "--pull", "--rm"),
    *("--security-opt", "--shm-size", "--ulimit"),
)
# Seconds after which a container is stopped that waits for a rank.
DEADLINE_S = 240


def hindrances(specs: Mapping[str, Spec], facts: Mapping[str, Facts]) -> Iterator[Refusal]:
    """Yield why the ranks cannot be timed now: a server has the GPU of one, or one has no image."""
    name = next(iter(specs.values())).deployment.name
    for host, spec in specs.items():
        running = [unit for unit in facts[host].get("running_units", ()) if unit.startswith("vllm@")]
        if running:
            yield NO_TIMING(
                what=f"{host}: {', '.join(running)} has the GPU and its memory",
                expected="no server beside the timing",
                fix=Fix(f"ansible-playbook stop.yml -l {','.join(specs)}", "Time again, then deploy."),
            )
        if not facts[host].get("images", {}).get(spec.image):
            yield NO_TIMING(
                what=f"{host}: {spec.image} of {name} is not there",
                expected="the image of the server, whose NCCL is timed",
                fix=Fix(f"ansible-playbook pull.yml -l {','.join(specs)}"),
            )


def failure(host: str, done: Mapping[str, object]) -> Refusal:
    """Return the refusal of a rank whose container failed, with the last line that it printed."""
    printed = [line for line in f"{done.get('stdout', '')}\n{done.get('stderr', '')}".splitlines() if line.strip()]
    return NO_TIMING(
        what=f"{host}: no all-reduce was timed: {printed[-1].strip() if printed else 'the container printed nothing'}",
        expected="every rank in one NCCL group",
        fix=Fix("ansible-playbook precheck.yml", "It looks at the fabric; a deploy would meet the same fault."),
    )


def argv(spec: Spec) -> list[str]:
    """Return the command of one rank. `spec` has its group (deploy/ranks.py)."""
    assert spec.group  # noqa: S101  for the type checker
    options = [argument for group in launch.container_options(spec) if group[0] in KEPT for argument in group]
    program = (paths.NODE / "all_reduce.py").read_text(encoding="utf-8")
    return [
        *("timeout", str(DEADLINE_S), "docker", "run", *options, "--log-driver", "none", "--entrypoint", "python3"),
        *(spec.image, "-c", program),
        *(str(spec.rank), str(len(spec.group.members)), spec.group.head, str(spec.group.port(MASTER_PORT))),
    ]
