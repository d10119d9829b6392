"""Lines that say that something failed, without signatures and tracebacks (failure_lines.yml)."""

from __future__ import annotations

import re

from vllm_spark.doctor import rule_files

_FILE = rule_files.load("failure_lines")
_PATTERNS = {name: re.compile(pattern) for name, pattern in _FILE["patterns"].items()}

NCCL_WARNING = " NCCL WARN "  # NCCL's name for what makes a call fail
WORKER_FAILED = "a worker of the engine failed, and no signature knows what it said"
NOTHING = "NoneType: None"  # the traceback of a logger outside of an exception
LOGGED = "the engine logged an error that no signature knows"
FATAL_CAUSE = "a line of a form that ends servers, which no signature knows; no answer follows it"
UNKNOWN = frozenset({LOGGED, FATAL_CAUSE})
STOP_COMPLETE = "Application shutdown complete."  # uvicorn
FATAL_LEVELS = frozenset({"ERROR", "CRITICAL"})
ENDED_WITHOUT = "a process of the engine ended without a reason in the log"
ENDED_CAUSE = "the log ends in a failure, and its cause is not in these lines"
KILLED_CAUSE = "something outside of the engine ended it before the server started, as this line says"
LAST_WORDS_CAUSE = "the log ends before the server started, and this is its last complaint"
LAST_WORDS_LINES = 20

# failure_lines.yml says what each of these is.
USAGE_ERROR = _PATTERNS["usage_error"]
PROGRAM_ERROR = _PATTERNS["program_error"]
DOCKER_ERROR = _PATTERNS["docker_error"]
SERVING = _PATTERNS["serving"]
ANSWERED = _PATTERNS["answered"]
REQUEST = _PATTERNS["request"]
STOPPED = _PATTERNS["stopped"]
STARTED = _PATTERNS["started"]
STARTED_OR_WITHIN = _PATTERNS["started_or_within"]
NATIVE_FRAME = _PATTERNS["native_frame"]
NATIVE = _PATTERNS["native"]
HINT = _PATTERNS["hint"]
ENDED = _PATTERNS["ended"]
ENDING = _PATTERNS["ending"]
LAST_WORDS = _PATTERNS["last_words"]
KILLED = _PATTERNS["killed"]
FATAL = re.compile("|".join(form["pattern"] for form in _FILE["fatal"]))
FIXES: dict[str, str] = _FILE["fixes"]
# Names of levels in other programs, and the engine's.
LEVELS: dict[str, str] = _FILE["levels"]
MARKS = tuple(_FILE["marks"])
