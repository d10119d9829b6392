"""A run of a profile on a deployment: the requests of the jobs on its head and on its other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.bench import compare, evidence, key, profile_fit, profiles, variants
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.profile_fit import LeftOut
from vllm_spark.bench.profiles import Profile
from vllm_spark.bench.variants import Variant
from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench.job import JobRequest
from vllm_spark.node.bench.rank_job import RankRequest
from vllm_spark.node.bench.records import Cell, Key, RunRecord, Subject
from vllm_spark.node.host_layout import BENCH_DIR, BENCH_PROGRAM_DIR
from vllm_spark.verify.gate_request import GateRequest

NO_CELL = register("bench-no-cell", runbook="bench-refused")
NOT_DEPLOYED = register("bench-not-deployed", runbook="bench-refused")
JOB_FAILED = register("bench-job", runbook="bench-refused")
NO_FIGURES = register("bench-no-figures", runbook="bench-no-figures")


# Decode and prefill of a 31B in FP8 on one Spark in tok/s (field report 003), for the time that a run may take.
SLOW = (7.0, 1500.0)
# A sampler outlives a run that is this much slower, with a break between two of its cells.
LIMIT_FACTOR, LIMIT_MORE_S = 4, 2 * 3600.0
# A GPU that is idle for so long is not measured any more: longer than any pause between two requests of a run.
IDLE_S = 600.0

# The jobs of head and ranks have one name, so that one stop ends each.
JOB = "bench"


def programs() -> dict[str, str]:
    """Return the client as text, by path below host_layout.BENCH_PROGRAM_DIR: modules and corpora."""
    folder = paths.NODE / "bench"
    names = ("engine_api.py", "garbage.py", "host_job.py", "host_layout.py", "state_file.py", "unix_http.py")
    shared = [paths.NODE / name for name in names]
    files = [*shared, *sorted(folder.glob("*.py")), *sorted((folder / "corpora").iterdir())]
    return {
        **dict.fromkeys(("vllm_spark/__init__.py", "vllm_spark/node/__init__.py"), ""),
        **{f"vllm_spark/node/{file.relative_to(paths.NODE)}": file.read_text(encoding="utf-8") for file in files},
    }


def job(module: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of spark_host_job, beside its action, that start a module of node.bench as the job."""
    return {
        "programs": programs(),
        "program_dir": BENCH_PROGRAM_DIR,
        "argv": ["/usr/bin/python3", "-m", f"vllm_spark.node.bench.{module}", JOB],
        "request": dict(request),
    }


def not_deployed(spec: Spec) -> Refusal:
    """Return the refusal of a deployment that does not run as the inventory describes it."""
    name, hosts = spec.deployment.name, ",".join(spec.deployment.hosts)
    return NOT_DEPLOYED(
        what=f"{name} does not run as the inventory describes it",
        expected="a server whose launch is known, because its figures depend on it",
        fix=Fix(f"ansible-playbook deploy.yml -l {hosts}"),
    )


def without_figures(run: Evidence) -> Refusal | None:
    """Return the refusal of a run of which a cell failed or is worthless, or None."""
    lost = {name: reason for name, cell in run.cells.items() if (reason := compare.worthless(cell))}
    if not lost:
        return None
    name, reason = next(iter(lost.items()))
    return NO_FIGURES(
        what=f"{len(lost)} of {len(run.cells)} cells have no figures that count; {name}: {reason}",
        expected="figures of every cell",
        fix="remove what it names, then run the bench again; `-e accept=FAULT` counts a fault as a warning.",
    )


def job_failure(host: str, result: Mapping[str, Any]) -> Refusal:
    """Return the refusal for a job that ended without a run."""
    return JOB_FAILED(
        what=f"{host}: the bench ended: {result.get('detail', 'without a reason')}",
        expected="a server that answers",
        fix=Fix("ansible-playbook verify.yml", "Then run the bench again: it continues where it was."),
    )


def sampler_failure(host: str, detail: str) -> Refusal:
    """Return the refusal for a sampler that does not start on a rank."""
    return JOB_FAILED(
        what=f"{host}: its memory, power and clocks cannot be sampled: {detail or 'without a reason'}",
        expected="samples of every host of the deployment, because its slowest rank bounds the speed",
        fix=Fix("ansible-playbook precheck.yml", "Then run the bench again: it continues where it was."),
    )


