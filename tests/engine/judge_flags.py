"""Print whether the vLLM that this Python imports accepts a flag, for each line of words that stdin has (JSON lists).

A line of the output is a text: empty if the engine accepts the words, else its error. Its parser decides, then its
tables of names.
"""

from __future__ import annotations

import json
import sys
from unittest import mock

import check_argv
from describe_parser import later

MODEL = "/hub/model"


def error(words: list[str], known: dict[str, list[str]]) -> str:
    """Return the error of `vllm serve MODEL WORDS`, or an empty string."""
    argv = ["serve", MODEL, *words]
    try:
        with mock.patch.object(sys, "argv", ["vllm", *argv]):
            args = check_argv.parser().parse_args(argv)
    except Exception as refused:
        # Any exception of the engine's code here ends its start.
        return check_argv.first_line(refused)
    for flag, names in known.items():
        value = getattr(args, flag.replace("-", "_"), None)
        if isinstance(value, str) and value and value not in names:
            return f"{flag} {value} is not registered"
    return ""


def main() -> None:
    known = later()
    for line in sys.stdin:
        print(json.dumps(error(json.loads(line), known)), file=check_argv.VERDICTS, flush=True)


if __name__ == "__main__":
    main()
