"""The base class of the action plugins in plugins/action.

Each task pays for what this module imports, so it imports nothing of vllm_spark but the refusals.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.run_command import typed
from vllm_spark_ansible.arguments import MissingArgumentError, checked
from vllm_spark_ansible.results import Step

display = Display()

FAILED_BEFORE = register("failed-before", runbook="inventory-refused")

T = TypeVar("T")

COLLECTION = "vllm_spark.toolkit"


class UnreachableError(AnsibleConnectionFailure):
    """A host that Ansible cannot reach, with its refusals and other `fields` in the result of the task. The exit status
    is 4."""

    def __init__(self, text: str, refusals: Iterable[Refusal] = (), **fields: Any) -> None:
        super().__init__(text)
        self.fields = {"refusals": [refusal.to_json() for refusal in refusals], **fields}

    @property
    def result_contribution(self) -> Mapping[str, object]:
        """Return what ansible-core 2.19 adds to the result of the task."""
        return {"unreachable": True, **self.fields}

    def as_task_result(self, result: Any) -> Any:
        """Return the result of the task for ansible-core 2.21, which asks this in place of `result_contribution`."""
        result.unreachable = True
        result.result_data.update(self.fields)
        return result


class SparkAction(ActionBase):
    """An action plugin that runs on the controller. A subclass implements `act`.

    `arguments` has the specification of each argument. It is checked before `act`; None leaves that to a module.

    `quiet` keeps a result out of the output of -v, for results that are pages of JSON.
    """

    quiet = False
    task_vars: dict[str, Any]
    name = ""
    arguments: ClassVar[dict[str, dict[str, Any]] | None] = None

    def __init_subclass__(cls) -> None:
        file = Path(cls.act.__code__.co_filename)
        if file.parent.name == "action":
            cls.name = file.stem

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of `act` with `changed: False` as its default. A refusal fails the task with its text."""
        super().run(tmp, task_vars)
        self.task_vars = task_vars or {}
        self._check_arguments()
        try:
            result = self.act()
        except MissingArgumentError as error:
            self._fail_arguments(str(error))
        except RefusedError as error:
            # Ansible would print a chained cause a second time.
            self.fail(str(error), error.refusals)
        except (AnsibleActionFail, UnreachableError):
            raise
        except AnsibleError as error:
            refusal = self.explain(str(error))
            if isinstance(error, AnsibleConnectionFailure):
                # Ansible treats a host that it cannot reach in another way than a task that failed.
                raise UnreachableError(str(refusal or error), [refusal] if refusal else ()) from None
            self.fail(str(refusal or error), [refusal] if refusal else ())
        return {"changed": False, **result, **({"_ansible_verbose_override": True} if self.quiet else {})}

    @abstractmethod
    def act(self) -> dict[str, Any]:
        """Do the work of the task and return its result. Raises RefusedError or AnsibleActionFail."""

    def _check_arguments(self) -> None:
        """Give the arguments the types of `arguments`. Fails the task with every argument that is unknown, missing or
        wrong."""
        self._arguments: dict[str, Any] = self._task.args
        if self.arguments is None:
            return
        self._arguments, faults = checked(self.arguments, self._task.args)
        if faults:
            self._fail_arguments("; ".join(faults))

    def _fail_arguments(self, faults: str) -> NoReturn:
        name = f"{COLLECTION}.{self.name}"
        self.fail(f"{name}: {faults}. Fix: correct the task; plugins/action/{self.name}.py has its arguments.")

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the task."""
        return self._arguments

    @property
    def check_mode(self) -> bool:
        return bool(self._task.check_mode)

    @property
    def verbose(self) -> bool:
        """Whether the run has -v."""
        return int(display.verbosity) > 0

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

    def results(self, step: Step[T], hosts: Iterable[str], *, default: T | None = None, asks: str = "") -> dict[str, T]:
        """Return by host the result of an earlier task, or `default` for a host that has none.

        `asks` is the host that needs it, by default that of the task. Without a default, raises RefusedError if that
        task has failed on one of the hosts.
        """
        variables = {host: self.hostvars[host] for host in hosts}
        known = self.having(step, variables)
        if default is not None:
            return {host: known.get(host, default) for host in variables}
        if failed := [host for host in variables if host not in known]:
            raise RefusedError([_failed_before(asks or self.host, host, ",".join(variables)) for host in failed])
        return known

    def result(self, step: Step[T]) -> T:
        """Return the result of an earlier task on the host of this task."""
        return self.results(step, [self.host])[self.host]

    def having(self, step: Step[T], hosts: Iterable[str]) -> dict[str, T]:
        """Return by host the result of an earlier task on the hosts that have one."""
        variables = {host: self.hostvars[host] for host in hosts}
        return {host: cast("T", step.of(own)) for host, own in variables.items() if step.known(own)}

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
            refusal = self.explain(text)
            result["msg"] = str(refusal or text)
            if refusal:
                result["refusals"] = self.refusals_to_json([refusal])
                # Ansible would print the module's own error as well.
                result.pop("exception", None)
        if key and key not in result:
            message = result.get("msg", f"module {module} returned no {key}")
            # From ansible-core 2.21 on, the fields of the result replace those of the failure.
            raise AnsibleActionFail(message, result={**result, "failed": True, "msg": message})
        return result

    def explain(self, text: str) -> Refusal | None:
        """Return an error of Ansible or of a module in the toolkit's words, if it concerns the access to the host."""
        from vllm_spark.core import host_access  # noqa: PLC0415  only a failure pays for this import

        return host_access.explain(text, host_access.Login.of(self.task_vars))

    def shell(self, command: str) -> str:
        """Run a shell command on the host and return its stdout, or nothing if it fails."""
        run: Callable[[str], dict[str, Any]] = self._low_level_execute_command
        done = run(command)
        return str(done["stdout"]) if done["rc"] == 0 else ""

    def fail(self, text: str, refusals: Iterable[Refusal] = (), **fields: Any) -> NoReturn:
        """Fail the task with a message. `refusals` are those that it has; `fields` are more fields of the result."""
        text = self.with_logins(text)
        # From ansible-core 2.21 on, the fields of the result replace those of the failure.
        result = {"failed": True, "msg": text, "refusals": self.refusals_to_json(refusals), **fields}
        raise AnsibleActionFail(text, result=result) from None

    def fail_run(self, lines: Iterable[str], **fields: Any) -> NoReturn:
        """Fail a task of the whole run with lines that name their hosts. `fields` are more fields of the result."""
        from vllm_spark.core import run_output  # noqa: PLC0415  only a failure pays for this import

        self.fail("\n".join(lines), (), **fields, **{run_output.WHOLE_RUN: True})

    def refusals_to_json(self, refusals: Iterable[Refusal]) -> list[dict[str, Any]]:
        """Return refusals for a document, with the logins of their commands."""
        return [
            replace(refusal, fix=self.with_logins(refusal.fix), command=self.with_logins(refusal.command)).to_json()
            for refusal in refusals
        ]

    def with_logins(self, text: str) -> str:
        """Return a text whose commands run: the verbs of an installed toolkit, and `ssh -t NAME` with the user and the
        address of the inventory. On this machine they need no ssh."""
        text = typed(text)
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
