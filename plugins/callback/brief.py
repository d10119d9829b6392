"""Print the toolkit's own lines and each failure once; with -v, everything that Ansible's default callback prints.

vllm_spark.core.run_output writes the lines of a failure, vllm_spark.lifecycle.interruption the line after Ctrl-C. With
`-e json=true` stdout has the document of the verb alone, which vllm_spark.core.json_output makes.
"""

from __future__ import annotations

import atexit
import copy
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ansible import constants, context
from ansible.plugins.callback.default import CallbackModule as Default

from vllm_spark.core import host_access, json_output, run_command, run_output
from vllm_spark.core.run_output import Cause, FailedTask
from vllm_spark.inventory import source
from vllm_spark.lifecycle import interruption
from vllm_spark_ansible import json_mode, started

DOCUMENTATION = r"""
name: brief
type: stdout
short_description: The toolkit's own lines, and each failure once
description:
  - Prints the lines of the toolkit's actions, the messages of debug tasks, differences of C(--diff), warnings and
    failures.
  - Prints Ansible's plays, tasks and results only with C(-v). Prints the recap of the hosts that failed, or with C(-v)
    of all.
  - Prints the commands of messages with the options of this run.
  - With C(-e json=true), prints the document of a verb that has one for programs, and nothing else, on stdout.
  - After Ctrl-C, prints in one line the state of the hosts, and ends with the exit status 130.
author: vllm-spark
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

DEBUG = ("ansible.builtin.debug", "debug")


def _verbose(name: str) -> Callable[..., None]:
    """Return a method of the default callback that prints with -v alone."""

    def method(self: CallbackModule, *args: Any) -> None:
        if not self.brief:
            getattr(super(CallbackModule, self), name)(*args)

    return method


class CallbackModule(Default):
    """The stdout callback of the verbs."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "vllm_spark.toolkit.brief"

    def __init__(self) -> None:
        super().__init__()
        self._play: Any = None
        self._reported = run_output.Reported()
        # Failures whose block has a rescue. Its next message may contain them.
        self._rescued: dict[str, FailedTask] = {}
        # Hosts on which a task of the whole run has failed. Its lines name the hosts that they concern.
        self._whole_run: set[str] = set()
        self._verb = self._task = ""
        self._parts: list[str] = []  # of a verb that consists of others
        self._part = 0
        self._acted = False  # in this part
        self._began = time.monotonic()
        self._changes: dict[str, int] = {}
        self._puts_back = False
        self._json: json_output.Run | None = None  # of a run that prints a document
        self._told: dict[str, dict[str, str]] = {}  # by host, what an interruption leaves there from now on

    @property
    def brief(self) -> bool:
        return int(self._display.verbosity) == 0

    _print_task_banner = _verbose("_print_task_banner")
    v2_playbook_on_include = _verbose("v2_playbook_on_include")
    v2_playbook_on_no_hosts_remaining = _verbose("v2_playbook_on_no_hosts_remaining")
    v2_runner_item_on_skipped = _verbose("v2_runner_item_on_skipped")
    v2_runner_on_async_failed = _verbose("v2_runner_on_async_failed")
    v2_runner_on_async_ok = _verbose("v2_runner_on_async_ok")
    v2_runner_on_async_poll = _verbose("v2_runner_on_async_poll")
    v2_runner_on_skipped = _verbose("v2_runner_on_skipped")
    v2_runner_retry = _verbose("v2_runner_retry")

    # The start of a run, of plays and of tasks.

    def v2_playbook_on_start(self, playbook: Any) -> None:
        super().v2_playbook_on_start(playbook)
        self._verb = Path(playbook._file_name).stem
        run_command.begin(started.this_run(sys.argv))
        if len(plays := playbook.get_plays()) > 1:
            self._parts = [play.get_name() for play in plays]
        if sys.stdout.isatty():
            # The actions run in processes without the terminal, whose width their tables need.
            os.environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        if refusal := json_mode.refusal(playbook._file_name, playbook._loader):
            self._display.display(str(refusal), color=_color("COLOR_ERROR"), stderr=True)
            raise SystemExit(json_mode.EXIT_STATUS)
        if json_mode.verb(playbook._file_name, playbook._loader):
            self._json = json_output.Run(self._verb)
            json_mode.keep_stdout(self._display)
        before = signal.getsignal(signal.SIGINT)

        def interrupted(number: int, frame: FrameType | None) -> NoReturn:
            if os.getpid() == controller and callable(before):
                # The last line of the output: an exit handler runs after Ansible's own cleaning.
                atexit.register(self._print_interruption, time.monotonic())
                with suppress(KeyboardInterrupt):
                    before(number, frame)  # Ansible's handler ends its workers
            raise SystemExit(interruption.EXIT_STATUS)

        controller = os.getpid()
        signal.signal(signal.SIGINT, interrupted)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._end_part()
        self._part, self._acted = self._part + 1, False
        if not self.brief:
            super().v2_playbook_on_play_start(play)
            return
        self._play = play
        if self._parts:
            self._display.display(interruption.part(self._parts, self._part))

    def v2_playbook_on_no_hosts_matched(self) -> NoReturn:
        refusal = source.without_sparks()
        self._display.display(str(refusal), color=_color("COLOR_ERROR"), stderr=True)
        if self._json:
            print(json_output.text(json_output.refused(self._verb, [refusal])), flush=True)
        raise SystemExit(json_mode.EXIT_STATUS)

    def _end_part(self) -> None:
        """Say that no task of a part had its condition."""
        if self._part and self._parts and self.brief and not self._acted:
            self._display.display(interruption.LEFT_OUT)

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._task = task.get_name().strip().rpartition(" : ")[2]
        super()._task_start(task, prefix)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._changes.setdefault(host.get_name(), 0)
        if not self.brief and self._last_task_banner != task._uuid:
            # The default callback prints it with the first result, below the lines of the task.
            self._print_task_banner(task)
        super().v2_runner_on_start(host, task)

    # Results.

    def v2_runner_on_ok(self, result: Any) -> None:
        self._acted = True
        host = result.host.get_name()
        self._changes[host] = self._changes.get(host, 0) + bool(result.result.get("changed"))
        self._puts_back |= bool(result.result.get("put_back_after_interruption"))
        if left := result.result.get("if_interrupted"):
            self._told[host] = left
        if self._json:
            self._json.add(result.result.get("document", {}))
        if not self.brief:
            super().v2_runner_on_ok(result)
            return
        self._print_rescued(host)
        self._handle_warnings(result.result)
        if "results" not in result.result:
            self._print_message(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        if not self.brief:
            super().v2_runner_item_on_ok(result)
            return
        self._handle_warnings(result.result)
        self._print_message(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._acted = True
        if self._json and not ignore_errors:
            self._add_failure(self._json, result)
        if not self.brief:
            super().v2_runner_on_failed(result, ignore_errors=ignore_errors)
            return
        self._handle_warnings(result.result)
        if not ignore_errors and not (result.task.loop and "results" in result.result):
            self._report(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        if not self.brief:
            super().v2_runner_item_on_failed(result)
            return
        self._handle_warnings(result.result)
        if not result.task.ignore_errors:
            self._report(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._acted = True
        if self._json and not result.task.ignore_unreachable:
            self._add_failure(self._json, result)
        if not self.brief:
            super().v2_runner_on_unreachable(result)
        elif not result.task.ignore_unreachable:
            self._report(result)

    def v2_on_file_diff(self, result: Any) -> None:
        if self.brief and result.result.get("changed"):
            self._display.display(f"{result.host.get_name()}  changes:")
        super().v2_on_file_diff(result)

    # The end.

    def v2_playbook_on_stats(self, stats: Any) -> None:
        for host in tuple(self._rescued):
            self._print_rescued(host)
        self._end_part()
        if self._json:
            print(json_output.text(self._json.document()), flush=True)
        failed = {*stats.failures, *stats.dark}
        shown = failed - self._whole_run
        if self.brief:
            stats = copy.copy(stats)
            stats.processed = {host: number for host, number in stats.processed.items() if host in shown}
        if shown or not self.brief:
            super().v2_playbook_on_stats(stats)
        if failed and self._parts:
            line = interruption.after_a_part(self._parts, self._part)
            self._display.display(line, color=_color("COLOR_WARN"), stderr=True)

    def _add_failure(self, run: json_output.Run, result: Any) -> None:
        """Add a failure to the document. A task of the whole run has written its refusals itself."""
        failed = self._failed(result)
        if part := failed.result.get("document"):
            run.add(part)
            return
        message = run_output.message("\n".join(run_output.failure(failed)))
        refusals = failed.result.get("refusals") or ()
        run.fail(result.host.get_name(), message, refusals, unreachable=failed.result.get("unreachable", False))

    def _print_interruption(self, now: float) -> None:
        check = bool(context.CLIARGS["check"])
        left = list(self._told.values())
        line = interruption.line(self._verb, self._task, now - self._began, self._changes, check=check, told=left)
        self._display.display(line, color=_color("COLOR_WARN"), stderr=True)
        if self._puts_back:
            # In this process, which holds the operator lock of the hosts. Ansible keeps its streams from children.
            self._display.display(interruption.PUTS_BACK, color=_color("COLOR_WARN"), stderr=True)
            for stream in range(3):
                os.set_inheritable(stream, True)
            os.execv(sys.executable, [sys.executable, *sys.argv, "-e", "put_back=true"])  # noqa: S606  the same command

    def _print_message(self, result: Any) -> None:
        """Print the message of a debug task."""
        if result.task.action in DEBUG and "msg" in result.result:
            for line in run_output.message_lines(result.result["msg"]):
                self._display.display(f"{result.host.get_name()}  {line}")

    def _report(self, result: Any) -> None:
        """Print a failure now, or, if its block has a rescue, unless the message of the rescue contains it."""
        host, failed = result.host.get_name(), self._failed(result)
        earlier = self._rescued.get(host)
        if earlier and run_output.contains(failed, earlier):
            del self._rescued[host]
        self._print_rescued(host)
        if _has_rescue(result.task):
            self._rescued[host] = failed
        else:
            self._print_failure(host, failed)

    def _print_rescued(self, host: str) -> None:
        failed = self._rescued.pop(host, None)
        if failed:
            self._print_failure(host, failed)

    def _print_failure(self, host: str, failed: FailedTask) -> None:
        lines = run_output.failure(failed)
        if failed.result.get(run_output.WHOLE_RUN):
            self._whole_run.add(host)
        else:
            lines = self._reported.lines(host, lines)
        for line in lines:
            self._display.display(line, color=_color("COLOR_ERROR"), stderr=True)

    def _failed(self, result: Any) -> FailedTask:
        """Return a failure, in the toolkit's words if it concerns the access to the host."""
        shown = dict(result.result)
        text = str(shown.get("msg", ""))
        if not run_output.is_own(text):
            variables = self._play.get_variable_manager().get_vars(play=self._play, host=result.host)
            explained = host_access.explain(text, host_access.Login.of(variables))
            shown["msg"] = str(explained) if explained else text
            if explained:
                shown["refusals"] = [explained.to_json()]
        causes, event = [], result.exception.event if result.exception else None
        while event:
            causes.append(Cause(event.msg, run_output.place(event.formatted_source_context)))
            event = event.chain.event if event.chain else None
        return FailedTask(result.task.get_name(), str(result.task.get_path()), shown, tuple(causes))


def _color(name: str) -> str:
    return str(constants.config.get_config_value(name))


def _has_rescue(task: Any) -> bool:
    """Return whether a block around the task, in whose `block` part it is, has a rescue."""
    child, parent = task, task._parent
    while parent is not None:
        uuids = {member._uuid for member in getattr(parent, "block", None) or []}
        if getattr(parent, "rescue", None) and child._uuid in uuids:
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False
