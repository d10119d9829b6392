"""Resolve the images and models that the recipes do not pin, and write the lock file.

vllm_spark.pinning.lock_verb decides and asks the registries and the hub.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from vllm_spark.recipe import lockfile
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of lock_verb.LockRequest; lock_file, registries (host -> URL) and token (of the hub)."""

    _supports_diff = True

    def act(self) -> dict[str, Any]:
        # These imports take half a second, and no other verb needs them.
        from vllm_spark.pinning import lock_verb  # noqa: PLC0415
        from vllm_spark.pinning.hub import Hub  # noqa: PLC0415
        from vllm_spark.pinning.registry import Registry  # noqa: PLC0415

        args = self.args
        file, registry = Path(args["lock_file"]), Registry(args["registries"])
        request = lock_verb.LockRequest(
            deployments=args["deployments"],
            limit=tuple(args["limit"]),
            recipes=tuple(args["recipes"]),
            recipe_folders=tuple(Path(folder) for folder in args["recipe_folders"]),
            accepted=tuple(args["accepted"]),
            verify=args["verify"],
        )
        sources = lock_verb.RemoteSources(registry, Hub(token=args["token"]))
        done = lock_verb.run(request, file, sources, lock_verb.digest_check(registry), time.strftime("%Y-%m-%d"))
        changed = done.before != done.after
        if changed and not self.check_mode:
            lockfile.write(file, done.after)
        self.show(*done.lines)
        diff = {"before": done.before, "after": done.after, "before_header": str(file), "after_header": str(file)}
        return {"changed": changed, "lines": list(done.lines), "diff": diff if changed else []}
