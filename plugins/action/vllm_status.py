"""Print what runs on each host of the play, from what earlier tasks have registered.

vllm_spark.lifecycle.status makes the document, vllm_spark.lifecycle.status_table the table.
"""

from __future__ import annotations

import json
import os
import time
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, cast

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_lock

from vllm_spark.bench import verdict
from vllm_spark.core import inventory_host, json_output, run_output, version
from vllm_spark.lifecycle import status, status_table
from vllm_spark.lifecycle.status import HostResult
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction, UnreachableError
from vllm_spark_ansible.resolved import intent_of


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "json_file": {"type": "str", "required": True},  # The file for the document. Empty for none.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        hosts = {host: _result(host, self.hostvars[host]) for host in self.play_hosts_all}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        earlier = self.results(results.STATUS_EARLIER, hosts, default=[])
        # Only what is read is templated: a variable of an inventory may need what a host's variables do not have.
        own = {host: cast("MutableMapping[str, Any]", self.hostvars[host]) for host in hosts}
        turns = {host: [_result(host, ChainMap(one, own[host])) for one in earlier[host]] for host in hosts}
        body = status.document(hosts, now, version.version(), turns)
        document = json_output.document("status", {**body, "time": now})
        if self.args["json_file"]:
            text = json.dumps(document, indent=2, sort_keys=True) + "\n"
            Path(self.args["json_file"]).expanduser().write_text(text, encoding="utf-8")
        names = (entry["name"] for host in document["hosts"] for entry in host["deployments"])
        self.show("\n".join([status_table.table(document), *verdict.latest_lines(names)]))
        if not any(host["answers"] for host in document["hosts"]):
            raise UnreachableError(status.NONE_ANSWERS, (), document=document, **{run_output.WHOLE_RUN: True})
        return {"document": document}


def _result(host: str, variables: Mapping[str, Any]) -> HostResult:
    """Return what this run knows of one host. A task that failed there has registered its message."""
    facts = results.STATUS_FACTS.of(variables)
    lock = facts["status"]["lock"] if facts else None
    problem = str(results.STATUS_MESSAGE.of(variables) or "it was not asked").removeprefix("Task failed: ")
    return HostResult(
        intent=intent_of(host, variables),
        address=inventory_host.address(host, variables),
        facts=facts,
        problem="" if facts else " ".join(problem.split()),
        # A task runs in a child of the run's main process.
        holder_lives=spark_lock.lives(dict(lock), spark_lock.this_run(os.getppid())) if lock else None,
    )
