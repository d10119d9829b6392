"""Checks of a host before anything changes. Every file of this folder is a subject whose checks register themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vllm_spark.core.refusal import Refusal
from vllm_spark.deploy.check_registry import REGISTRY, Check, Severity
from vllm_spark.deploy.checks.docker import docker_refusals
from vllm_spark.deploy.checks.model import checksummed_files, folders_of_the_engine, model_folders
from vllm_spark.deploy.checks.port import required_ports
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec

__all__ = [
    "docker_refusals",
    "model_folders",
    "questions",
    "refusals",
    "registered",
    "required_ports",
]

# The order in which subjects are shown. A file that is not named here comes last.
SUBJECTS = (
    *("hardware", "docker", "model", "port", "router", "units"),
    *("gpu_users", "memory", "known_faults", "gpu", "disk", "clock", "pair", "reboot"),
)

# The facts that spark_facts reads only on request, and the request for one host.
QUESTIONS: Mapping[str, Callable[[Spec], Any]] = {
    "paths": model_folders,
    "checksums": checksummed_files,
    "unreadable": folders_of_the_engine,
    "outside": model_folders,
    "ports": lambda spec: list(required_ports(spec)),
    "host": lambda _: True,
    "disks": lambda spec: [spec.site.hub_dir, spec.site.cache_dir],
}

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def registered(severity: Severity) -> list[Check]:
    """Return the checks of one severity: by subject, and in a file in the order of its lines."""
    checks = [check for check in REGISTRY.values() if check.severity == severity]
    place = {subject: index for index, subject in enumerate(SUBJECTS)}
    return sorted(checks, key=lambda check: (place.get(check.module, len(place)), check.module))


def refusals(context: HostContext) -> Iterator[Refusal]:
    """Yield every reason why this host cannot run this deployment."""
    for check in registered("refusal"):
        yield from check.refusals(context)


def questions(spec: Spec) -> dict[str, Any]:
    """Return the arguments of spark_facts that read the facts which the checks need."""
    needed = {name for check in REGISTRY.values() for name in check.needs}
    return {name: question(spec) for name, question in QUESTIONS.items() if name in needed}
