"""Resolve what this host runs, from the inventory alone. vllm_spark.inventory.intent decides."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from vllm_spark.core import inventory_host, this_machine
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory import intent, variables
from vllm_spark.inventory.spec import Inventory
from vllm_spark.recipe import known_issues, shared_gates
from vllm_spark_ansible.action import SparkAction

# Each host has a worker, a fork of the process that imports this file: what is read here is read once for all hosts.
with suppress(RefusedError, DocumentError):
    known_issues.load()
    shared_gates.load()


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "host": {"type": "str", "required": True},  # This host.
        "deployments": {"type": "raw", "required": True},  # The deployments of the inventory, not yet checked.
        "sparks": {"type": "list", "elements": "str", "required": True},  # The hosts of the group.
        "limit": {"type": "list", "elements": "str", "required": True},  # The hosts of the run.
        "recipe_folders": {"type": "list", "elements": "str", "required": True},  # Folders that contain recipes.
        "lock_file": {"type": "str", "required": True},  # The lock file.
        "secrets": {"type": "dict", "required": True},  # The secrets by name. Only which of them are empty is kept.
        # Ids of known issues that the operator accepts.
        "accepted": {"type": "list", "elements": "str", "required": True},
        "chosen": {"type": "list", "elements": "str"},  # The deployments of this turn. Empty: the first of each host.
        "everywhere": {"type": "raw"},  # All deployments, if `deployments` has only a part of them.
        "edge": {"type": "raw"},  # The edge of this host, not yet checked.
        "notification": {"type": "raw"},  # Where the host tells its owner about troubles, not yet checked.
        "site": {"type": "dict", "required": True},  # The folders, the package index and the settings of the site.
    }

    def act(self) -> dict[str, Any]:
        self._warn()
        inventory = Inventory.from_args({**self.args, "edges": self.edges(), **self.own()})
        resolved = intent.resolve(inventory, self.args["host"])
        self.say(*(resolved.edge.unusable if resolved.edge else ()))
        self.quiet = resolved.rank is not None
        return {**resolved.to_json(), "questions": plan.questions(resolved), "turn": list(inventory.chosen)}

    def edges(self) -> dict[str, dict[str, Any]]:
        """Return what the inventory says about the edge of every Spark, if this one is part of a site."""
        own = self.args.get("edge", {})
        if not (isinstance(own, Mapping) and own.get("site")):
            return {}
        return {
            host: {
                "settings": self.hostvars[host].get("vllm_edge", {}),
                "authority": str(self.hostvars[host].get("vllm_edge_authority", "")),
            }
            for host in self.args["sparks"]
        }

    def own(self) -> dict[str, Any]:
        """Return which Sparks are this machine, with their addresses, and its own names, if this one is."""
        if not inventory_host.is_local(self.task_vars):
            return {}
        local = [host for host in self.args["sparks"] if inventory_host.is_local(self.hostvars[host])]
        addresses = {host: str(self.hostvars[host].get("ansible_host") or "") for host in local}
        names = [name for name in (this_machine.mdns_name(), this_machine.routed_address()) if name]
        return {"own": addresses, "own_names": names}

    def _warn(self) -> None:
        """Name each variable that nothing reads once, at the first host that has it. The first host names all: a run of
        many hosts looks at each of them once."""
        hosts = self.play_hosts
        if hosts[:1] not in ([], [self.host]):
            return
        named: set[str] = set()
        for host in hosts or [self.host]:
            own = set(self.task_vars if host == self.host else self.hostvars[host]) - named
            self.show(*(f"{host}  {line}" for line in variables.warnings(own, variables.known())))
            named |= own
