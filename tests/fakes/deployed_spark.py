"""Facts of a Spark in the state that `deploy` produces. A test changes one of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fakes.cases import build
from fakes.loaded_table import table_facts
from vllm_spark.deploy import launch
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import launch_difference

STARTED = 1000.0
ALIVE = {"ready": True, "misses": 0, "invocation": "i", "age_s": 5.0}


SERVING = {"state": "serving", "why": "", "since": STARTED, "last_end": "", "peers": [], "written": True}


def launch_found(script: str, edit: str = "", edited_at: float | None = None) -> dict[str, Any]:
    """Return the facts of a launch on its host: as it was deployed, or with what an editor has made of it."""
    found = edit or script
    return {
        "deployed": launch_difference.standing(script),
        "found": launch_difference.standing(found),
        "of_start": launch_difference.of_start(found),
        "command": launch_difference.command(found),
        "edited_at": edited_at,
    }


def deployed_facts(spec: Spec, facts: dict[str, Any]) -> dict[str, Any]:
    """Change the facts to those of a Spark that serves this spec. The spec of a pair comes from ranks.join."""
    name, unit = spec.deployment.name, spec.deployment.unit
    active = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "NRestarts": "0"}
    active |= {"InvocationID": "i"}
    facts["units"] = {unit: {**active, "active_s": 67.0}, spec.deployment.timer: {"ActiveState": "active"}}
    facts["running_units"] = [unit]
    facts["images"] = {spec.image: "sha256:3"}
    facts["docker"]["containers"] = {
        spec.deployment.container: {
            "id": "0" * 64,
            "image": spec.image,
            "image_id": "sha256:3",
            "labels": {"vllm-spark.launch": launch.fingerprint(spec)},
            "state": "running",
            "started": STARTED,
        }
    }
    built = build(spec, facts)
    record = next(file.content for file in built.files if file.path.endswith("/deployed.json"))
    facts["records"] = {name: json.loads(record)}
    facts["env_mtimes"] = {name: STARTED - 1}
    facts["states"] = {name: {**SERVING}}
    facts["status"] = {
        "deployments": {name: {"launch": launch.script(spec), "counters": [], "liveness": ALIVE, "history": []}},
        "lock": None,
    }
    facts["launches"] = {name: launch_found(launch.script(spec))}
    facts["folders"] = list(built.folders)
    facts["files"] = {file.path: [hashlib.sha256(file.content.encode()).hexdigest(), file.mode] for file in built.files}
    if built.link_path:
        facts["files"][built.link_path] = ["5" * 64, "0600"]
    facts["table"] = table_facts(HostIntent.of_rank(spec))
    facts["env"] = {"added": [], "removed": [], "changed": [], "same": True}
    return facts
