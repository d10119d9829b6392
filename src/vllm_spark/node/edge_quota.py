#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Counts the tokens of today by person from the log of the edge, and lets the edge refuse who has used its quota.

Its timer starts it. It reads what the journal has since the last time, and keeps the sums of the day. Whom the edge
refuses, and until when, is in a map of HAProxy: in its memory, and in the file that it reads when it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

KEYS = Path("/etc/vllm-spark/edge/keys.map")
FOLDER = Path("/var/lib/vllm-spark/edge")
SPENT, COUNTED = "spent.map", "tokens.json"
SOCKET = "/run/vllm-edge/admin.sock"
UNIT = "vllm-edge.service"
# A line of the log that counts: a forwarded request has its tokens in the log of the Spark that was asked.
LINE = re.compile(r"client=\S+ who=\S+ .* in_tokens=\S+ ")
FIELD = re.compile(r"(\w+)=(\S+)")
# What computes no answer, and the first status of an error: neither costs a token.
FREE_PATHS, ERROR = ("/models", "/count_tokens"), 400
# Bytes of a text for each of its tokens, as the sizing of a request assumes where nothing is known.
BYTES_PER_TOKEN = 4
TIMEOUT_S = 5.0
WARNING = "<4>"


def main() -> int:
    """Count what is new, and refuse who has used its quota. Returns 1 without the journal."""
    now = datetime.now()
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time())
    counted = read_counted(FOLDER / COUNTED, now)
    if not count(counted) and not (counted["cursor"] and count(counted := nothing(now))):
        print(f"{WARNING}the journal does not give the log of the edge, so tokens are not counted")
        return 1
    spent = {
        person: int(midnight.timestamp())
        for person, quota in quotas(KEYS.read_text(encoding="utf-8")).items()
        if counted["tokens"].get(person, 0) >= quota
    }
    before = read_map(FOLDER / SPENT)
    for person in sorted(spent.keys() - before.keys()):
        used = counted["tokens"][person]
        print(f"{WARNING}{person} has used {used} tokens of today: its requests get a 429 until midnight")
    write(FOLDER / COUNTED, json.dumps(counted))
    write(FOLDER / SPENT, "".join(f"{person} {end}\n" for person, end in sorted(spent.items())))
    tell(spent)
    return 0


def read_counted(file: Path, now: datetime) -> dict[str, Any]:
    """Return the sums of today: `day`, `tokens` by person, and `cursor`, the last line of the journal in them."""
    try:
        counted: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known = counted["day"] == str(now.date()) and isinstance(counted["tokens"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    return counted if known else nothing(now)


def nothing(now: datetime) -> dict[str, Any]:
    """Return the sums of a day of which nothing is counted yet."""
    return {"day": str(now.date()), "tokens": {}, "cursor": ""}


def count(counted: dict[str, Any]) -> bool:
    """Add the tokens of the lines since the last time, or of the day. Returns False without the journal, or if it does
    not know the last line any more."""
    since = f"--after-cursor={counted['cursor']}" if counted["cursor"] else f"--since={counted['day']}"
    command = ["journalctl", "--quiet", f"--unit={UNIT}", "--output=json", "--output-fields=MESSAGE", since]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as journal:
        for line in journal.stdout or ():
            entry = json.loads(line)
            counted["cursor"] = entry["__CURSOR"]
            add(str(entry.get("MESSAGE")), counted["tokens"])
    return journal.returncode == 0


def add(message: str, tokens: dict[str, int]) -> None:
    """Add the tokens of a line of the log."""
    if LINE.match(message):
        fields = dict(FIELD.findall(message))
        tokens[fields["who"]] = tokens.get(fields["who"], 0) + cost(fields)


def cost(fields: Mapping[str, str]) -> int:
    """Return the tokens of a request by the fields of its line of the log.

    What an answer does not say is counted by bytes, so that no client gains by an answer without figures. An event of a
    stream has at least one token, and several with a drafter.
    """
    read, written, events, text, sent, received = (
        number(fields.get(name, "-"))
        for name in ("in_tokens", "out_tokens", "events", "text_bytes", "sent_bytes", "received_bytes")
    )
    streamed = max(events, text // BYTES_PER_TOKEN)
    if fields["in_tokens"] != "-":
        return read + (written or streamed)
    # A client that goes before the answer has cost its prompt; its status is -1.
    if fields["path"].endswith(FREE_PATHS) or fields["path"] == "-" or number(fields.get("status", "-")) >= ERROR:
        return 0
    return received // BYTES_PER_TOKEN + (written or streamed or sent // BYTES_PER_TOKEN)


def number(text: str) -> int:
    """Return a number of the log, 0 for a dash."""
    return int(text) if text.isascii() and text.isdigit() else 0


def quotas(keys: str) -> dict[str, int]:
    """Return the tokens a day of each person that has a quota, from the text of keys.map."""
    found = {}
    for line in keys.splitlines():
        _, _, entry = line.partition(" ")
        person, _, _, quota = (*entry.strip().split("/"), "", "", "")[:4]
        if not line.startswith("#") and number(quota):
            found[person] = number(quota)
    return found


def read_map(file: Path) -> dict[str, str]:
    """Return a file with a map of HAProxy."""
    with contextlib.suppress(OSError):
        return dict(line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {}


def tell(spent: Mapping[str, int]) -> None:
    """Make the map in HAProxy's memory that of the file. An edge that does not run reads the file later."""
    map_ = FOLDER / SPENT
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        # Each line is an address in memory, the person and the end.
        rows = [line.split() for line in ask(f"show map {map_}").splitlines()]
        known = {row[1]: row[2] for row in rows if len(row) == 3}  # noqa: PLR2004
        for person in known.keys() - spent.keys():
            ask(f"del map {map_} {person}")
        for person, end in spent.items():
            if known.get(person) != str(end):
                ask(f"{'set' if person in known else 'add'} map {map_} {person} {end}")


def ask(command: str) -> str:
    """Return the answer of HAProxy's runtime API. Raises OSError without one."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(SOCKET)
        client.sendall(f"{command}\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


def write(file: Path, text: str) -> None:
    """Replace a file whose content changes. Nobody reads a half of it."""
    with contextlib.suppress(OSError):
        if file.read_text(encoding="utf-8") == text:
            return
    new = file.with_name(f".{file.name}")
    new.write_text(text, encoding="utf-8")
    os.replace(new, file)


if __name__ == "__main__":
    sys.exit(main())
