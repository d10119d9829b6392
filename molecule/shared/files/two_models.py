#!/usr/bin/env python3
"""Send requests for two models to one address while a command runs, and report which model answered.

    two_models.py --url URL --models A,B [--long A] -- COMMAND …    (the API key is in VLLM_API_KEY)

Prints one JSON object with these keys: rc and output of the command; gap_s, the longest time between two good answers
of any model; wrong, the answers that are not those of the model that was asked; counts, the number of answers by model
and kind (chat.py); errors, the time of each since the start, in seconds, and its text; last, the model of the last good
answer; long, the result of a request that ran when the command started.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import threading
import time

from chat import ask, post

LONG_S = 600
EVERY_S = 0.1
# Time after the end of the command, so the model that started last can answer.
AFTER_S = 2.0
# About 20 s on a CPU, which is longer than the time until the drain starts.
LONG_TOKENS = 700


def long_request(url: str, model: str, result: dict) -> None:
    body = {"model": model, "prompt": "1", "max_tokens": LONG_TOKENS, "ignore_eos": True, "temperature": 0}
    try:
        answer = post(url, "/v1/completions", body, LONG_S)
        result["long"] = "whole" if answer["usage"]["completion_tokens"] == LONG_TOKENS else "short"
    except (OSError, ValueError) as error:
        result["long"] = f"cut: {type(error).__name__}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--long", default="")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    result: dict = {"long": ""}
    long = threading.Thread(target=long_request, args=(args.url, args.long, result))
    if args.long:
        long.start()
    running = subprocess.Popen(  # noqa: S603  the command comes from the test
        args.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(running.stdout))
    reader.start()
    counts: collections.Counter = collections.Counter()
    wrong: list[str] = []
    errors: list[str] = []
    begin = time.monotonic()
    last, gap, by, ended = time.monotonic(), 0.0, "", 0.0
    while not ended or time.monotonic() - ended < AFTER_S:
        if not ended and running.poll() is not None:
            ended = time.monotonic()
        for model in args.models.split(","):
            kind, answer = ask(args.url, model)
            counts[f"{model} {kind}"] += 1
            wrong += [answer] if kind == "wrong" else []
            errors += [f"{time.monotonic() - begin:.1f} {answer}"] if kind in {"refused", "down"} else []
            if kind == "good":
                gap, last, by = max(gap, time.monotonic() - last), time.monotonic(), model
        time.sleep(EVERY_S)
    reader.join()
    if args.long:
        long.join()
    gap = max(gap, time.monotonic() - last)
    seen = {
        "rc": running.returncode,
        "gap_s": round(gap, 1),
        "wrong": wrong,
        "counts": counts,
        "errors": errors,
        "last": by,
    }
    print(json.dumps({**seen, **result, "output": "".join(output)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
