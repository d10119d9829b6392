"""The texts of a support bundle on one host: read within bounds, masked, and packed. Writes no file."""

from __future__ import annotations

import base64
import gzip
import json
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_bounded import (
    Add,
    Bound,
    HeadBuffer,
    HeadTailBuffer,
    TailBuffer,
    as_text,
    join,
    read_file,
    stream_command,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import (
    Secrets,
    env_names,
    env_pairs,
    in_document,
    in_script,
)

FORMAT = 1
# The texts of one host, before they are compressed to about a tenth.
MAX_BYTES = 16 << 20
# Limit of all commands together, because an operator waits for the result, and of one command.
DEADLINE_S = 150.0
COMMAND_TIMEOUT_S = 20.0

KIB = 1024
# Bounds of the beginning and of the end of an output.
Bounds = tuple[Bound, Bound]
JOURNAL: Bounds = ((3000, 512 * KIB), (5000, 1024 * KIB))
SHORT: Bounds = ((400, 64 * KIB), (1500, 256 * KIB))
OUTPUT: Bounds = ((2000, 256 * KIB), (2000, 256 * KIB))
# Bytes of the beginning and of the end of a file.
FILE = (256 * KIB, 256 * KIB)
# journalctl explains in at most so many lines why it has no lines to show.
MESSAGE_LINES = 3
SECRET_FILES = ("env", "session.env")


class Bundle:
    """Texts by their path in the bundle, the source of each, and notes about texts that could not be read."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.notes: list[str] = []
        self.deployments: dict[str, dict[str, str]] = {}
        self.secrets = Secrets()
        self._size = 0
        self._deadline = time.monotonic() + DEADLINE_S

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def put(self, path: str, text: str, source: str, left_out: str = "") -> None:
        """Store a text, unless it is empty or the bundle is full."""
        if self._size + len(text) > MAX_BYTES:
            self.note(f"{path} ({source}): left out, the bundle is {MAX_BYTES >> 20} MiB already")
        elif text.strip():
            self._size += len(text)
            self.files[path], self.sources[path] = text, source
            if left_out:
                self.left_out[path] = left_out

    def put_json(self, path: str, document: Any, source: str) -> None:
        self.secrets.add(in_document(document))
        self.put(path, json.dumps(document, indent=2, sort_keys=True) + "\n", source)

    def stream(self, argv: Sequence[str], add: Add) -> bool:
        """Run a command and note its fault. Returns True if it succeeded."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            fault = f"not run, the {DEADLINE_S:.0f} s for this host are over"
        else:
            fault = stream_command(argv, add, min(COMMAND_TIMEOUT_S, left_s))
        if fault:
            self.note(f"`{' '.join(argv)}`: {fault}")
        return not fault

    def output_lines(self, *argv: str) -> list[str]:
        """Return the lines that a command prints; none if it fails."""
        buffer = TailBuffer(2000, 256 * KIB)
        return list(buffer.lines) if self.stream(argv, buffer.add) else []

    def commands(self, path: str, commands: Sequence[Sequence[str]], bounds: Bounds = OUTPUT) -> None:
        """Store the outputs of commands, each below its command line."""
        texts, left = [], []
        for argv in commands:
            buffer = HeadTailBuffer(*bounds)
            self.stream(argv, buffer.add)
            text, left_out = buffer.text()
            texts.append(f"$ {' '.join(argv)}\n{text}")
            left += [left_out] if left_out else []
        self.put(path, "\n".join(texts), "; ".join(" ".join(argv) for argv in commands), "; ".join(left))

    def file(self, path: str, source: str, bounds: tuple[int, int] = FILE, follow: bool = True) -> None:
        """Store a file; of a file of secrets only the names."""
        try:
            text, left_out = read_file(source, *bounds, follow=follow)
        except FileNotFoundError:
            return
        except OSError as error:
            self.note(f"{source}: {error.strerror}")
            return
        name = os.path.basename(source)
        if name in SECRET_FILES:
            self.secrets.add(env_pairs(text))
            text, left_out = env_names(text), ""
        elif name == "launch":
            self.secrets.add(in_script(text))
        self.put(path, text, source, left_out)

    def journal(self, path: str, matches: Sequence[str], bounds: Bounds, title: str) -> int:
        """Store the journal's matching lines from both ends. Returns the number of lines from the beginning."""
        argv = ["journalctl", "--quiet", "--no-pager", "--utc", "--output", "short-iso-precise"]
        head = HeadBuffer(*bounds[0])
        if not self.stream([*argv, *matches], head.add) and len(head.lines) <= MESSAGE_LINES:
            # The boot or the journal does not exist, or the user may not read it.
            self.notes += [f"journalctl: {line}" for line in head.lines]
            return 0
        text, left_out = as_text(head.lines), ""
        if head.full:
            tail = TailBuffer(*bounds[1])
            self.stream([*argv, "--lines", str(bounds[1][0]), *matches], tail.add)
            text, left_out = join(head.lines, tail.lines)
        self.put(path, text, f"{title}: {' '.join([*argv, *matches])}", left_out)
        return len(head.lines)

    def packed(self) -> str:
        """Return everything without secrets: JSON, compressed by gzip, in base64."""
        for text in self.files.values():
            self.secrets.learn(text)
        masked = self.secrets.masker()
        document = {
            "files": {path: masked(text) for path, text in self.files.items()},
            "manifest": {
                "format": FORMAT,
                "host": platform.node(),
                "time": time.time(),
                "deployments": self.deployments,
                "sources": {path: masked(text) for path, text in self.sources.items()},
                "left_out": self.left_out,
                "notes": [masked(note) for note in self.notes],
                "weak_secrets": self.secrets.weak(),
            },
        }
        text = json.dumps(document, ensure_ascii=False)
        return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6)).decode()
