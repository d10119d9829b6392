#!/usr/bin/env python3
"""Run a command that breaks the server, measure the time to the next good answer, and keep what else a client reads.

    outage.py --url URL --deployment NAME --break COMMAND [--mend COMMAND --after S] [--calm]

The key of a client is in VLLM_API_KEY, the site's authority in SSL_CERT_FILE. --calm: the fault may go unnoticed.
Prints one JSON object. Times are in seconds since the command was started; `answers` are counted by what they say.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import threading
import time

from moment import ask, faults_of, harm

# A server that is about to stop may still answer once.
GOOD_IN_A_ROW = 3
EVERY_S = 0.5
# A fault that nobody has noticed for this long goes unnoticed.
CALM_S = 30
# What a client may read while a pair starts again: nothing while the edge's own Spark is down.
EXPECTED = {"good", "model_loading", "silent"}


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("url", "deployment", "break"):
        parser.add_argument(f"--{name}", required=True, dest=name.replace("break", "breaking"))
    parser.add_argument("--mend", default="")
    parser.add_argument("--after", type=float, default=0.0)
    parser.add_argument("--deadline", type=float, default=420.0)
    parser.add_argument("--calm", action="store_true")
    args = parser.parse_args()
    # A busy machine may let one request pass its time.
    tries = (ask(args.url) for _ in range(GOOD_IN_A_ROW))
    if not any((before := one)["kind"] == "good" for one in tries):
        print(json.dumps({"error": f"no good answer before the break: {before}", "wrong": [], "answers": {}}))
        return 1
    begun = time.monotonic()
    subprocess.run(args.breaking, shell=True, check=True, stdout=subprocess.DEVNULL)
    # A thread, because a request may hang for as long as the fault lasts.
    mending = threading.Timer(args.after, subprocess.run, [args.mend], {"shell": True, "stdout": subprocess.DEVNULL})
    mending.start()
    down_after = good_after = None
    answers, good, first_good = [], 0, 0.0
    while (at := time.monotonic() - begun) < args.deadline:
        answers.append(ask(args.url))
        kind = answers[-1]["kind"]
        if kind != "good" and down_after is None:
            down_after = round(at, 1)
        first_good = first_good if good else round(time.monotonic() - begun, 1)
        good = good + 1 if kind == "good" else 0
        noticed = down_after is not None or (args.calm and at > args.after + CALM_S)
        if not mending.is_alive() and noticed and good >= GOOD_IN_A_ROW:
            good_after = first_good if down_after is not None else 0.0
            break
        time.sleep(EVERY_S)
    odd = [one for one in answers if one["kind"] not in EXPECTED]
    wrong = [*faults_of(answers), *(f"{one['kind']}: {one['text']}" for one in odd if one["kind"] != "wrong")]
    commands = [text for one in answers for text in harm("the edge", one["text"], args.deployment)]
    counts = collections.Counter(one["kind"] for one in answers)
    print(json.dumps({"down_after": down_after, "good_after": good_after, "answers": counts,
                      "wrong": sorted({*wrong, *commands})}))  # fmt: skip
    return 0 if good_after is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
