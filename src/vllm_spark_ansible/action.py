"""The base class of the action plugins in plugins/action.

Each task pays for what this module imports, so it imports nothing of vllm_spark but the refusals.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import Refusal, RefusedError, register

display = Display()

FAILED_BEFORE = register("failed-before", runbook="inventory-refused")

COLLECTION = "vllm_spark.toolkit"


class SparkAction(ActionBase):
    """An action plugin that runs on the controller. A subclass implements `act`.

    `quiet` keeps a result out of the output of -v, for results that are pages of JSON.
    """

    quiet = False
    task_vars: dict[str, Any]

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of `act` with `changed: False` as its default. A refusal fails the task with its text."""
        super().run(tmp, task_vars)
        self.task_vars = task_vars or {}
        try:
            result = self.act()
        except RefusedError as error:
            # Ansible would print a chained cause a second time.
            self.fail(str(error))
        except AnsibleActionFail:
            raise
        except AnsibleError as error:
            explained = self.explained(str(error))
            if isinstance(error, AnsibleConnectionFailure):
                # Ansible treats a host that it cannot reach in another way than a task that failed.
                raise AnsibleConnectionFailure(explained) from None
            self.fail(explained)
        return {"changed": False, **result, **({"_ansible_verbose_override": True} if self.quiet else {})}

    @abstractmethod
    def act(self) -> dict[str, Any]:
        """Do the work of the task and return its result. Raises RefusedError or AnsibleActionFail."""

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the task."""
        args: dict[str, Any] = self._task.args
        return args

    @property
    def check_mode(self) -> bool:
        return bool(self._task.check_mode)

    @property
    def acts(self) -> bool:
        """Whether this run may change its hosts: a verb under the lock, outside of check mode."""
        return not self.check_mode and "spark_lock_verb" in self.task_vars

    @property
    def host(self) -> str:
        """The name of this task's host in the inventory."""
        return str(self.task_vars["inventory_hostname"])

    @property
    def hostvars(self) -> Mapping[str, Mapping[str, Any]]:
        """The variables of every host by its name."""
        hostvars: Mapping[str, Mapping[str, Any]] = self.task_vars["hostvars"]
        return hostvars

    @property
    def play_hosts(self) -> list[str]:
        """The hosts of the play that have not failed."""
        return list(self.task_vars["ansible_play_hosts"])

    @property
    def play_hosts_all(self) -> list[str]:
        """The hosts of the play, including those that have failed."""
        return list(self.task_vars["ansible_play_hosts_all"])

    def registered(self, variable: str, key: str, hosts: Iterable[str]) -> dict[str, Any]:
        """Return by host the field `key` of the result that an earlier task has registered as `variable`.

        Raises RefusedError if that task has failed on one of the hosts.
        """
        hosts = list(hosts)
        failed = [host for host in hosts if key not in (self.hostvars[host].get(variable) or {})]
        if failed:
            raise RefusedError([_failed_before(self.host, host, ",".join(hosts)) for host in failed])
        return {host: self.hostvars[host][variable][key] for host in hosts}

    def say(self, *lines: str) -> None:
        """Print lines that start with the name of the host."""
        for line in lines:
            display.display(self.with_logins(f"{self.host}  {line}"))

    def show(self, *texts: str) -> None:
        """Print texts that concern the whole run."""
        for text in texts:
            display.display(self.with_logins(text))

    def execute(self, module: str, args: Mapping[str, Any], key: str = "") -> dict[str, Any]:
        """Run a module on the host and return its result. A name without a dot is a module of this collection.

        With `key`, raises AnsibleActionFail with the module's message if the result does not have that field.
        """
        result: dict[str, Any] = self._execute_module(
            module_name=module if "." in module else f"{COLLECTION}.{module}",
            module_args=dict(args),
            task_vars=self.task_vars,
        )
        if text := _failure_text(result):
            result["msg"] = self.explained(text)
            if result["msg"] != text:
                # Ansible would print the module's own error as well.
                result.pop("exception", None)
        if key and key not in result:
            message = result.get("msg", f"module {module} returned no {key}")
            # From ansible-core 2.21 on, the fields of the result replace those of the failure.
            raise AnsibleActionFail(message, result={**result, "failed": True, "msg": message})
        return result

    def explained(self, text: str) -> str:
        """Return an error of Ansible or of a module, in the toolkit's words if it concerns the access to the host."""
        from vllm_spark.core import host_access  # noqa: PLC0415  only a failure pays for this import

        refusal = host_access.explain(text, host_access.Login.of(self.task_vars))
        return str(refusal) if refusal else text

    def shell(self, command: str) -> str:
        """Run a shell command on the host and return its stdout, or nothing if it fails."""
        run: Callable[[str], dict[str, Any]] = self._low_level_execute_command
        done = run(command)
        return str(done["stdout"]) if done["rc"] == 0 else ""

    def fail(self, text: str) -> NoReturn:
        """Fail the task with a message."""
        raise AnsibleActionFail(self.with_logins(text)) from None

    def with_logins(self, text: str) -> str:
        """Return a text whose commands `ssh -t NAME` have the user and address of the inventory, so that they run."""
        if "ssh -t " not in text:
            return text
        from vllm_spark.core import ssh_command  # noqa: PLC0415  most texts have no command

        known = {host: self.hostvars[host] for host in ssh_command.names(text) if host in self.hostvars}
        return ssh_command.with_logins(text, known)


def _failed_before(host: str, failed: str, hosts: str) -> Refusal:
    return FAILED_BEFORE(
        what=f"{host} needs a result of {failed}, where an earlier task has failed",
        expected="every host of the deployment without a fault",
        fix=f"correct the fault that {failed} reports above, then run the same command with -l {hosts}.",
    )


def _failure_text(result: Mapping[str, Any]) -> str:
    """Return the message of a failed module, or nothing. A module that ended with an exception has no `msg`;
    ansible-core keeps the exception's message in a summary of its own."""
    if not result.get("failed"):
        return ""
    event = getattr(result.get("exception"), "event", None)
    return str(result.get("msg") or getattr(event, "msg", ""))
