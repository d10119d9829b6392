#!/usr/bin/env python3
"""Run a command that breaks the server, measure the time to the next good answer, and keep the wrong answers.

    outage.py --url URL --break COMMAND [--mend COMMAND --after S]    (the API key is in VLLM_API_KEY)

Prints one JSON object. Times are in seconds since the command was started.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time

from chat import ask

MODEL = "tiny-gemma4"
# A server that is about to stop may still answer once.
GOOD_IN_A_ROW = 3
EVERY_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--break", dest="breaking", required=True)
    parser.add_argument("--mend", default="")
    parser.add_argument("--after", type=float, default=0.0)
    parser.add_argument("--deadline", type=float, default=300.0)
    args = parser.parse_args()
    if ask(args.url, MODEL)[0] != "good":
        print(json.dumps({"error": "no good answer before the break"}))
        return 1
    begun = time.monotonic()
    subprocess.run(args.breaking, shell=True, check=True, stdout=subprocess.DEVNULL)
    seen = {"down_after": None, "good_after": None, "wrong": []}
    mended, good, first_good = not args.mend, 0, 0.0
    while (at := time.monotonic() - begun) < args.deadline:
        if not mended and at >= args.after:
            subprocess.run(args.mend, shell=True, check=True, stdout=subprocess.DEVNULL)
            mended = True
        kind, answer = ask(args.url, MODEL)
        # A cut answer counts as wrong.
        seen["wrong"] += [answer] if answer else []
        if kind in {"absent", "refused", "down"} and seen["down_after"] is None:
            seen["down_after"] = round(at, 1)
        first_good = first_good if good else round(time.monotonic() - begun, 1)
        good = good + 1 if kind == "good" else 0
        if mended and seen["down_after"] is not None and good == GOOD_IN_A_ROW:
            seen["good_after"] = first_good
            break
        time.sleep(EVERY_S)
    print(json.dumps(seen))
    return 0 if seen["good_after"] is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
