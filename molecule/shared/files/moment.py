#!/usr/bin/env python3
"""Disturb a deployment once, and write side by side what edge, status, doctor and history say of it at that moment.

    moment.py EVENT_JSON    (the key of a client is in VLLM_API_KEY, the site's authority in SSL_CERT_FILE)
    moment.py --table ROWS

Fields of an event: name; deployment and its hosts, the head first; inventory, more words for the verbs; command, which
disturbs it; says, texts that it must print; wait, a command that succeeds at the moment of the reading; background, the
command runs on meanwhile; interrupt, it gets Ctrl-C before; recover, a command that heals, or `printed` for the one
that the interrupted command names; afterwards, the fields that change with the recovery. Of the site: url of the head's
edge, folder, project, and rows, the file to which one row is appended as JSON. Its `faults` have every contradiction.

The seconds of a row are from the command, or from the one that heals, and include the time of the reading.
--table prints the rows, and ends with status 1 if one has a fault.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import printed
from chat import QUESTION, judge, post

MODEL = "tiny-gemma4"
ASK_S = 8
DEADLINE_S = 300
GOOD_IN_A_ROW = 3
# What an edge answers -> the beginnings of what status and the Spark's own state may say meanwhile.
STARTS = ("wanted", "loading", "failed", "draining", "starting", "waiting", "crash-looping", "ended", "activating")
ENDED = ("stopped", "gave up", "draining", "inactive", "failed")
MAY_SAY = {
    "good": ("serving", "draining"),
    "model_loading": STARTS,
    "model_draining": ("draining", *ENDED),
    "model_failed": ("gave up", "failed"),
    "model_not_active": ENDED,
}
PRINTED = re.compile(r"`(ansible-playbook [^`]*?\b(?:rollback|switch|stop)\.yml[^`]*)`")
STOPS = re.compile(r"(?:stop|remove)\.yml|switch(?:\.yml)? -e to=(?P<to>[\w-]+)")
COLUMNS = {"name": 26, "edge": 26, "status": 34, "doctor": 60, "history": 44, "good_after": 8}

Answer = dict[str, str]
Event = dict[str, Any]


def ask(url: str) -> Answer:
    """Return what a client sees: kind (that of chat.judge, an error's code, or silent), again (Retry-After), text."""
    try:
        answer = post(url, "/v1/chat/completions", {"model": MODEL, **QUESTION}, ASK_S)
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        code = re.search(r'"code": ?"(\w+)"', text)
        return {
            "kind": code[1] if code else str(error.code),
            "again": error.headers.get("Retry-After", ""),
            "text": text,
        }
    except (OSError, ValueError) as error:
        return {"kind": "silent", "again": "", "text": str(error)}
    kind = judge(answer, MODEL)
    return {"kind": kind, "again": "", "text": "" if kind == "good" else json.dumps(answer)}


def contradictions(where: str, before: Answer, word: str, after: Answer) -> list[str]:
    """Return the contradiction between an edge and a word for the state. The edge was asked before and after it: if its
    answers differ, the state has changed in between."""
    if not word or before["kind"] != after["kind"] or word.startswith(MAY_SAY.get(before["kind"], ("",))):
        return []
    return [f"the edge says {before['kind']}, and {where} says {word}"]


def harm(where: str, text: str, deployment: str) -> list[str]:
    """Return the commands in a text that would stop the deployment."""
    return [f"{where} names {match[0]}" for match in STOPS.finditer(text) if match["to"] != deployment]


def faults_of(answers: Sequence[Answer]) -> list[str]:
    """Return the wrong answers, and those that do not say when to ask again."""
    return [
        f"a wrong answer: {one['text']}" if one["kind"] == "wrong" else "model_loading without Retry-After"
        for one in answers
        if one["kind"] == "wrong" or (one["kind"] == "model_loading" and not one["again"])
    ]


def verb(event: Event, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["ansible-playbook", "-i", "inventories/sandbox", f"{name}.yml", *event.get("inventory", []), *words]
    return subprocess.run(argv, cwd=event["project"], capture_output=True, text=True, check=False)  # noqa: S603  own argv


def status(event: Event) -> tuple[dict[str, str], str]:
    """Return what status says of the deployment on each of its hosts, and all that it prints."""
    file = Path(event["folder"], "day-status.json")
    file.unlink(missing_ok=True)
    done = verb(event, "status", "-e", f"status_json={file}")
    hosts = json.loads(file.read_text())["hosts"] if file.exists() else []
    words = {}
    for host in (host for host in hosts if host["host"] in event["hosts"]):
        own = [one["state"] for one in host["deployments"] if one["name"] == event["deployment"]]
        words[host["host"]] = str((own or ["not deployed"])[0]) if host["answers"] else "no answer"
    return words, done.stdout + done.stderr


def collect(event: Event) -> tuple[str, str, str]:
    """Return the state that the head has written, its last transition, and all that collect prints."""
    folder = Path(event["folder"], "day-bundles")
    for old in folder.glob("*.tar.gz"):
        old.unlink()
    done = verb(event, "collect", "-e", f"vllm_report_dir={folder}")
    own = f"deployments/{event['deployment']}"
    word, last = "", ""
    for path in folder.glob(f"collect-{event['hosts'][0]}-*.tar.gz"):
        with tarfile.open(path) as archive:
            word = str(last_object(archive, f"{own}/run/state.json").get("state", ""))
            line = last_object(archive, f"{own}/states.jsonl")
            last = f"{line.get('state')}: {line.get('why')}" if line else ""
    return word, last, done.stdout + done.stderr


def last_object(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    """Return the last line of a member as JSON; empty if there is none."""
    try:
        member = archive.extractfile(name)
        return dict(json.loads(member.read().decode().splitlines()[-1])) if member else {}
    except (KeyError, ValueError, IndexError, TypeError):
        return {}


def history(event: Event) -> str:
    """Return the verb and the result of the last launch of the deployment on its head."""
    file = Path(event["folder"], "day-history.json")
    file.unlink(missing_ok=True)
    done = verb(event, "history", "-l", event["hosts"][0], "-e", f"history_json={file}")
    if not file.exists():
        return f"unreadable: {(done.stdout + done.stderr)[:200]}"
    rows = [row for row in json.loads(file.read_text()) if row.get("deployment") == event["deployment"]]
    return f"{rows[-1].get('verb')} {'held' if rows[-1].get('holds') else 'missed'}" if rows else "nothing"


def reading(event: Event) -> dict[str, Any]:
    """Return the row of this moment. Status is the most fleeting, so it comes first."""
    name, head = event["deployment"], event["hosts"][0]
    first = ask(event["url"])
    words, shown = status(event)
    second = ask(event["url"])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        told = pool.submit(history, event)
        word, transition, diagnosed = collect(event)
    third = ask(event["url"])
    finding = next((line.partition("1. ")[2] for line in diagnosed.splitlines() if "  1. " in line), "no finding")
    texts = {"the edge": first["text"] + second["text"] + third["text"], "status": shown, "the doctor": diagnosed}
    return {
        "edge": f"{first['kind']} {first['again']}".strip(),
        "status": "; ".join(dict.fromkeys(words.values())),
        "doctor": f"{word or 'no state'}, {finding}",
        "history": "; ".join(filter(None, (told.result(), transition))),
        "faults": [
            *contradictions("status", first, words.get(head, ""), second),
            *contradictions("the Spark's own state", second, word, third),
            *(fault for where, text in texts.items() for fault in harm(where, text, name)),
            *(f"{where} has a placeholder: {one}" for where, text in texts.items() for one in printed.unfilled(text)),
            *faults_of([first, second, third]),
        ],
    }


def recovered(event: Event, begun: float) -> tuple[float | None, list[Answer]]:
    """Wait for good answers in a row. Returns the seconds until the first of them, and every answer."""
    good, first, seen = 0, 0.0, []
    while time.monotonic() - begun < DEADLINE_S:
        seen.append(ask(event["url"]))
        first = first if good else time.monotonic() - begun
        good = good + 1 if seen[-1]["kind"] == "good" else 0
        if good == GOOD_IN_A_ROW:
            return round(first, 1), seen
        time.sleep(1)
    return None, seen


def disturbed(event: Event, log: Path) -> dict[str, Any]:
    """Run the command and read the moment. Returns the row. Raises TimeoutError if the moment does not come."""
    begun = time.monotonic()
    with log.open("w") as output:
        command = subprocess.Popen(
            event["command"], shell=True, cwd=event["project"], stdout=output, stderr=output, start_new_session=True
        )
    if not event.get("background") and not event.get("interrupt"):
        command.wait()
    while event.get("wait") and subprocess.run(event["wait"], shell=True, capture_output=True, check=False).returncode:
        if time.monotonic() - begun > DEADLINE_S:
            raise TimeoutError(event["wait"])
        time.sleep(0.2)
    if event.get("interrupt"):
        os.killpg(command.pid, signal.SIGINT)
        command.wait()
    row = reading(event)
    command.wait()
    return row


def mended(event: Event, said: str) -> list[str]:
    """Run the command that heals. Returns the fault if it is missing or fails."""
    wanted = event.get("recover", "")
    match = PRINTED.search(said)
    command = wanted if wanted != "printed" else match[1] if match else ""
    if not command:
        return [f"no command was printed: {said[-1000:]}"] if wanted else []
    done = subprocess.run(command, shell=True, cwd=event["project"], capture_output=True, text=True, check=False)
    return [f"{command} failed: {(done.stdout + done.stderr)[-1000:]}"] if done.returncode else []


def typed(event: Event, said: str) -> list[str]:
    """Type the commands of a text that only look, once the deployment serves again. Returns the faults."""
    faults = [f"a placeholder: {command}" for command in printed.unfilled(said)]
    for command in printed.looking(said):
        done = subprocess.run(command, shell=True, cwd=event["project"], capture_output=True, text=True, check=False)
        faults += [f"{command} ended with {done.returncode}: {done.stderr[-500:]}"] if done.returncode else []
    return faults


def run(event: Event) -> dict[str, Any]:
    """Run the event. Returns its row."""
    log, begun = Path(event["folder"], "day-command.log"), time.monotonic()
    try:
        row = disturbed(event, log)
    except TimeoutError as late:
        return {"name": event["name"], "faults": [f"this moment did not come: {late}; {log.read_text()[-1000:]}"]}
    said = " ".join(log.read_text().split())
    row["faults"] += [f"{text!r} is not in {said[-1000:]}" for text in event.get("says", []) if text not in said]
    begun = time.monotonic() if event.get("recover") else begun
    row["faults"] += mended(event, said)
    event = {**event, **event.get("afterwards", {})}
    row["good_after"], seen = recovered(event, begun)
    words, shown = status(event)
    if row["good_after"] is None or not all(word.startswith("serving") for word in words.values()):
        row["faults"].append(f"good answers after {row['good_after']} s, and status says {words}")
    row["faults"] += [*faults_of(seen), *harm("status", shown, event["deployment"]), *typed(event, log.read_text())]
    return {"name": event["name"], **row}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows as lines, each cut to its column, and the faults below them."""
    titles = dict(zip(COLUMNS, ("event", "edge", "status", "doctor (collect)", "history", "good by"), strict=True))
    lines = [
        "  ".join(str(row.get(key, ""))[:width].ljust(width) for key, width in COLUMNS.items()).rstrip()
        for row in [titles, *rows]
    ]
    return lines + [f"{row['name']}: {fault}" for row in rows for fault in row["faults"]]


def main() -> int:
    if sys.argv[1] == "--table":
        rows = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
        print("\n".join(table(rows)))
        return int(not rows or any(row["faults"] for row in rows))
    event = json.loads(sys.argv[1])
    row = run(event)
    with Path(event["rows"]).open("a", encoding="utf-8") as rows_file:
        rows_file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
