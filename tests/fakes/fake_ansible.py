"""Run an action plugin without Ansible. The test provides its task, its connection and the results of modules."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from ansible.errors import AnsibleActionFail

import verb_documents
from vllm_spark.core import paths
from vllm_spark_ansible import action
from vllm_spark_ansible.action import SparkAction

HOSTS = ["spark1", "spark2"]

ModuleResult = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]


def load_plugin(kind: str, name: str) -> ModuleType:
    """Import a file of plugins/KIND, as Ansible does."""
    spec = importlib.util.spec_from_file_location(f"{kind}_{name}", paths.ROOT / "plugins" / kind / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_action(name: str) -> type[SparkAction]:
    """Return the class of an action plugin."""
    plugin: type[SparkAction] = load_plugin("action", name).ActionModule
    return plugin


@dataclass
class FakeRun:
    """A run of action plugins on one host. `modules`: result of each module, or a function of its arguments. `output`:
    stdout of a command that has the text of its key. `hosts` are those of the run. `calls` and `lines` record
    what the plugins ran and printed."""

    host: str = "spark1"
    hostvars: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, ModuleResult] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    check_mode: bool = False
    verbosity: int = 0
    hosts: list[str] = field(default_factory=lambda: list(HOSTS))
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def act(self, plugin: str | type[SparkAction], /, **args: Any) -> dict[str, Any]:
        """Return the result of one task. Raises what the plugin raises."""
        fake_task = SimpleNamespace(action="test", args=args, async_val=0, check_mode=self.check_mode)
        connection = SimpleNamespace(
            _shell=SimpleNamespace(tmpdir="unused"),
            _build_command=lambda *argv: list(argv),
            get_option={"host": self.host}.get,
        )
        kind = load_action(plugin) if isinstance(plugin, str) else plugin
        instance = kind(fake_task, connection, None, None, None)
        instance._execute_module = self._execute_module
        instance._low_level_execute_command = self._command
        task_vars = {
            **self.hostvars.get(self.host, {}),
            "inventory_hostname": self.host,
            "hostvars": {host: self.hostvars.get(host, {}) for host in {*HOSTS, *self.hosts}},
            "ansible_play_hosts": self.hosts,
            "ansible_play_hosts_all": self.hosts,
            "groups": {"sparks": HOSTS},
        }
        display = SimpleNamespace(display=self.lines.append, verbosity=self.verbosity)
        with mock.patch.object(action, "display", display):
            try:
                result = instance.run(None, task_vars)
            except AnsibleActionFail as failed:
                verb_documents.judge_part(plugin, failed._result)
                raise
        verb_documents.judge_part(plugin, result)
        return result

    def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        assert task_vars["inventory_hostname"] == self.host
        module_name = module_name.removeprefix("vllm_spark.toolkit.")
        self.calls.append((module_name, module_args))
        result = self.modules[module_name]
        return dict(result(module_args) if callable(result) else result)

    def _command(self, command: str) -> dict[str, Any]:
        outputs = [output for text, output in self.output.items() if text in command]
        return {"rc": 0 if outputs else 1, "stdout": "".join(outputs)}
