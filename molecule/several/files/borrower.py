#!/usr/bin/env python3
"""Start a unit whose program holds so much that the start of `other` lacks half a GiB. Returns when it has that."""

import json
import subprocess
import time
from pathlib import Path

GIB = 1 << 30
HOLD = "import sys, time; held = b'1' * int(sys.argv[1]); print('held', flush=True); time.sleep(3600)"


def memory() -> tuple[int, int]:
    """Return (total, available) memory in bytes."""
    table = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(table[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    return total, available


total, available = memory()
room = json.loads(Path("/etc/vllm-spark/other/deployed.json").read_text())["room"]
needs = max(room["share"] * total + room["beside_bytes"], room["bytes"]) + room["floor_bytes"]
most = needs - GIB / 2
size = int(available - most)
unit = ["systemd-run", "--quiet", "--collect", "--unit=borrower.service"]
subprocess.run([*unit, "/usr/bin/python3", "-c", HOLD, str(size)], check=True)  # noqa: S603  no shell
deadline = time.monotonic() + 120
while memory()[1] > needs - GIB / 4:
    if time.monotonic() > deadline:
        raise SystemExit(f"{memory()[1] / GIB:.1f} GiB are still available, and other needs {needs / GIB:.1f}")
    time.sleep(1)
