#!/usr/bin/env python3
"""Print how many GiB a lease of this Spark has that stops `other` and not `tiny`, as lifecycle/lending.py counts."""

import json
from pathlib import Path

GIB = 1 << 30
table = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
total, available = (int(table[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
rooms = [json.loads(Path(f"/etc/vllm-spark/{name}/deployed.json").read_text())["room"] for name in ("tiny", "other")]
takes = [max(room["share"] * total + room["beside_bytes"], room["bytes"]) for room in rooms]
free = min(available, total - sum(takes)) - max(room["floor_bytes"] for room in rooms)
print(f"{(free + takes[1] / 2) / GIB:.2f}", end="")
