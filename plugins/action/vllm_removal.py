"""What prune or remove takes away from a box, said before it goes.

A shim over vllm_spark.lifecycle.prune and .remove.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import installed, prune, remove

display = Display()


class ActionModule(ActionBase):
    """Args: box (the name under which vllm_holdings was registered), remove (the fields of remove.Asked; without it,
    prune), again (true: what is left of it is an error). Returns the items for vllm_remove."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given, host = self._task.args, (task_vars or {})["inventory_hostname"]
        known, hosts = (task_vars or {})["hostvars"], (task_vars or {})["ansible_play_hosts"]
        # One that a check with an error has left out of the play has been looked at, or not.
        boxes = {name: known[name][given["box"]]["holdings"] for name in hosts if given["box"] in known[name]}
        asked = remove.RemoveRequest(**given["remove"]) if "remove" in given else None
        again = given.get("again", False)
        refused = [] if again else list(remove.refusals(asked, boxes) if asked else prune.refusals(boxes))
        if refused:
            raise AnsibleActionFail(str(RefusedError(refused)))
        items, left = remove.plan(boxes[host], asked) if asked else prune.plan(boxes[host])
        if again:
            if items:
                raise AnsibleActionFail(str(remove.remaining_lines(host, items)))
            return {"changed": False, "items": []}
        verb = "would remove" if self._task.check_mode else "removes"
        for line in installed.format_items(items, left, verb):
            display.display(f"{host}  {line}")
        return {"changed": False, "items": [item.to_json() for item in items], "_ansible_verbose_override": True}
