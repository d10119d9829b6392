"""What a deploy does so that the owner is told about troubles, and what the verb `notify` says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vllm_spark.core.host_file import File
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.deploy import files
from vllm_spark.lifecycle.engine_state import iso
from vllm_spark.node import host_layout as layout

NOTIFY_ABSENT = register("notify-absent", runbook="notify")
NOTIFY_UNDELIVERED = register("notify-undelivered", runbook="notify")


def placed(settings: str, present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the module vllm_files, empty if the host has everything. `settings`: the text of the
    file with the secret; `present`: path -> a file of the host."""
    wanted = [*files.notify_program()]
    secret = File(layout.NOTIFY_SETTINGS, f"{settings}\n", "0600")
    if layout.NOTIFY_ENABLED in present and not any(file.differs(present) for file in (*wanted, secret)):
        return {}
    folders = [layout.CONFIG_DIR, *files.module_folders(), layout.NOTIFY_DIR]
    link = {"link_path": secret.path, "link_key": settings}
    return {"folders": folders, "files": [asdict(file) for file in wanted], **link}


def removed(present: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the items of the module vllm_remove for a host that shall tell nobody any more, none if it does not. The
    program and the units stay until `remove`."""
    its = (layout.NOTIFY_ENABLED, layout.NOTIFY_SETTINGS)
    if not any(path in present for path in its):
        return []
    items = [("unit", layout.NOTIFY_TIMER), *(("path", path) for path in (*its, layout.NOTIFY_DIR))]
    return [{"kind": kind, "name": name} for kind, name in items]


def line(found: Mapping[str, Any], *, tested: bool) -> str:
    """Return what a host says. `found`: what node/notify.py prints. `tested`: it has sent a test message. Raises
    RefusedError if the target takes no messages."""
    if why := found["why"] or found["failure"].get("why"):
        raise NOTIFY_UNDELIVERED.error(
            what=f"{found['target']} took no message: {why}; {len(found['wait'])} wait",
            expected="a target that takes them",
            fix=Fix("ansible-playbook notify.yml -e notify_test=true", "Before it, correct the target or vllm_notify."),
        )
    told = [f"{key if key == event else f'{event} of {key}'} since {iso(at)}"
            for key, (event, at) in found["memory"]["told"].items()]  # fmt: skip
    now = "a test message was taken" if tested else f"told and not over: {', '.join(told) or 'nothing'}"
    return f"{found['target']}: {now}"


def absent(host: str) -> RefusedError:
    """Return the refusal of a host without the program."""
    return NOTIFY_ABSENT.error(
        what=f"{host} has no vllm-notify, so it tells nobody",
        expected="vllm_notify in the inventory, and a deploy since",
        fix=Fix(f"ansible-playbook deploy.yml -l {host}", "Before it, set vllm_notify."),
    )
