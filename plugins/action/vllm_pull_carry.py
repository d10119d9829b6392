"""The way of a bundle to a Spark: a giver on this machine, and ssh's own connection to the Spark that leads to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.ports import BUNDLE_IMAGES_PORT, BUNDLE_WEIGHTS_PORT
from vllm_spark.core.refusal import register
from vllm_spark.transfer import bundle_server

BUNDLE_LACKS = register("bundle-lacks", runbook="bundle-lacks")

DEADLINE_S = 30


class ActionModule(ActionBase):
    """Args: folder and token to open it; opened, what that returned, to close it. No port of this machine is open but
    on its loopback device, and the Spark needs no way here but the ssh that is there."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        if self._task.check_mode:
            return {"changed": False}
        if opened := given.get("opened"):
            self._ssh("cancel", opened["ways"])
            bundle_server.stop(opened["process"])
            return {"changed": False}
        process, ports = bundle_server.start(Path(given["folder"]).expanduser().resolve(), given["token"])
        ways = [
            f"127.0.0.1:{BUNDLE_WEIGHTS_PORT}:127.0.0.1:{ports['weights']}",
            f"127.0.0.1:{BUNDLE_IMAGES_PORT}:127.0.0.1:{ports['images']}",
        ]
        if said := self._ssh("forward", ways):
            bundle_server.stop(process)
            raise AnsibleActionFail(
                str(
                    BUNDLE_LACKS(
                        what=f"no reverse tunnel from the Spark to the bundle: {said}",
                        expected="ssh with ControlMaster as in ansible.cfg, and a sshd that forwards ports",
                        fix="restore ssh_args of ansible.cfg, and set AllowTcpForwarding yes in the Spark's sshd.",
                    )
                )
            )
        return {"changed": False, "process": process, "ways": ways}

    def _ssh(self, what: str, ways: list[str]) -> str:
        """Ask Ansible's own connection for it; what ssh says against it."""
        host = self._connection.get_option("host")
        words = [word for way in ways for word in ("-R", way)]
        command = self._connection._build_command("ssh", "ssh", "-O", what, *words, host)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)  # noqa: S603
        return " ".join(done.stderr.split()) if done.returncode else ""
