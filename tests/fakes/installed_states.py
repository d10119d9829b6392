"""Results of vllm_holdings for a host: launches, images and containers, each named by one letter."""

from __future__ import annotations

from typing import Any

ENGINE = "vllm/vllm-openai"
LOCAL = "127.0.0.1:25093"
BASE = f"{LOCAL}/docker.io/{ENGINE}@sha256:{'b' * 64}"


def record(mark: str, derived: bool = False) -> dict[str, Any]:
    """Return a deployed.json whose digest, launch and model contain the letter `mark`."""
    fields: dict[str, Any] = {
        "deployment": "demo",
        "recipe": f"recipe-{mark}",
        "image": f"{ENGINE}:{mark}",
        "digest": f"sha256:{mark * 64}",
        "model": f"org/model-{mark}@{mark * 40}",
        "launch": mark * 64,
        "toolkit": "0.1 (abc)",
    }
    if derived:
        fields |= {"derived": {"image": f"{LOCAL}/derived/recipe-{mark}:{mark * 12}", "inputs": mark * 64}}
    return fields


def launch(mark: str, derived: bool = False, **more: Any) -> dict[str, Any]:
    needs = {
        "snapshots": [],
        "models": [f"/hub/models--org--model-{mark}"],
        "files": [f"/etc/vllm-spark/demo/mounts/{mark}-file"],
        "cache": "/var/lib/vllm-spark/cache/demo",
        "pair": False,
        "peers": [],
        **more.pop("needs", {}),
    }
    kept = {
        "record": record(mark, derived),
        "runnable": True,
        "gates": True,
        "secrets": [],
        "needs": needs,
        "path_faults": [],
    }
    kept |= {"edited": False, "command": [f"--flag {mark}"]}
    return {**kept, **more}


def deployment(name: str = "demo", mounts: str = "", **launches: dict[str, Any]) -> dict[str, Any]:
    """Return a deployment: launches by place (current, previous, failed); `mounts` has a letter per mounted file."""
    folder = f"/etc/vllm-spark/{name}"
    return {
        "folder": folder,
        "launches": launches,
        "mounts": [{"path": f"{folder}/mounts/{mark}-file", "bytes": 1} for mark in mounts],
    }


def pulled(mark: str, *tags: str, size: int = 10) -> dict[str, Any]:
    return {
        "id": f"sha256:id-{mark}",
        "identity": "",
        "tags": list(tags),
        "digests": [f"{LOCAL}/docker.io/{ENGINE}@sha256:{mark * 64}"],
        "labels": {},
        "bytes": size,
        "own": size,
    }


def derived(mark: str, *tags: str, base: str = BASE) -> dict[str, Any]:
    return {
        "id": f"sha256:id-derived-{mark}",
        "identity": f"content sha256:{mark * 64}",
        "tags": [f"{LOCAL}/derived/recipe-{mark}:{mark * 12}", *tags],
        "digests": [],
        "labels": {"vllm-spark.inputs": mark * 64, "vllm-spark.base": base},
        "bytes": 5,
        "own": 1,
    }


def container(name: str, image_id: str, ours: bool = True) -> dict[str, Any]:
    return {"name": name, "image_id": image_id, "image": "any", "state": "running", "ours": ours}


def judged(deployed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a history in which each launch of a deployment passed its gates."""
    return [{"launch": launch_["record"].get("launch"), "holds": True} for launch_ in deployed["launches"].values()]


def holdings(
    deployments: dict[str, Any] | None = None, images: Any = (), containers: Any = (), **more: Any
) -> dict[str, Any]:
    held = {
        "deployments": deployments or {},
        "history": {name: judged(entry) for name, entry in (deployments or {}).items()},
        "states": [],
        "pulled": [],
        "docker": {
            "error": "",
            "images": list(images),
            "containers": list(containers),
        },
        "units": {},
        "unit_files": [],
        "unit_files_of_others": [],
        "programs": [],
        "run": [],
        "config": "/etc/vllm-spark" if deployments else "",
        "state": [],
        "builds": [],
        "models": [],
        "caches": [],
        "shared_blobs": [],
        "accounts": [],
        "packages": [],
        "paths": {},
    }
    return {**held, **more}
