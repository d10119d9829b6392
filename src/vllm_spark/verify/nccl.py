"""The NCCL of each rank, as its own log names it: all ranks of a server have one version. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from vllm_spark.core.refusal import Refusal, register

NCCL_DIFFERS = register("nccl-differs", runbook="pair-differs")

# Each rank prints it at INFO, with its CUDA behind the plus sign (NCCL init.cc; seen in 2.28.9 and 2.31.2).
VERSION = re.compile(r"NCCL INFO NCCL version ([\d.]+)")


def versions(lines: Sequence[str]) -> list[str]:
    """Return the versions in a log, each once. The head of a Ray cluster has the lines of all ranks."""
    return sorted({found[1] for line in lines if (found := VERSION.search(line))})


def refusals(by_host: Mapping[str, Sequence[str]]) -> Iterator[Refusal]:
    """Yield a refusal if the ranks have different versions. A host whose log names none says nothing."""
    known = {host: found for host, found in by_host.items() if found}
    if len({version for found in known.values() for version in found}) > 1:
        yield NCCL_DIFFERS(
            what="the ranks have different versions of NCCL: "
            + ", ".join(f"{host} {' and '.join(found)}" for host, found in known.items()),
            expected="one version, because the ranks of a collective speak one protocol",
            fix="remove NCCL from image.derive.pip, from the mounts and from LD_LIBRARY_PATH of the recipe, then "
            "`ansible-playbook deploy.yml`: it puts one image on all ranks.",
        )
