"""What the recipes leave open, asked of registries and hub, and the lock file written. A shim over
vllm_spark.pinning.lock_verb."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import lockfile

display = Display()


class ActionModule(ActionBase):
    """Args: those of locking.Wanted, and lock_file, registries (host -> URL) and token (of the hub)."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        # Half a second of imports that no other verb needs.
        from vllm_spark.pinning import lock_verb  # noqa: PLC0415
        from vllm_spark.pinning.hub import Hub  # noqa: PLC0415
        from vllm_spark.pinning.registry import Registry  # noqa: PLC0415

        given = self._task.args
        file, registry = Path(given["lock_file"]), Registry(given["registries"])
        wanted = lock_verb.LockRequest(
            deployments=given["deployments"],
            limit=tuple(given["limit"]),
            recipes=tuple(given["recipes"]),
            recipe_folders=tuple(Path(folder) for folder in given["recipe_folders"]),
            accepted=tuple(given["accepted"]),
            verify=given["verify"],
        )
        outside = lock_verb.RemoteSources(registry, Hub(token=given["token"]))
        try:
            done = lock_verb.run(wanted, file, outside, lock_verb.digest_check(registry), time.strftime("%Y-%m-%d"))
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        changed = done.before != done.after
        if changed and not self._task.check_mode:
            lockfile.write(file, done.after)
        for line in done.lines:
            display.display(line)
        diff = {"before": done.before, "after": done.after, "before_header": str(file), "after_header": str(file)}
        return {"changed": changed, "lines": list(done.lines), "diff": diff if changed else []}
