"""What the gate `edge` needs of an action plugin: the requests of the Spark and of this machine to an edge."""

from __future__ import annotations

import os
import time
import urllib.parse
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target, outside

from vllm_spark.core import inventory_host
from vllm_spark.edge import store
from vllm_spark.inventory.edge import OWN_CA
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gates import edge, reach
from vllm_spark_ansible.action import SparkAction


def requests(to: EdgeTarget) -> dict[str, Any]:
    """Return what the module vllm_probe asks an edge."""
    return {"address": to.address, "port": to.port, "unlisted": edge.UNLISTED, "site_port": to.site_port or 0}


class EdgeProbeAction(SparkAction):
    """An action with the argument authority, the folder of the site's authority."""

    def edge_responses(self, target: EdgeTarget, seen: Any = None) -> dict[str, Any]:
        """Return what the Spark and this machine get from the edge. This machine trusts the site's authority alone.
        `seen` is what the Spark has got, if it was asked before."""
        seen = seen or self.execute("vllm_probe", {"edge": requests(target)}, "probe")["probe"]["responses"][edge.NAME]
        inside = {**seen, "at": time.time()}
        url = target.client_url(inventory_host.address(self.host, self.task_vars))
        if why := self.obstacle():
            return {"inside": inside, "outside": {"unasked": why, "url": url}}
        name = str(urllib.parse.urlsplit(url).hostname)
        asks = Target(name, target.port, inside["tls"], name, self.authority(target))
        return {"inside": inside, "outside": {**outside(asks, edge.UNLISTED), "url": url}}

    def authority(self, target: EdgeTarget) -> str:
        """Return the file with the site's authority; empty if the edge has no certificate of it."""
        if target.tls != OWN_CA:
            return ""
        file = Path(self.args["authority"]) / store.CERTIFICATE
        return os.path.relpath(file) if file.is_file() else ""

    def obstacle(self) -> str:
        """Return why this machine does not ask as a client; empty if it asks."""
        names = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
        arguments = " ".join(str(self.task_vars.get(name) or "") for name in names)
        return reach.obstacle(inventory_host.is_local(self.task_vars), arguments)
