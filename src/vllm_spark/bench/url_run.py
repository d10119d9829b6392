"""A run of a profile against any OpenAI-compatible server, from this machine."""

from __future__ import annotations

import socket
import time
import urllib.parse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.bench import evidence, key, profile_fit
from vllm_spark.bench.profile_fit import LeftOut
from vllm_spark.bench.profiles import Profile
from vllm_spark.core.refusal import register
from vllm_spark.node.bench import evidence_file, faults, job
from vllm_spark.node.bench.records import Cell, RunRecord, Sample, Subject
from vllm_spark.node.bench.runner import Progress, Runner
from vllm_spark.node.bench.server import Server, ServerError
from vllm_spark.node.bench.stream import Endpoint
from vllm_spark.node.bench.telemetry import Sampler

BENCH_SERVER = register("bench-server", runbook="bench-refused")
BENCH_CELLS = register("bench-cells", runbook="bench-refused")
BENCH_ACCEPT = register("bench-accept", runbook="bench-refused")
BENCH_FILE = register("bench-file", runbook="bench-refused")

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class UrlRun:
    """A profile, the server to measure and the evidence file. `accepted` has ids of faults that count as warnings.

    `key` is the API key; empty for a server without one. `model` may be empty for a server with one model.
    """

    url: str
    model: str
    key: str
    profile: Profile
    path: Path
    accepted: Sequence[str] = ()

    def connect(self) -> Server:
        """Return the server. Raises RefusedError for one that does not answer or serves another model."""
        unknown = [name for name in self.accepted if name not in faults.KINDS]
        if unknown:
            known = ", ".join(faults.KINDS)
            raise BENCH_ACCEPT.error(what=f"--accept {unknown[0]}", expected=f"one of {known}", fix="correct the name.")
        try:
            return Server.connect(Endpoint(self.url, self.key), self.model)
        except ServerError as error:
            raise BENCH_SERVER.error(
                what=str(error),
                expected="an OpenAI-compatible server that serves the model",
                fix="correct the URL or --model; a server with an API key needs it in the variable "
                "that --key-variable names.",
            ) from error

    def cells(self, server: Server) -> tuple[list[Cell], list[LeftOut]]:
        """Return the cells to measure, and those that the server cannot answer. Raises RefusedError if none is left."""
        unchanged = [cell for cell in self.profile.cells if not cell["server"]]
        fit = profile_fit.fit(unchanged, server.max_model_len, None)
        if not fit.cells:
            reason = fit.left_out[0].why if fit.left_out else "its cells change the server"
            raise BENCH_CELLS.error(
                what=f"profile {self.profile.name} has no cell for {self.url}: {reason}",
                expected="a profile that this server can answer",
                fix="--profile smoke; `ansible-playbook bench.yml` runs the profiles that change the server.",
            )
        return list(fit.cells), list(fit.left_out)

    def run(self, server: Server, cells: Sequence[Cell], report: Callable[[Progress], None]) -> Progress:
        """Measure the cells that the file does not have yet. Raises RefusedError if the file belongs to another run."""
        record = self._record(server)
        with ExitStack() as stack:
            # The samples of another machine than the server's would explain nothing.
            local = urllib.parse.urlsplit(self.url).hostname in LOOPBACK
            sampler = stack.enter_context(Sampler(time.perf_counter(), clock=time.perf_counter)) if local else None
            if sampler:
                record = job.with_gpu(record, socket.gethostname(), sampler.gpu)
            runner = Runner(
                server,
                self.profile.rules,
                prompt=job.prompts(server, record["id"]),
                samples=lambda begin, zero: _samples(sampler, begin, zero),
                report=report,
                gpus={socket.gethostname(): sampler.gpu} if sampler else {},
                accepted=self.accepted,
            )
            try:
                return runner.run(record, cells, self.path)
            except evidence_file.OtherRunError as error:
                raise BENCH_FILE.error(
                    what=str(error),
                    expected="a new file, or that of an interrupted run of this profile and this server",
                    fix="--output with another name.",
                ) from error

    def _record(self, server: Server) -> RunRecord:
        subject: Subject = {
            "deployment": "",
            "recipe": "",
            "served_name": server.model,
            "url": self.url,
            "engine_version": server.version,
        }
        run_key = key.of_server(server.model, urllib.parse.urlsplit(self.url).netloc)
        return evidence.begin(self.profile.document, run_key, subject)


def _samples(sampler: Sampler | None, begin: float, zero: float) -> dict[str, list[Sample]]:
    return {socket.gethostname(): sampler.since(begin, zero)} if sampler else {}
