"""Log lines, files and commands of a supervisor on its host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from vllm_spark.node.supervise.rank import Rank

STOP_TIMEOUT_S = 30
LOG_INTERVAL_S = 60.0
# Most characters of a line in the journal, and of a reason in state.json or in a message.
LINE_LENGTH = 2000
REASON_LENGTH = 400

Message = dict[str, Any]


def clean(text: str, length: int) -> str:
    """Return a text that is safe to print: every control, format and surrogate character becomes a question mark, and
    the text ends after `length` characters."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:length])
    return shown if len(text) <= length else f"{shown} …"


def log(text: str) -> None:
    """Print a line for the journal."""
    print(f"vllm-spark: {clean(text, LINE_LENGTH)}", flush=True)


class RepeatedLog:
    """Lines that a supervisor may have to print again and again."""

    def __init__(self) -> None:
        self._printed: dict[str, float] = {}

    def __call__(self, text: str, topic: str = "") -> bool:
        """Log a text once, and again every LOG_INTERVAL_S while it is repeated. Returns True if it was logged.

        Texts with a topic count as one: a peer that can choose a part of the text cannot fill the journal.
        """
        now = time.monotonic()
        self._printed = {key: at for key, at in self._printed.items() if now - at < LOG_INTERVAL_S}
        if (topic or text) in self._printed:
            return False
        self._printed[topic or text] = now
        log(text)
        return True


def read(path: Path) -> Message:
    """Return the object in a JSON file. An absent or broken file is empty, because it must not keep a rank down."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write(path: Path, document: Message) -> None:
    """Replace a JSON file of the run folder atomically. That folder is in memory, so a loss of power empties it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document), encoding="utf-8")
    new.replace(path)


def write_secret(path: Path, content: str) -> None:
    """Write a file that has mode 0600 from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)


class State:
    """state.json in the run folder, which `status` reads: waiting, starting, serving, refused or ended, and why."""

    def __init__(self, rank: Rank) -> None:
        rank.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = rank.run_dir / "state.json"
        self._last_end = read(self._path).get("last_end", "")
        self.now = ""

    def write(self, state: str, why: str = "") -> None:
        """Write a state. `why` explains a state in which the rank does not serve."""
        self.now = state
        self._replace(
            {"state": state, "why": clean(why, REASON_LENGTH), "since": time.time(), "last_end": self._last_end}
        )

    def ended(self, reason: str) -> None:
        """Write the end of an attempt. Later states keep its reason."""
        self._last_end = clean(reason, REASON_LENGTH)
        self.write("ended", reason)

    def _replace(self, document: Message) -> None:
        write(self._path, document)


async def output_of(*argv: str) -> str:
    """Run a command and return its stdout without surrounding white space."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    return stdout.decode().strip()


async def run_quietly(*argv: str) -> None:
    """Run a command without its output, whatever its exit status."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    await process.wait()


async def remove_container(container: str, child: asyncio.subprocess.Process, *, gently: bool) -> None:
    """Remove the container and wait until `docker run` ended.

    `gently` is for a head that is stopped: it has requests to finish. A rank whose peer is lost has none. Nor has a
    worker: its head ends with it, and Ray on the worker would wait for that head until it is killed anyway.
    """
    if gently and child.returncode is None:
        await run_quietly("docker", "stop", "--time", str(STOP_TIMEOUT_S), container)
    # A `docker run` that is still creating the container would start it after a single removal.
    while child.returncode is None:
        await run_quietly("docker", "rm", "--force", container)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.wait()), 1)
    await run_quietly("docker", "rm", "--force", container)
