"""Serve the bundle on this machine and reverse-forward it over Ansible's SSH connection to the Spark.

The server listens on the loopback device only, and the Spark needs no other connection to this machine. If this machine
is the Spark, the server takes the port of the tunnel.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.core import inventory_host
from vllm_spark.core.ports import BUNDLE_PORT, LOOPBACK
from vllm_spark.core.refusal import register
from vllm_spark.transfer import bundle_server
from vllm_spark_ansible.action import SparkAction

BUNDLE_LACKS = register("bundle-lacks", runbook="bundle-lacks")

SSH_TIMEOUT_S = 30


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "folder": {"type": "str"},  # The folder of the bundle. Needed to open.
        "token": {"type": "str"},  # The token that the server expects. Needed to open.
        # The result of the task that has opened the connection. With it, this task closes the connection.
        "opened": {"type": "dict"},
    }

    def act(self) -> dict[str, Any]:
        if self.check_mode:
            return {}
        if earlier := self.args.get("opened"):
            if earlier["forward"]:
                self._ssh("cancel", earlier["forward"])
            bundle_server.stop(earlier["process"])
            return {}
        folder, token = Path(self.args["folder"]).expanduser().resolve(), self.args["token"]
        if inventory_host.is_local(self.task_vars):
            return self._serve_here(folder, token)
        process, opened = bundle_server.start(folder, token)
        forward = f"{LOOPBACK}:{BUNDLE_PORT}:{LOOPBACK}:{opened['port']}"
        if detail := self._ssh("forward", forward):
            bundle_server.stop(process)
            raise BUNDLE_LACKS.error(
                what=f"no reverse tunnel from the Spark to the bundle: {detail}",
                expected="ssh with ControlMaster as in ansible.cfg, and an sshd that forwards ports",
                fix="restore ssh_args of ansible.cfg, and set AllowTcpForwarding yes in the Spark's sshd.",
            )
        return {"process": process, "forward": forward, "manifests": opened["manifests"]}

    def _serve_here(self, folder: Path, token: str) -> dict[str, Any]:
        try:
            process, opened = bundle_server.start(folder, token, BUNDLE_PORT)
        except OSError as error:
            raise BUNDLE_LACKS.error(
                what=f"{error}: port {BUNDLE_PORT} of this machine is taken",
                expected="a free port, because the server of the bundle listens there",
                fix=f"`sudo ss -ltnp 'sport = :{BUNDLE_PORT}'` names the process; end it if it is the server of a run "
                "that was killed.",
            ) from None
        return {"process": process, "forward": "", "manifests": opened["manifests"]}

    def _ssh(self, request: str, forward: str) -> str:
        """Send a control request to the ssh master of Ansible's connection. Returns ssh's error message, or nothing."""
        connection: Any = self._connection  # Ansible's ssh connection, whose option for this is private
        argv = connection._build_command("ssh", "ssh", "-O", request, "-R", forward, connection.get_option("host"))
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=SSH_TIMEOUT_S)  # noqa: S603
        return " ".join(done.stderr.split()) if done.returncode else ""
