"""What `collect` gets from the Sparks of a pair that has given up: the journals of both ranks and their programs."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

NAME, RECIPE = "pair-ray", "gemma-4-31b-fp8-tp2"
HOSTS = ("spark1", "spark2")
GAVE_UP = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "NRestarts": "4"}
ENGINE = "(EngineCore pid=80) ERROR 11-28 12:13:58 [core.py:1057] "
RESTARTED = f"vllm@{NAME}.service: Scheduled restart job, restart counter is at 4."
# The lines are those of src/vllm_spark/node, systemd, Ray and NCCL, as tests/data and the doctor's examples have them.
JOURNALS: Mapping[str, tuple[str, ...]] = {
    "spark1": (
        "spark1:77:91 [0] NCCL INFO Using network Socket",
        "Waiting for creating a placement group of specs for 310 seconds. specs=[{'GPU': 1.0}, {'GPU': 1.0}]. Check "
        "`ray status` and `ray list nodes`",
        "RayWorkerProc rank=1 died unexpectedly, shutting down executor.",
        f"{ENGINE}RuntimeError: Engine core initialization failed. See root cause above.",
        "vllm-spark: ending rank 0: its container ended with status 1",
        RESTARTED,
        "vllm-spark: ending rank 0: spark2 is lost: its container ended with status 1 (rank 1)",
        "vllm-spark: giving up: 5 starts within 60 min, the last ended because spark2 is lost",
    ),
    "spark2": (
        "rpc_client.h:153: Failed to connect to GCS at address 192.168.100.10:25001 within 5 seconds.",
        "Exception: The current node timed out during startup. This could happen because some of the raylet failed to "
        "startup or the GCS has become overloaded.",
        "RayWorkerProc rank=1 died unexpectedly, shutting down executor.",
        "vllm-spark: ending rank 1: its container ended with status 1",
        RESTARTED,
        "vllm-spark: ending rank 1: spark1 is lost: its container ended with status 1 (rank 0)",
        f"vllm@{NAME}.service: start operation timed out. Terminating.",
        f"vllm@{NAME}.service: Start request repeated too quickly.",
        "vllm-spark: waiting for spark1 at 192.168.100.10:25000: No route to host",
    ),
}
KERNEL = "mlx5_core 0000:01:00.1 enp1s0f1np1: Link down"
HANGS = f"vllm@{NAME}.service hangs: no token for 180 s; ending its container. See docs/runbooks/engine-hangs.md"


def files(host: str) -> dict[str, str]:
    """Return the texts of a Spark by their paths in a bundle."""
    own = {f"deployments/{NAME}/journal.log": "\n".join(JOURNALS[host]) + "\n", "host/kernel.log": f"{KERNEL}\n"}
    return own | {f"deployments/{NAME}/liveness.log": f"{HANGS}\n"}


def collected(host: str) -> dict[str, Any]:
    """Return the result of the module vllm_collect_logs."""
    manifest = {
        "time": 0.0,
        "deployments": {NAME: GAVE_UP},
        **{"weak_secrets": [], "notes": []},
    }
    text = json.dumps({"files": files(host), "manifest": manifest})
    return {"collected": base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()}


def variables() -> dict[str, dict[str, Any]]:
    """Return the variables of each Spark in the inventory."""
    placed = [{"name": NAME, "recipe": RECIPE, "hosts": list(HOSTS)}]
    resolved = {"spec": {"deployment": placed[0]}}
    own = {"ansible_user": "ada", "vllm_deployments": placed, "spark_precheck_resolved": resolved}
    return {host: {"ansible_host": f"{host}.local", **own} for host in HOSTS}
