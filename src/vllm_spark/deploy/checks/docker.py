"""The Docker engine."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Refusal
from vllm_spark.core.types import DockerFacts, Facts
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "no-docker",
    runbook="docker-missing",
    severity="refusal",
    needs=("docker",),
    what="no Docker engine answers: {error}",
    expected="the engine that DGX OS ships",
    fix="`sudo systemctl enable --now docker` on the Spark. If DGX OS no longer has it: `sudo apt-get install "
    "docker-ce containerd.io nv-docker-options nvidia-container-toolkit`.",
)
def no_docker(context: HostContext) -> Iterator[Observation]:
    yield from _without_engine(context.docker)


def docker_refusals(facts: Facts) -> Iterator[Refusal]:
    """Yield the refusals of this file, for a verb that has no spec of the host."""
    yield from (no_docker.refuse(observation.values) for observation in _without_engine(facts["docker"]))


def _without_engine(docker: DockerFacts) -> Iterator[Observation]:
    if not docker["version"]:
        yield Observation({"error": docker["error"]})
