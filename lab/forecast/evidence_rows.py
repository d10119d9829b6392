"""Measured cells of a second hardware (recipes/evidence/h200-bench), each beside its prediction by that hardware."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core import paths, strict_yaml
from vllm_spark.recipe import architecture
from vllm_spark.sizing import layout, roofline
from vllm_spark.sizing.constants import Constants, HardwareEntry
from vllm_spark.sizing.load import Drafter, Load

FILE = Path(__file__).with_name("h200.yml")
FOLDER = paths.RECIPES / "evidence" / "h200-bench"

# Profiles whose cells the constants are fitted to; the others test them.
FITTED = ("standard", "compiled", "drafter")

# The drafter of the evidence has no weights, so no token of it is accepted.
DRAFTED, ACCEPTED = 4, 0.0

FP8 = {"attention": "fp8", "mlp": "fp8", "experts": "fp8", "head": "bf16"}
NVFP4 = {"attention": "bf16", "mlp": "nvfp4", "experts": "nvfp4", "head": "bf16"}


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One cell: its server and profile, its name, and the decode of a stream in tok/s."""

    server: str
    profile: str
    cell: str
    measured: float
    predicted: float

    @property
    def fitted(self) -> bool:
        return self.profile in FITTED

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@cache
def hardware() -> HardwareEntry:
    """Return the constants of an H200, with their meaning and rows."""
    content: HardwareEntry = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return content


def rows() -> Iterator[EvidenceRow]:
    """Yield every measured cell with greedy sampling."""
    # No value of a family of the Spark takes the place of one of these.
    values = hardware()["constants"]
    known = Constants(**values, own=frozenset(values), factors={})
    for file in sorted(FOLDER.glob("*.jsonl")):
        server, profile = file.name.split(".")[:2]
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["record"] == "cell" and "decode" in record["figures"] and not _sampled(record["cell"]):
                speed = _predicted(server, record["cell"], known)
                yield EvidenceRow(server, profile, record["cell"]["id"], record["figures"]["decode"]["median"], speed)


def _sampled(cell: Mapping[str, Any]) -> bool:
    return bool(cell["sampling"].get("temperature"))


def _predicted(server: str, cell: Mapping[str, Any], known: Constants) -> float:
    model = architecture.load("gemma-4-26b-a4b" if server.startswith("26b") else "gemma-4-31b")
    drafter = architecture.load(f"{model.name}-assistant") if server.endswith("mtp") else None
    load = Load(
        context=cell["depth"] + cell["prompt"] + cell["output"] // 2,
        streams=cell["streams"],
        tensor_parallel=2 if "tp2" in server else 1,
        drafter=Drafter(drafter, DRAFTED, ACCEPTED) if drafter else None,
        eager=cell["server"].get("mode") == "eager",
        marlin="marlin" in server,
    )
    widths = layout.widths(NVFP4 if "nvfp4" in server else FP8)
    return roofline.step(model, widths, load, known).tokens_per_s
