"""Files, JSON documents and commands of this host. Standard library alone; every module of the toolkit uses it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_state_file import replace_file

# Exit statuses of a shell and of timeout(1) for a command that did not run to its end.
TIMED_OUT, NOT_EXECUTABLE, NOT_FOUND = 124, 126, 127
COMMAND_TIMEOUT_S = 30.0
# How much of an error output and of a command a message has.
MAX_ERROR_CHARACTERS = 1000
MAX_COMMAND_CHARACTERS = 200

# No document of an engine or of the toolkit has deeper nesting; code that handles it later may be recursive.
MAX_DEPTH = 64
# The longest object on a host is the index of a model's weights.
MAX_OBJECT_CHARACTERS = 16 << 20
MAX_NUMBER = 2**63


class CommandError(Exception):
    """A command failed. The text names the command, its exit status and the end of its error output."""


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    stdout: str = ""
    stderr: str = ""

    @property
    def output(self) -> str:
        """Return stdout without surrounding white space; stderr if stdout is empty."""
        return (self.stdout or self.stderr).strip()

    @property
    def error(self) -> str:
        """Return stderr without surrounding white space; stdout if stderr is empty."""
        return self.stderr.strip() or self.stdout.strip()


def run(
    *argv: str,
    timeout_s: float | None = COMMAND_TIMEOUT_S,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command and return its result. A command that does not start or does not end has no exit status of its
    own: the result then has NOT_FOUND, NOT_EXECUTABLE or TIMED_OUT, and the reason as its error output."""
    try:
        # S603: no shell reads the argv, which is built from constants and from names that the caller has checked.
        process = subprocess.run(  # noqa: S603
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=env,
        )
    except FileNotFoundError:
        return CommandResult(NOT_FOUND, stderr=f"{argv[0]}: not found")
    except subprocess.TimeoutExpired:
        return CommandResult(TIMED_OUT, stderr=f"{argv[0]} did not answer within {timeout_s:.0f} s")
    except OSError as error:
        return CommandResult(NOT_EXECUTABLE, stderr=f"{argv[0]}: {error.strerror}")
    return CommandResult(process.returncode, process.stdout, process.stderr)


def must(*argv: str, timeout_s: float | None = 60.0) -> str:
    """Run a command and return its output. Raises CommandError if it fails."""
    result = run(*argv, timeout_s=timeout_s)
    if result.status:
        command = textwrap.shorten(" ".join(argv), MAX_COMMAND_CHARACTERS, placeholder=" …")
        raise CommandError(f"{command} ended with {result.status}: {result.error[-MAX_ERROR_CHARACTERS:]}")
    return result.output


def write_file(path: str, content: str, mode: str) -> None:
    """Replace a file as spark_state_file does. `mode` is octal, such as "0600"."""
    replace_file(path, content, int(mode, 8))


def write_texts(folder: str, texts: Mapping[str, str]) -> None:
    """Write the files of a folder, path below it to text, that are missing or different."""
    for name, text in sorted(texts.items()):
        path = os.path.join(folder, name)
        if read_text(path) != text:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            write_file(path, text, "0644")


def text_diff(path: str, before: str | None, after: str) -> dict[str, str]:
    """Return the diff of a file as Ansible shows it. `before` is None if there is no file."""
    return {"before_header": path, "after_header": path, "before": before or "", "after": after}


def read_text(path: str, limit: int = -1) -> str | None:
    """Return a file's text, or its first `limit` characters. None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return None


def read_object(path: str) -> dict[str, Any] | None:
    """Return the object in a JSON file. None if there is no file, or if it does not contain one whole object."""
    text = read_text(path, MAX_OBJECT_CHARACTERS + 1) if os.path.isfile(path) else None
    return None if text is None or len(text) > MAX_OBJECT_CHARACTERS else parse_object(text)


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text; None for every other text, and for an object that not every later reader takes:
    nested deeper than MAX_DEPTH, with a number that is not finite or too large, or with half of a surrogate pair."""
    try:
        document = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
        if not isinstance(document, dict) or depth(document) > MAX_DEPTH:
            return None
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return document


def _number(text: str) -> float:
    """Return a number of JSON. Raises ValueError for one that is not finite or not below MAX_NUMBER."""
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    if not abs(number) < MAX_NUMBER or (isinstance(number, float) and not math.isfinite(number)):
        raise ValueError(text)
    return number


def depth(document: Any) -> int:
    """Return the nesting depth of lists and maps, without recursion; MAX_DEPTH + 1 for a deeper document."""
    level, levels = [document], 0
    while level and levels <= MAX_DEPTH:
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        levels += 1
    return levels


def same_everywhere(path: str, before: str, text: str) -> dict[str, str]:
    """Return the diff of a file with one text for all Sparks. Its lines would hide those that a site has chosen."""
    lines = text.count("\n")
    return {"prepared": f"{path}: {'changes' if before else 'is new'} (the same text on every Spark, {lines} lines)\n"}


def mode_of(path: str) -> str:
    """Return the mode of a file as four octal digits. Raises OSError."""
    return f"{os.stat(path).st_mode & 0o7777:04o}"


def sha256(path: str) -> str | None:
    """Return the checksum of a regular file; None for anything else. Raises OSError if it cannot be read."""
    if not os.path.isfile(path):
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
