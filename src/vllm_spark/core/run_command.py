"""Commands of messages as this run would type them: with its front door, its options, and the way to its pages.

This is the one place that knows. A message names a verb as `ansible-playbook VERB.yml`, and a page as
docs/runbooks/NAME.md. Whoever starts a run says once how it was started (`begin`); `typed` words every text.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vllm_spark.core import paths

# Set in the environment of a playbook that `vllm-spark` has started.
DOOR = "VLLM_SPARK_DOOR"

PLAYBOOK = re.compile(r"\bansible-playbook (?P<verb>\w+)\.yml")
COMMAND = re.compile(r"\bvllm-spark (?P<verb>[a-z]+)(?![\w.])")
RUNBOOK = re.compile(r"\bdocs/runbooks/(?P<name>[\w-]+)\.md")
# Where the words of a command end in a text.
END = re.compile(r"[`\n;]|[.,)](?:\s|$)")
# Options that a command has besides the verbs, and verbs whose hosts follow from what they name.
ALL = ("-i", "-l", "-K", "-e")
OF_COMMANDS = {"logs": ALL, "key": ("-i", "-K", "-e"), "trust": ("-i",), "switch": ("-i", "-K", "-e")}


@dataclass(frozen=True, slots=True)
class ThisRun:
    """How a run was started: as `vllm-spark VERB` or not, with the playbooks of which folder, and with which options
    and their values, empty for an option without one."""

    by_command: bool = bool(os.environ.get(DOOR))
    folder: str = ""
    options: Sequence[tuple[str, str]] = ()


_runs = [ThisRun()]


def begin(run: ThisRun) -> None:
    """Let every text from now on be of this run."""
    _runs[-1] = run


@contextmanager
def within(run: ThisRun) -> Iterator[None]:
    """Let the texts be of this run until the block ends."""
    _runs.append(run)
    try:
        yield
    finally:
        _runs.pop()


def typed(text: str) -> str:
    """Return a text whose commands run as printed. A text that was worded before stays as it is."""
    run = _runs[-1]
    if paths.IS_INSTALLED or run.by_command:
        text = RUNBOOK.sub(r"`vllm-spark runbook \g<name>`", PLAYBOOK.sub(r"vllm-spark \g<verb>", text))
    else:
        text = PLAYBOOK.sub(lambda match: _of_playbook(run, match), text)
    return COMMAND.sub(lambda match: _of_command(run, match), text) if run.options else text


def for_everyone(text: str) -> str:
    """Return a text that a Spark keeps and shows to others: it has the front door of this installation, and nothing of
    this run."""
    return PLAYBOOK.sub(r"vllm-spark \g<verb>", text) if paths.IS_INSTALLED else text


def _of_playbook(run: ThisRun, match: re.Match[str]) -> str:
    return f"ansible-playbook{_options(run, match)} {run.folder}{match['verb']}.yml"


def _of_command(run: ThisRun, match: re.Match[str]) -> str:
    verb, rest = match["verb"], _rest(match)
    # `plan RECIPE` and `bench URL` are commands of their own, and have none of these options.
    is_verb = verb in OF_COMMANDS or ((paths.ROOT / f"{verb}.yml").is_file() and not re.match(r" +[^-\s]", rest))
    return f"{match[0]}{_options(run, match)}" if is_verb else match[0]


def _options(run: ThisRun, match: re.Match[str]) -> str:
    """Return the options of the run that the command takes and does not have yet, each with a space before it."""
    rest, takes = _rest(match), OF_COMMANDS.get(match["verb"])
    words = []
    for option, value in run.options:
        word = f"{option} {shlex.quote(value)}" if value else option
        known = re.escape(word) if option == "-e" else rf"{option}(?=[ =])" if value else option
        if (takes is None or option in takes) and not re.search(rf"(?:^| ){known}(?![\w-])", rest):
            words.append(f" {word}")
    return "".join(words)


def _rest(match: re.Match[str]) -> str:
    """Return the words of the command behind the match."""
    return END.split(match.string[match.end() :], maxsplit=1)[0]
