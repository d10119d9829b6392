"""A run of a profile on a deployment: the request of the job on its head."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.bench import profile_fit, profiles
from vllm_spark.bench.profile_fit import LeftOut
from vllm_spark.bench.profiles import Profile
from vllm_spark.core import paths, version
from vllm_spark.core.host_layout import BENCH_DIR
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench import corpora
from vllm_spark.node.bench.job import JobRequest
from vllm_spark.node.bench.records import SCHEMA, Cell, Key, RunRecord
from vllm_spark.verify.gate_request import GateRequest

NO_CELL = register("bench-no-cell", runbook="bench-refused")
NOT_DEPLOYED = register("bench-not-deployed", runbook="bench-refused")
JOB_FAILED = register("bench-job", runbook="bench-refused")

# Version of the client's definitions. Figures of another version are not comparable.
PROTOCOL = 1


def programs() -> dict[str, str]:
    """Return the client as text, by path below host_layout.BENCH_PROGRAM_DIR: its modules and its corpora."""
    folder = paths.NODE / "bench"
    files = [*sorted(folder.glob("*.py")), *sorted((folder / "corpora").iterdir())]
    return {
        **dict.fromkeys(("vllm_spark/__init__.py", "vllm_spark/node/__init__.py"), ""),
        **{f"vllm_spark/node/bench/{file.relative_to(folder)}": file.read_text(encoding="utf-8") for file in files},
    }


def not_deployed(spec: Spec) -> Refusal:
    """Return the refusal of a deployment that does not run as the inventory describes it."""
    name, hosts = spec.deployment.name, ",".join(spec.deployment.hosts)
    return NOT_DEPLOYED(
        what=f"{name} does not run as the inventory describes it",
        expected="a server whose launch is known, because its figures depend on it",
        fix=f"ansible-playbook deploy.yml -l {hosts}.",
    )


def job_failure(host: str, result: Mapping[str, Any]) -> Refusal:
    """Return the refusal for a job that ended without a run."""
    return JOB_FAILED(
        what=f"{host}: the bench ended: {result.get('detail', 'without a reason')}",
        expected="a server that answers",
        fix=f"ansible-playbook verify.yml -l {host}; then run the bench again, which continues where it was.",
    )


@dataclass(frozen=True, slots=True)
class DeploymentRun:
    """A profile and the deployment to measure. `accepted` has ids of faults that count as warnings."""

    spec: Spec
    gates: GateRequest
    env_path: str
    profile: Profile
    accepted: Sequence[str] = ()

    def request(self) -> tuple[JobRequest, list[LeftOut]]:
        """Return the job's request and the cells that the deployment cannot answer. Raises RefusedError without a cell.

        The evidence file is named by deployment, profile and key, so that an interrupted run continues in it.
        """
        cells, left_out = self._cells()
        run = self._run()
        request: JobRequest = {
            "url": self.gates.client_url(self.gates.address),
            "model": self.gates.served_name,
            "env_path": self.env_path,
            "host": self.spec.host,
            "path": f"{BENCH_DIR}/{self.spec.deployment.name}-{self.profile.name}.jsonl",
            "run": run,
            "cells": cells,
            "rules": {name: getattr(self.profile.rules, name) for name in type(self.profile.rules).__slots__},
            "accepted": list(self.accepted),
        }
        return request, left_out

    def _cells(self) -> tuple[list[Cell], list[LeftOut]]:
        unchanged = [cell for cell in profiles.for_recipe(self.profile, self.spec.recipe["name"]) if not cell["server"]]
        streams = self.spec.recipe.get("args", {}).get("max-num-seqs")
        fit = profile_fit.fit(unchanged, self.gates.max_model_len, int(streams) if streams else None)
        if not fit.cells:
            reason = fit.left_out[0].why if fit.left_out else "its cells change the server"
            raise RefusedError(
                [
                    NO_CELL(
                        what=f"profile {self.profile.name} has no cell for {self.spec.deployment.name}: {reason}",
                        expected="a profile that this deployment can answer",
                        fix="-e profile=smoke.",
                    )
                ]
            )
        return list(fit.cells), list(fit.left_out)

    def _run(self) -> RunRecord:
        return {
            "record": "run",
            "schema": SCHEMA,
            "id": secrets.token_hex(6),
            "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "profile": dict(self.profile.document),
            "key": self._key(),
            "subject": {
                "deployment": self.spec.deployment.name,
                "recipe": self.spec.recipe["name"],
                "served_name": self.gates.served_name,
                "url": self.gates.client_url(self.gates.address),
                "engine_version": self.gates.engine_version,
            },
            "host": {},
        }

    def _key(self) -> Key:
        model, topology = self.spec.recipe["model"], self.spec.recipe["topology"]
        layout: dict[str, str] = model.get("layout", {})
        nodes = topology["nodes"]
        return {
            "model": model["repository"],
            "commit": model.get("revision", ""),
            "layout": " ".join(f"{part}={width}" for part, width in sorted(layout.items())),
            "image": self.spec.image,
            "launch": self.gates.launch,
            "topology": "1 node"
            if nodes == 1
            else f"{nodes} nodes, tp {topology['tensor_parallel']}, {topology['executor']}",
            "hosts": ",".join(self.spec.deployment.hosts),
            "toolkit": version.version(),
            "protocol": f"{PROTOCOL}-{corpora.sha256()}",
        }
