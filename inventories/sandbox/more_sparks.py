#!/usr/bin/env python3
"""The Sparks of the sandbox after the first two, as an inventory script: `SPARKS=4 make sandbox-up` has four."""

import json
import os

SPARKS = {f"spark{number}": number for number in range(3, int(os.environ.get("SPARKS") or 2) + 1)}


def inventory() -> dict[str, object]:
    """Return the hosts with their addresses, as hosts.yml has those of the first two."""
    hosts = {
        name: {"ansible_host": f"10.231.0.{10 + number}", "sandbox_spark_fabric_address": f"10.232.0.{10 + number}"}
        for name, number in SPARKS.items()
    }
    return {"sparks": {"hosts": [*hosts]}, "_meta": {"hostvars": hosts}}


if __name__ == "__main__":
    print(json.dumps(inventory()))
