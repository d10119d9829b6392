"""Carriers: what journald, Docker, syslog, JSON loggers and Ansible put around a line.

Known forms are removed by pattern. Any other form is learnt from a log: the text before the engine's own prefix that
most lines share, digits aside.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)"
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
# The engine's own beginning of a line: a process, a level, a traceback, a frame, an exception.
_OWN = (
    r"\((?:EngineCore|APIServer|Worker|RayWorker|VllmWorker|raylet)[^()]{0,80}\)[ ]"
    rf"|(?:{_LEVELS})(?:[ ]\d\d-\d\d[ ]\d\d:\d\d|:[ ]{{3,}})"
    r"|Traceback[ ]\(most[ ]recent|[ ]{2}File[ ]\"|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):[ ]"
)
_KNOWN = re.compile(
    rf"""(?:
      [A-Z][a-z]{{2}}[ ][ \d]\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?[ ]\S+[ ][^\s:\[]+(?:\[\d+\])?:[ ]?  # syslog, journalctl
    | {_DATE}T{_TIME}{_ZONE}[ ](?:\S+[ ][^\s:\[]+(?:\[\d+\])?:[ ]?)?                              # ISO dates
    | {_DATE}[ ]{_TIME}[ ]\S+[ ][^\s:\[]+\[\d+\]:[ ]?                                              # syslog with a year
    | \[{_DATE}[ T]{_TIME}{_ZONE}?\][ ]
    | (?:\[{_TIME}\]|{_TIME}|{_DATE}[ ]{_TIME})[ ](?={_OWN})
    | (?:<\d+>)?\[[ ]*\d+\.\d{{6}}\][ ]                                                            # dmesg
    | \[[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ]\d{{4}}\][ ]                    # dmesg -T
    | [\w.…-]{{1,60}}[ ]+\|[ ]                                                                     # compose, a viewer
    )""",
    re.VERBOSE,
)
_ANCHOR = re.compile(_OWN, re.VERBOSE)
_DIGITS = re.compile(r"\d+")
_SEARCHED = 200  # characters of a line in which its own beginning is searched
_SAMPLE = 400  # lines
_FEWEST = 3  # lines with the same prefix; fewer can be chance
_SHARE = 0.6  # of the lines that are not empty

# Docker's json-file, journalctl -o json, and JSON loggers.
_MESSAGES = ("log", "MESSAGE", "message", "msg", "text", "event")
_BYTES = range(256)
_LEVEL_KEYS = ("level", "levelname", "severity")

# A result of Ansible on one line.
_ANSIBLE = re.compile(
    r"^[^\n{]{0,200}?(?:fatal|failed|ok|changed): \[[^\]\n]+\][^\n{]{0,200}? => (?P<result>\{.*\})\s*$", re.M
)
_OUTPUTS = ("msg", "module_stdout", "module_stderr", "stdout", "stderr", "exception")


def begins(line: str) -> bool:
    """Return True if a line begins with a known carrier, or as a line of the engine or of a traceback does."""
    return bool(_KNOWN.match(line) or _ANCHOR.match(line))


def plain(text: str) -> str:
    """Return a block of an Ansible run as the lines that it shows."""
    if " => {" in text:
        text = _ANSIBLE.sub(lambda match: "\n".join(_outputs(_loaded(match["result"]))) or match[0], text)
    return text


def _outputs(result: Any) -> Iterator[str]:
    """Yield what the programs of a task, or of each item of its loop, have printed."""
    if not isinstance(result, dict):
        return
    yield from (result[key].rstrip("\n") for key in _OUTPUTS if isinstance(result.get(key), str) and result[key])
    for item in result["results"] if isinstance(result.get("results"), list) else ():
        yield from _outputs(item)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def strip(text: str, learnt: re.Pattern[str] | None = None) -> str:
    """Return a line without its carriers. `learnt` is what `learn` returned for its log."""
    while text[:1] != "(" and (match := _KNOWN.match(text)):
        text = text[match.end() :]
    if learnt and (match := learnt.match(text)):
        text = text[match.end() :]
    return text


def learn(lines: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for an unknown prefix that most lines of a log share, or None."""
    sample = [strip(line) for line, _ in zip((line for line in lines if line.strip()), range(_SAMPLE), strict=False)]
    shapes: Counter[str] = Counter()
    for line in sample:
        if not line.startswith("{") and (match := _ANCHOR.search(line, 0, _SEARCHED)):
            shapes[_DIGITS.sub("0", line[: match.start()])] += 1
    shapes.pop("", None)
    if not shapes:
        return None
    shape, count = shapes.most_common(1)[0]
    pattern = re.compile(r"\d+".join(re.escape(part) for part in shape.split("0")))
    shared = sum(1 for line in sample if pattern.match(line))
    if count < _FEWEST or shape[-1:].isalnum() or shared < _SHARE * len(sample):
        return None
    return pattern


def from_json(text: str) -> tuple[str, str] | None:
    """Return message and level ("" if absent) of a line of a JSON logger, or None if it is not one."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    loaded = _loaded(text)
    if not isinstance(loaded, dict):
        return None
    message = next((found for key in _MESSAGES if (found := _string(loaded.get(key))) is not None), None)
    level = next((str(loaded[key]).upper() for key in _LEVEL_KEYS if isinstance(loaded.get(key), str)), "")
    return None if message is None else (message.rstrip("\r\n"), level if level in _LEVELS.split("|") else "")


def _string(value: Any) -> str | None:
    """Return a message. journald writes one with control characters as a list of bytes."""
    if isinstance(value, list) and all(type(byte) is int and byte in _BYTES for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, str) else None
