"""Log lines, files and commands of a supervisor on its host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from vllm_spark.node import deployment_state
from vllm_spark.node.deployment_state import clean
from vllm_spark.node.state_writer import StateOf
from vllm_spark.node.supervise import rank as rank_module
from vllm_spark.node.supervise.rank import Rank
from vllm_spark.node.unit_limits import STOP_TIMEOUT_S

LOG_INTERVAL_S = 60.0
# Most characters of a line in the journal.
LINE_LENGTH = 2000

Message = dict[str, Any]


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


def write_secret(path: Path, content: str) -> None:
    """Write a file that has mode 0600 from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)


class RankState:
    """The state of this rank."""

    def __init__(self, rank: Rank) -> None:
        rank.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._peers = tuple(rank.peers)
        self._file = StateOf(rank.name, rank_module.PLACES)

    @property
    def now(self) -> deployment_state.State:
        return deployment_state.present(self._file.name, self._file.places)

    def write(self, state: str, why: str = "") -> None:
        self._file.write(state, why, peers=self._peers)


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


async def remove_container(container: str, child: asyncio.subprocess.Process | None, *, gently: bool) -> None:
    """Remove the container and wait until `docker run` ended.

    `gently` is for a head that is stopped: it has requests to finish. A rank whose peer is lost has none. Nor has a
    worker: its head ends with it, and Ray on the worker would wait for that head until it is killed anyway.
    """
    if gently and child and child.returncode is None:
        await run_quietly("docker", "stop", "--time", str(STOP_TIMEOUT_S), container)
    # A `docker run` that is still creating the container would start it after a single removal.
    while child and child.returncode is None:
        await run_quietly("docker", "rm", "--force", container)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.wait()), 1)
    await run_quietly("docker", "rm", "--force", container)
