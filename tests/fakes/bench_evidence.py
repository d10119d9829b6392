"""Evidence files as a bench writes them: a dense 31B model, and a 26B mixture of experts with a drafter.

The figures follow the field reports: 7 tok/s for the dense model, 50 to 76 tok/s for the other. Noise is seeded."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from vllm_spark.bench.evidence import Evidence
from vllm_spark.node.bench.records import SCHEMA, UNITS

DEPTHS = (0, 4096, 8192, 16384, 32768, 65536)
PROMPTS = (512, 2048, 8192, 32768)
STREAMS = (1, 2, 4, 8)
SPECULATIVE = (1, 2, 3, 4, 5, 6)
MODES = ("eager", "compiled")
CORPORA = {"chat": 0.74, "code": 0.85, "json": 0.87, "long": 0.66}


@dataclass(frozen=True)
class Server:
    """What the figures depend on: a step without draft in ms, prompt tokens per second, drafter, memory in GiB."""

    name: str
    model: str
    step: float
    prefill: float
    speculative_tokens: int
    memory: float
    phases: dict[str, float]


DENSE = Server(
    "gemma-31b",
    "nvidia/Gemma-4-31B-IT-NVFP4",
    142.0,
    940.0,
    0,
    94.0,
    {"container": 2.1, "weights": 212.4, "compile": 96.0, "graphs": 31.5, "warm-up": 12.2},
)
MIXTURE = Server(
    "gemma-26b",
    "google/gemma-4-26B-A4B-it",
    37.0,
    4100.0,
    4,
    71.0,
    {"container": 1.9, "weights": 88.3, "compile": 121.0, "graphs": 44.1, "warm-up": 9.0},
)


@dataclass
class Bench:
    """A run of a profile against a server. `slower` is a factor of every time; `hosts` are the names in order."""

    server: Server = DENSE
    seed: int = 1
    slower: float = 1.0
    hosts: Sequence[str] = ("spark1",)
    profile: str = "standard"
    started: str = "2026-03-02T08:15:00Z"
    subject: dict[str, str] = field(default_factory=dict)
    key: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  noise of made-up figures
        self.clock = 0.0

    def first(self) -> dict[str, Any]:
        """Return the record of the run."""
        key = {
            "model": self.server.model,
            "commit": f"{zlib.crc32(self.server.model.encode()):08x}" * 5,
            "layout": "attention=bf16 experts=nvfp4 head=bf16",
            "image": "sha256:" + "4f" * 32,
            "launch": f"{self.seed:012x}",
            "topology": "1 node" if len(self.hosts) == 1 else f"{len(self.hosts)} nodes, tp {len(self.hosts)}, ray",
            "hosts": ",".join(self.hosts),
            "toolkit": "0.1.0",
            "protocol": "5b0c2d9f11aa",
        }
        subject = {
            "deployment": self.server.name,
            "recipe": f"{self.server.name}-fp8",
            "served_name": self.server.name,
            "url": "http://spark1:8000/v1",
            "engine_version": "0.21.0",
        }
        return {
            "record": "run",
            "schema": SCHEMA,
            "id": f"{zlib.crc32(f'{self.server.name} {self.seed}'.encode()):08x}beef",
            "started": self.started,
            "profile": {"name": self.profile},
            "key": key | self.key,
            "subject": subject | self.subject,
            "host": {host: {"driver": "580.95.05", "kernel": "6.11.0-1016-nvidia"} for host in self.hosts},
        }

    def cell(  # noqa: PLR0913  the dimensions of a cell
        self,
        *,
        corpus: str = "chat",
        prompt: int = 2048,
        output: int = 128,
        depth: int = 0,
        streams: int = 1,
        server: dict[str, Any] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return the record of a measured cell."""
        changes = server or {}
        drafted = changes.get("speculative_tokens", self.server.speculative_tokens)
        by_position = [(CORPORA[corpus] * 0.985**position) ** (position + 1) for position in range(drafted)]
        accepted = [median(self._noise(share, 0.02)) for share in by_position]
        tokens = 1 + sum(by_position)
        step = self.slower * self.server.step * (1 + 0.075 * drafted + depth / 260_000 + 0.055 * (streams - 1))
        if changes.get("mode") == "eager":
            step *= 1.6
        first = 1000 * self.slower * streams**0.8 * (prompt + depth) / self.server.prefill * (1 + depth / 200_000) + 60
        decode = 1000 * tokens / step
        values = {
            "decode": self._noise(decode, 0.006),
            "total": self._noise(decode * streams, 0.006),
            "first_chunk": self._noise(first, 0.01),
            "first_token": self._noise(first + step, 0.01),
            "first_answer": self._noise(first + 40 * step / tokens, 0.03),
            "prefill": self._noise(self.server.prefill / self.slower / (1 + depth / 200_000), 0.01),
            "step": self._noise(step, 0.004),
            "request": self._noise(first / 1000 + output / decode, 0.006),
            "output": [output] * 3,
        }
        figures = {metric: _figure(UNITS[metric], found) for metric, found in values.items()}
        if drafted:
            figures["tokens_per_step"] = _figure("tok", self._noise(tokens, 0.01))
            figures["acceptance"] = _figure("1", self._noise((tokens - 1) / drafted, 0.01))
            figures["acceptance_by_position"] = {"unit": "1", "median": accepted, "spread": None, "values": [accepted]}
        took = seconds or 3.2 * (first / 1000 + output / decode)
        shape = {"corpus": corpus, "prompt": prompt, "output": output, "depth": depth, "streams": streams}
        return self._record(shape, changes, "measured", took, figures=figures)

    def start(self, kind: str) -> dict[str, Any]:
        """Return the record of a cold or a warm start."""
        factor = self.slower * (1.0 if kind == "cold" else 0.55)
        phases = {
            phase: round(factor * median(self._noise(size, 0.02)), 2) for phase, size in self.server.phases.items()
        }
        if kind == "warm":
            phases["compile"] = round(phases["compile"] * 0.12, 2)
        total = sum(phases.values())
        figures = {"start": _figure("s", [total]), "memory": _figure("GiB", [self.server.memory])}
        shape = {"corpus": "chat", "prompt": 64, "output": 1, "depth": 0, "streams": 1}
        return self._record(shape, {"start": kind}, "measured", total, figures=figures, phases=phases)

    def broken(self, state: str, fault: str, what: str, **shape: Any) -> dict[str, Any]:
        """Return the record of a cell that failed or is worthless."""
        full = {"corpus": "chat", "prompt": 2048, "output": 128, "depth": 0, "streams": 1} | shape
        return self._record(full, {}, state, 20.0, faults=[{"id": fault, "what": what}])

    def end(self, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the last record."""
        states = [cell["state"] for cell in cells]
        return {
            "record": "end",
            "seconds": self.clock,
            "measured": states.count("measured"),
            "failed": states.count("failed"),
        }

    def _record(
        self, shape: dict[str, Any], changes: dict[str, Any], state: str, seconds: float, **more: Any
    ) -> dict[str, Any]:
        begin, self.clock = self.clock, self.clock + seconds + 2
        words = [shape["corpus"], *(f"{name[0]}{shape[name]}" for name in ("prompt", "output", "depth", "streams"))]
        words += [f"{name}={value}" for name, value in changes.items()]
        cell = {"id": " ".join(words), **shape, "sampling": {"temperature": 0}, "server": changes}
        record = {"record": "cell", "cell": cell, "state": state, "started": begin, "seconds": seconds, "runs": 3}
        parts: dict[str, Any] = {"figures": {}, "faults": [], "phases": {}}
        samples = {host: [*self._samples(n, begin, seconds, shape["streams"])] for n, host in enumerate(self.hosts)}
        return record | parts | {"samples": samples} | more

    def _samples(self, rank: int, begin: float, seconds: float, streams: int) -> Iterator[dict[str, Any]]:
        """Yield a sample per second: a busy GPU, now and then a peak."""
        for second in range(int(seconds)):
            t = begin + second
            peak = 9.0 if self.random.random() < 0.004 else 0.0
            yield {
                "t": t,
                "memory_gib": round(self.server.memory + 8 + streams * 0.4 + peak + self.random.gauss(0, 0.05), 2),
                "cache_gib": round(18 - min(6.0, t / 900) + self.random.gauss(0, 0.1), 2),
                "swap_gib": 0.0,
                "power_w": round(38 + 3.2 * streams - 2 * rank + self.random.gauss(0, 1.4), 1),
                "sm_mhz": 2496.0 - (self.random.randrange(12) * 6 if self.random.random() < 0.3 else 0),
                "temperature_c": round(52 + 14 * (1 - 2.7 ** (-t / 500)) + self.random.gauss(0, 0.6), 1),
                "gpu_percent": 96.0,
                "throttle": "",
            }

    def _noise(self, value: float, spread: float) -> list[float]:
        return [value * (1 + self.random.gauss(0, spread)) for _ in range(3)]


def _figure(unit: str, values: Sequence[float]) -> dict[str, Any]:
    kept = [round(value, 3) for value in values]
    spread = round(stdev(kept) / fmean(kept), 4) if len(kept) > 1 else None
    return {"unit": unit, "median": median(kept), "spread": spread, "values": kept}


def standard(bench: Bench) -> list[dict[str, Any]]:
    """Return the records of a run with every kind of cell."""
    cells = [bench.start("cold"), bench.start("warm")]
    cells += [bench.cell(corpus=corpus, output=256) for corpus in CORPORA]
    cells += [bench.cell(prompt=prompt) for prompt in PROMPTS if prompt != 2048]
    cells += [bench.cell(depth=depth) for depth in DEPTHS]
    cells += [bench.cell(streams=streams) for streams in STREAMS[1:]]
    if bench.server.speculative_tokens:
        cells += [bench.cell(server={"speculative_tokens": tokens}) for tokens in SPECULATIVE]
    cells.append(bench.broken("failed", "status", "the server answered 429: too many requests", streams=16))
    cells.append(bench.broken("worthless", "throttled", "spark1 was throttled by temperature for 12 s", depth=100_000))
    cells[4]["faults"] = [{"id": "spread", "what": "the spread of 1.4 % stayed above 1 % for 7 runs"}]
    for sample in cells[-1]["samples"][bench.hosts[0]][5:12]:
        sample |= {"throttle": "hw_thermal_slowdown", "sm_mhz": 1410.0, "temperature_c": 91.0}
    return [bench.first(), *cells, bench.end(cells)]


def compiled(bench: Bench) -> list[dict[str, Any]]:
    """Return the records of a run of the profile `compiled`."""
    cells = [bench.cell(prompt=prompt, server={"mode": mode}) for mode in MODES for prompt in PROMPTS[:2]]
    return [bench.first(), *cells, bench.end(cells)]


SOAKED: Sequence[dict[str, Any]] = ({"corpus": "chat"}, {"corpus": "code"}, {"corpus": "chat", "streams": 4})


def soak(bench: Bench, hours: float, cell_seconds: float = 120) -> list[dict[str, Any]]:
    """Return the records of a soak: the same cells for hours, with a sample per second and host."""
    cells = []
    while bench.clock < hours * 3600:
        number = len(cells) // len(SOAKED) + 1
        for shape in SOAKED:
            cell = bench.cell(**shape, seconds=cell_seconds)
            cell["cell"]["id"] += f" #{number}" if number > 1 else ""
            cells.append(cell)
    return [bench.first(), *cells, bench.end(cells)]


def write(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write an evidence file, and return its path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def evidence_of(records: Sequence[Any]) -> Evidence:
    """Return the records as they are read from a file, without the time that the check of a soak takes."""
    cells = {record["cell"]["id"]: record for record in records if record["record"] == "cell"}
    end = next((record for record in records if record["record"] == "end"), None)
    return Evidence(Path("run.jsonl"), records[0], cells, end)
