"""The lines about failed tasks that an operator sees without -v. Pure; plugins/callback prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.run_command import typed

# ansible-core puts these in front of the message of a plugin, in any number.
PREFIXES = re.compile(r"^(?:(?:Task|Action|Module) failed[.:]\s*)+")
ORIGIN = re.compile(r"^Origin: (?P<place>\S.*?:\d+(?::\d+)?)\s*$", re.MULTILINE)
# The field of a result whose message is of the whole run: each of its lines names its host.
WHOLE_RUN = "whole_run"
# A command prints its cause last.
LAST_LINES = 12
# Results of these fields explain a failure that has no message of the toolkit.
STREAMS = ("module_stderr", "stderr", "module_stdout", "stdout")


@dataclass(frozen=True, slots=True)
class Cause:
    """One error of a chain: its message, and PATH:LINE:COLUMN of the text that caused it, or nothing."""

    message: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A failed task: `place` is its PATH:LINE. `causes` is the chain of its errors, the outermost first."""

    name: str
    place: str
    result: Mapping[str, Any]
    causes: Sequence[Cause] = ()


def place(source_context: str | None) -> str:
    """Return the PATH:LINE:COLUMN of ansible-core's source context, or nothing."""
    found = ORIGIN.search(source_context or "")
    return found["place"] if found else ""


def message(text: str) -> str:
    """Return the message of a result without ansible-core's prefixes. A role or a module may have written it."""
    return typed(PREFIXES.sub("", text.strip()))


def message_lines(value: object) -> list[str]:
    """Return the lines of the message of a debug task: a text, or a list of texts."""
    return [line for part in (value if isinstance(value, list) else [value]) for line in typed(str(part)).splitlines()]


def contains(failed: FailedTask, earlier: FailedTask) -> bool:
    """Return whether the message of a failure has the message or the output of an earlier one."""
    outer = one_line(str(failed.result.get("msg", "")))
    inner = (one_line(str(earlier.result.get(name) or "")) for name in ("msg", *STREAMS))
    return any(text and text in outer for text in inner)


def is_own(text: str) -> bool:
    """Return whether the toolkit wrote the message. Each of its messages says what to do."""
    return "Fix: " in text


def failure(task: FailedTask) -> list[str]:
    """Return the lines of a failed task, without the name of the host."""
    text = message(str(task.result.get("msg") or task.result.get("censored") or "the task failed without a message"))
    if is_own(text):
        return text.splitlines()
    # An error in a file of the inventory: the innermost error has its cause, and the last place is in that file.
    caused = [
        cause.place for cause in task.causes if cause.place and not f"{cause.place}:".startswith(f"{task.place}:")
    ]
    lines = [f"{caused[-1]}: {one_line(task.causes[-1].message)}"] if caused else text.splitlines()
    return [*lines, *_streams(task.result, text), f"  in the task '{task.name}', {task.place}; -v shows more"]


def one_line(text: str) -> str:
    """Return a message on one line, without ansible-core's prefixes."""
    return " ".join(message(text).split())


def _streams(result: Mapping[str, Any], shown: str) -> list[str]:
    """Return the last lines of what a program printed, and its exit status."""
    texts = [str(result.get(name) or "").strip() for name in STREAMS]
    lines = [line for text in texts if text and text not in shown for line in text.splitlines()[-LAST_LINES:]]
    status = [f"exit status {result['rc']}"] if lines and "rc" in result else []
    return [f"  {line}" for line in [*status, *lines]]


@dataclass
class Reported:
    """The failures that a run has shown. A message that several hosts have is shown once."""

    first: dict[tuple[str, ...], str] = field(default_factory=dict)

    def lines(self, host: str, failed: Sequence[str]) -> list[str]:
        """Return the lines to print for a failure of a host."""
        earlier = self.first.setdefault(tuple(failed), host)
        if earlier == host:
            return [f"{host}  {line.removeprefix(f'{host}: ').removeprefix(f'{host} ')}" for line in failed]
        return [f"{host}  fails for the same reason as {earlier}"]
