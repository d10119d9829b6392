"""The bundle of a site without internet: written where it is not finished, read whole where it is. A shim over
vllm_spark.transfer.bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec

display = Display()


class ActionModule(ActionBase):
    """Args: hosts, folder, registries (host -> URL), token of the hub, environment of its library. Returns `written`:
    this run was for writing it, and no Spark is asked for anything."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        # Half a second of imports that no other verb needs.
        from vllm_spark.transfer import bundle  # noqa: PLC0415

        given, known = self._task.args, (task_vars or {})["hostvars"]
        folder = Path(given["folder"]).expanduser().resolve()
        specs = [Spec.from_json(entry) for name in given["hosts"] for entry in known[name]["vllm_pull_wanted"]["specs"]]
        wanted = bundle.BundleRequest.of(specs)
        if bundle.is_finished(folder):
            if refused := bundle.refusals(folder, wanted, display.display):
                raise AnsibleActionFail("\n".join(map(str, refused)))
            return {"changed": False, "written": False}
        if self._task.check_mode:
            display.display(
                f"{folder} would get {', '.join(map(str, [*(i.name for i in wanted.images), *wanted.models]))}"
            )
            return {"changed": True, "written": True}
        token = {"HF_TOKEN": given["token"]} if given["token"] else {}
        outside = bundle.RemoteSources(given["registries"], token | dict(given["environment"]))
        try:
            bundle.write(folder, wanted, outside, version.version(), display.display)
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        display.display(f"{folder} is finished. Inside, the same command loads from it.")
        return {"changed": True, "written": True}
