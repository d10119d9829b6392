"""The folders of a Spark on which deployments were placed, for programs of the host that a test runs as processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_spark.node.deployment_state import Places, present

NAMES = ("run", "states", "wants", "etc", "starts")
# A program begins so. Its first argument is the folder, whose parts take the places of those of a Spark.
BEGINS = f"""
import sys
from pathlib import Path
from vllm_spark.node import deployment_state, unit_limits
folder = Path(sys.argv[1])
deployment_state.PLACES = deployment_state.Places(*(str(folder / name) for name in {NAMES}))
unit_limits.MEMINFO = folder / "meminfo"
"""
GIB = 1 << 30


class PlacedSpark:
    """`room`: what deployed.json has of the memory of each deployment, beside a floor of 8 GiB. `available`: GiB."""

    def __init__(self, folder: Path, deployments: Sequence[str], room: Mapping[str, float], available: int) -> None:
        self.folder = folder
        self.places = Places(*(str(folder / name) for name in NAMES))
        self.processes: list[subprocess.Popen[Any]] = []
        for name in deployments:
            (folder / "etc" / name).mkdir(parents=True)
            record = {"room": {"beside_bytes": 0, "floor_bytes": 8 * GIB, **room}}
            (folder / "etc" / name / "deployed.json").write_text(json.dumps(record))
            (folder / "etc" / name / "launch").write_text("exec docker run image\n")
        self.available(available)

    def available(self, gib: int) -> None:
        (self.folder / "meminfo").write_text(f"MemTotal: {128 << 20} kB\nMemAvailable: {gib << 20} kB\n")

    def state(self, name: str) -> tuple[str, str]:
        now = present(name, self.places)
        return now["state"], now["why"]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