def read_failure(host: str, path: str) -> Refusal:
    """Return the refusal for a file of a run that is missing on a host or cannot be read."""
    return JOB_FAILED(
        what=f"{host}: {path} has no evidence or cannot be read",
        expected="the file of the run that has ended",
        fix=Fix(f"ssh -t {host} sudo ls -l {path}", "Then run the bench again."),
    )


def evidence_path(spec: Spec, profile_name: str) -> str:
    """Return the evidence file of a run on the head, or on another rank the file with its samples."""
    kind = "samples.jsonl" if spec.rank else "jsonl"
    return f"{BENCH_DIR}/{spec.deployment.name}-{profile_name}.{kind}"


def profile(name: str, hours: float) -> Profile:
    """Return a profile. `hours`: of one that repeats its cells; 0 leaves its own."""
    return profiles.load(name, {"hours": hours} if hours else None)


@dataclass(frozen=True, slots=True)
class DeploymentRun:
    """A profile and the deployment to measure. `accepted` has ids of faults that count as warnings."""

    spec: Spec
    gates: GateRequest
    env_path: str
    profile: Profile
    accepted: Sequence[str] = ()

    @property
    def path(self) -> str:
        """The file of the run on this host. Its name is constant, so that an interrupted run continues in it."""
        return evidence_path(self.spec, self.profile.name)

    def request(self, run: RunRecord, cells: Sequence[Cell], *, ends: bool) -> JobRequest:
        """Return the request of the job that measures cells. `run` is that of `record`, of the server as it was before
        the first change. `ends`: no other cells follow."""
        return {
            "url": self.gates.host_url,
            "model": self.gates.served_name,
            "env_path": self.env_path,
            "host": self.spec.host,
            "container": self.gates.container,
            "path": self.path,
            "run": run,
            "cells": list(cells),
            "rules": {name: getattr(self.profile.rules, name) for name in type(self.profile.rules).__slots__},
            "accepted": list(self.accepted),
            "ends": ends,
        }

    def rank_request(self, cells: Sequence[Cell]) -> RankRequest:
        """Return the request of the sampler on another rank, while the head measures cells."""
        rules = self.profile.rules
        least = profile_fit.seconds(self.profile, cells, *SLOW)
        runs = 1.0 if rules.hours is not None else rules.last / rules.least_runs
        return {
            "host": self.spec.host,
            "container": self.gates.container,
            "path": self.path,
            "limit_s": round(LIMIT_FACTOR * runs * least + LIMIT_MORE_S),
            "idle_s": IDLE_S,
        }

    def variants(self) -> tuple[list[Variant], list[LeftOut]]:
        """Return what is measured, and the cells that the deployment cannot answer. Raises RefusedError without a
        cell."""
        cells = self.profile.of_recipe(self.spec.recipe["name"])
        impossible = [(cell, variants.impossible(cell["server"], self.spec.recipe)) for cell in cells]
        streams = self.spec.recipe.get("args", {}).get("max-num-seqs")
        possible = [cell for cell, why in impossible if not why]
        fit = profile_fit.fit(possible, self.gates.max_model_len, int(streams) if streams else None, self.gates.role)
        left_out = [*(LeftOut(cell, why) for cell, why in impossible if why), *fit.left_out]
        if not fit.cells:
            reason = left_out[0].why if left_out else f"it has none for recipe {self.spec.recipe['name']}"
            raise NO_CELL.error(
                what=f"profile {self.profile.name} has no cell for {self.spec.deployment.name}: {reason}",
                expected="a profile that this deployment can answer",
                fix="-e profile=smoke.",
            )
        return variants.of_cells(fit.cells), left_out

    def record(self) -> RunRecord:
        """Return the run record of the evidence."""
        spec, gates, model = self.spec, self.gates, self.spec.recipe["model"]
        run_key: Key = {
            **key.of_server(model["repository"], ",".join(spec.deployment.hosts)),
            "commit": model.get("revision", ""),
            "layout": key.layout(model),
            "image": spec.image if spec.derived else spec.source,
            "launch": gates.launch,
            "topology": key.topology(spec.recipe),
        }
        subject: Subject = {
            "deployment": spec.deployment.name,
            "recipe": spec.recipe["name"],
            "served_name": gates.served_name,
            "url": gates.host_url,
            "engine_version": gates.engine_version,
        }
        return evidence.begin(self.profile.document, run_key, subject)
