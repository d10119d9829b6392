#!/usr/bin/python
"""All that a box has to say of its model servers and of itself, without secrets, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_collect
short_description: Gather the logs and the state of a box, secrets masked, in one round trip
description:
  - Finds the deployments on the box by itself, so that it needs neither an inventory nor a server that runs.
  - Every log is bounded; what was left out and what could not be read is noted, and is no failure.
  - Secrets are masked before anything leaves the box. Changes nothing, and writes no file there.
author: vllm-spark
attributes:
  check_mode:
    support: full
    description: It only reads.
"""

EXAMPLES = r"""
- name: Gather
  vllm_collect:
"""

RETURN = r"""
collected:
  description:
    - 'JSON, compressed by gzip, in base64: C(files), a map of path to text, and C(manifest): host, time, deployments,
      where each text comes from and what was left out of it, notes, weak_secrets (names).'
  returned: always
  type: str
"""

import base64
import gzip
import http.client
import json
import os
import platform
import re
import stat
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_bounded import Ends, First, Last, join, read_file, run, shown
from ansible.module_utils.spark_docker import Docker, DockerError
from ansible.module_utils.spark_fabric import fabric
from ansible.module_utils.spark_host import host, memory
from ansible.module_utils.spark_secrets import Secrets, env_pairs, env_shown, in_document, in_script

FORMAT = 1
CONFIG_DIR = "/etc/vllm-spark"
RUN_DIR = "/run/vllm-spark"
PROC = "/proc"

# What one box may send, before it is compressed to about a tenth.
MOST_BYTES = 16 << 20
# All questions together; the module must answer while somebody waits.
DEADLINE_S = 150.0
COMMAND_S = 20.0

KIB = 1024
JOURNAL = ((3000, 512 * KIB), (5000, 1024 * KIB))  # (lines, bytes) of the beginning and of the end
SHORT = ((400, 64 * KIB), (1500, 256 * KIB))
OUTPUT = ((2000, 256 * KIB), (2000, 256 * KIB))
FILE = (256 * KIB, 256 * KIB)
RAY_FILE = (32 * KIB, 64 * KIB)
RAY_FILES = 40
MESSAGE_LINES = 3
CONFIG_FILES = 60
# Those of Ray that tell of the cluster and not of one worker.
RAY_FIRST = ("gcs_server", "raylet", "monitor", "runtime_env")

# systemd's message IDs of "Starting …" and "Started …", with the run's ID: sd-messages.h, SD_MESSAGE_UNIT_STARTING and
# _STARTED; job.c emits them, and leaves the first out where the second comes at once.
STARTS = ("7d4958e842da4a758f6c1cdc7b36dcc5", "39f53479d3a045ac8e11786248231fbf")
# A line of `systemctl list-units`: unit, whether it was loaded, active or not.
LISTED = re.compile(r"\s*vllm@(\S+)\.service\s+\S+\s+(\S+)")
SECRET_FILES = ("env", "session.env")

# path in the bundle -> commands, each of which may be missing here
COMMANDS = {
    "box/gpu.log": (
        ("nvidia-smi", "--query-gpu=power.draw,utilization.gpu,clocks.sm", "--format=csv,noheader"),
        ("nvidia-smi", "-q"),
    ),
    "box/memory.txt": (
        ("free", "--mebi"),
        ("swapon", "--show"),
        ("cat", "/proc/meminfo"),
        ("cat", "/proc/pressure/memory"),
    ),
    "box/disk.txt": (("df", "--human-readable", "--print-type"), ("df", "--inodes", "--human-readable")),
    # Names of programs only: an argv may hold a secret.
    "box/processes.txt": (("ps", "-eo", "pid,ppid,user:12,rss,pcpu,stat,etime,comm", "--sort=-rss"),),
    "box/ports.txt": (("ss", "--listening", "--tcp", "--numeric", "--processes"),),
    "box/network.txt": (("ip", "-statistics", "address"), ("ip", "route")),
    "box/clock.txt": (("timedatectl",), ("timedatectl", "timesync-status"), ("chronyc", "tracking")),
    "box/system.txt": (
        ("uname", "-a"),
        ("uptime",),
        ("cat", "/etc/os-release"),
        ("cat", "/etc/dgx-release"),
        ("nvidia-ctk", "--version"),
        ("systemctl", "list-units", "--all", "--no-pager", "vllm*"),
        ("systemctl", "list-timers", "--all", "--no-pager", "vllm*"),
        ("systemctl", "--failed", "--no-pager"),
    ),
}


class Collection:
    """Texts by their path in the bundle, where each comes from, and notes of what could not be had."""

    def __init__(self):
        self.files, self.sources, self.left_out, self.notes, self.deployments = {}, {}, {}, [], {}
        self.secrets = Secrets()
        self._size = 0
        self._until = time.monotonic() + DEADLINE_S

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def put(self, path, text, source, left_out=""):
        """Keep a text; an empty one is none."""
        if self._size + len(text) > MOST_BYTES:
            self.note(f"{path} ({source}): left out, the bundle is {MOST_BYTES >> 20} MiB already")
        elif text.strip():
            self._size += len(text)
            self.files[path], self.sources[path] = text, source
            if left_out:
                self.left_out[path] = left_out

    def put_json(self, path, document, source):
        self.secrets.add(in_document(document))
        self.put(path, json.dumps(document, indent=2, sort_keys=True) + "\n", source)

    def ask(self, words, take):
        """Run a command; whether it ran, and well. A fault is noted."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            fault = f"not asked, the box had taken {DEADLINE_S:.0f} s already"
        else:
            fault = run(words, take, min(COMMAND_S, left_s))
        if fault:
            self.note(f"`{' '.join(words)}`: {fault}")
        return not fault

    def said(self, *words):
        """The lines that a command prints."""
        kept = Last(2000, 256 * KIB)
        return list(kept.lines) if self.ask(words, kept.take) else []

    def commands(self, path, asked, bounds=OUTPUT):
        """What commands print, each under its name."""
        texts, left = [], []
        for words in asked:
            kept = Ends(*bounds)
            self.ask(words, kept.take)
            text, left_out = kept.text()
            texts.append(f"$ {' '.join(words)}\n{text}")
            left += [left_out] if left_out else []
        self.put(path, "\n".join(texts), "; ".join(" ".join(words) for words in asked), "; ".join(left))

    def file(self, path, source, bounds=FILE, follow=True):
        """A file, of secrets only their names."""
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
            text, left_out = env_shown(text), ""
        elif name == "launch":
            self.secrets.add(in_script(text))
        self.put(path, text, source, left_out)

    def journal(self, path, matches, bounds, title):
        """The journal's lines that match, from both ends; how many there are."""
        words = ["journalctl", "--quiet", "--no-pager", "--utc", "--output", "short-iso-precise"]
        first = First(*bounds[0])
        if not self.ask([*words, *matches], first.take) and len(first.lines) <= MESSAGE_LINES:
            # That there is no such boot, no journal, no right to read it.
            self.notes += [f"journalctl says: {line}" for line in first.lines]
            return 0
        text, left_out = shown(first.lines), ""
        if first.full:
            last = Last(*bounds[1])
            self.ask([*words, "--lines", str(bounds[1][0]), *matches], last.take)
            text, left_out = join(first.lines, last.lines)
        self.put(path, text, f"{title}: {' '.join([*words, *matches])}", left_out)
        return len(first.lines)

    def packed(self):
        """All of it without secrets, ready to travel."""
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


def names(kept):
    """Every deployment that this box knows, what runs first: those with files, those of systemd, those of a run."""
    listed = kept.said("systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "vllm@*.service")
    states = dict(match.groups() for line in listed if (match := LISTED.match(line)))
    running = [name for name, active in states.items() if active != "inactive"]
    return list(dict.fromkeys([*running, *folders(CONFIG_DIR), *folders(RUN_DIR), *states]))


def folders(path):
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def deployment(kept, docker, name):
    """What the box has of one deployment, the most telling first; the state of its unit."""
    unit, at = f"vllm@{name}.service", f"deployments/{name}"
    state = unit_state(kept, unit, at)
    config(kept, name, at)
    for file in ("state.json", "liveness.json", "session.env"):
        kept.file(f"{at}/run/{file}", f"{RUN_DIR}/{name}/{file}")
    container = inspected(kept, docker, name, at)
    logged = runs(kept, unit, state, at)
    liveness = (f"_SYSTEMD_UNIT=vllm-liveness@{name}.service", "+", f"UNIT=vllm-liveness@{name}.service")
    kept.journal(f"{at}/liveness.log", liveness, SHORT, "the liveness timer's unit")
    if container and not logged:
        kept.note(f"{unit}: the journal has no line of this run, so docker was asked")
        kept.commands(f"{at}/docker.log", [("docker", "logs", "--timestamps", "--tail", "5000", f"vllm-{name}")])
    ray(kept, container, at)
    return {key: state.get(key, "") for key in ("ActiveState", "SubState", "Result", "NRestarts")}


def unit_state(kept, unit, at):
    lines = kept.said("systemctl", "show", "--no-pager", unit)
    kept.put(f"{at}/unit-state.txt", shown(lines), f"systemctl show {unit}")
    kept.commands(f"{at}/unit.txt", [("systemctl", "cat", "--no-pager", unit)])
    return dict(line.split("=", 1) for line in lines if "=" in line)


def config(kept, name, at):
    """The deployment's files, and those of the launches before. Dotfiles are cut-off writes, mounts are named only."""
    top = os.path.join(CONFIG_DIR, name)
    seen = 0
    for folder, inner, files in os.walk(top):
        inner[:] = sorted(entry for entry in inner if entry[0] != "." and entry != "mounts")
        for file in sorted(file for file in files if file[0] != "."):
            seen += 1
            if seen > CONFIG_FILES:
                kept.note(f"{top}: more than {CONFIG_FILES} files, the rest is left out")
                return
            source = os.path.join(folder, file)
            kept.file(f"{at}/{os.path.relpath(source, top)}", source)
    mounts = os.path.join(top, "mounts")
    if os.path.isdir(mounts):
        kept.commands(f"{at}/mounts.txt", [("ls", "-l", mounts)])


def runs(kept, unit, state, at):
    """The journal of the newest run of a unit and of the one before; how many lines the newest has."""
    # systemd itself says which runs there were, and when: an index lookup, however long the journal is.
    said = kept.said(
        *("journalctl", "--quiet", "--no-pager", "--output", "json", "--output-fields", "INVOCATION_ID"),
        *("--reverse", "--lines", "4", *(f"MESSAGE_ID={known}" for known in STARTS), f"UNIT={unit}"),
    )
    known = [state["InvocationID"]] if state.get("InvocationID") else []
    found = list(dict.fromkeys([*known, *(run_id for line in said if (run_id := invocation(line)))]))[:2]
    if not found:
        matches = (f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}")
        return kept.journal(f"{at}/journal.log", matches, JOURNAL, "whatever run, none is known")
    lines = 0
    paths = ((f"{at}/journal.log", JOURNAL, "the newest run"), (f"{at}/journal-previous.log", SHORT, "the run before"))
    for run_id, (path, bounds, title) in zip(found, paths, strict=False):
        # What the engine says, and what systemd says of it.
        told = kept.journal(path, (f"_SYSTEMD_INVOCATION_ID={run_id}", "+", f"INVOCATION_ID={run_id}"), bounds, title)
        lines = lines or told
    return lines


def invocation(line):
    """The run that a line of `journalctl --output json` is of, or nothing."""
    try:
        found = json.loads(line).get("INVOCATION_ID")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{32}", found) else ""


class Asked:
    """Docker's answers; after the first that does not come it is not asked again, since each may take its time."""

    def __init__(self, kept):
        self._kept, self._docker, self._down = kept, Docker(), False

    def get(self, path):
        """The answer, or None for what does not exist or cannot be had."""
        if self._down:
            return None
        try:
            return self._docker.get(path, missing_ok=True)
        except (DockerError, OSError, http.client.HTTPException, ValueError) as error:
            self._down = True
            self._kept.note(f"docker: {error or type(error).__name__}")
            return None


def inspected(kept, docker, name, at):
    """The container and its image, as `docker inspect` shows them; the container's, or None."""
    container = docker.get(f"/containers/vllm-{name}/json")
    if container:
        kept.put_json(f"{at}/container.json", container, f"docker inspect vllm-{name}")
    else:
        kept.note(f"{name}: there is no container vllm-{name}; it is removed when it ends")
    image = container["Image"] if container else image_of(kept.files.get(f"{at}/deployed.json", ""))
    found = docker.get(f"/images/{image}/json") if image else None
    if found:
        kept.put_json(f"{at}/image.json", found, f"docker image inspect {image}")
    return container


def image_of(record):
    """The image that deployed.json names, as Docker knows it."""
    try:
        deployed = json.loads(record)
        derived = deployed.get("derived") or {}
        return derived.get("image") or f"{deployed['image'].rpartition(':')[0]}@{deployed['digest']}"
    except (ValueError, KeyError, AttributeError, TypeError):
        return ""


def ray(kept, container, at):
    """Ray's own logs, which lie in the container and go with it. Read through the container's first process: that
    starts nothing there and asks nobody."""
    pid = container and container["State"].get("Pid")
    if not pid:
        return
    top = os.path.join(PROC, str(pid), "root", "tmp", "ray")
    try:
        # The link is absolute, so it would lead to the box's own /tmp.
        session = os.path.basename(os.readlink(os.path.join(top, "session_latest")))
        logs = os.path.join(top, session, "logs")
        if any(os.path.islink(part) for part in (os.path.join(top, session), logs)):
            raise OSError(40, "a link, which may lead out of the container", logs)
        found = [entry for entry in os.scandir(logs) if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)]
    except FileNotFoundError:
        return  # it runs without Ray
    except OSError as error:
        kept.note(f"{at}: Ray's logs: {error.strerror}")
        return
    newest = sorted((entry for entry in found if entry.stat().st_size), key=lambda entry: -entry.stat().st_mtime)
    newest.sort(key=lambda entry: not entry.name.startswith(RAY_FIRST))
    for entry in newest[:RAY_FILES]:
        kept.file(f"{at}/ray/{entry.name.removesuffix('.log')}.log", entry.path, RAY_FILE, follow=False)
    if len(newest) > RAY_FILES:
        kept.note(f"{at}: {len(newest) - RAY_FILES} of Ray's logs are left out, the oldest")


def box(kept, docker):
    """What is not of one deployment."""
    if not kept.journal("box/kernel.log", ("--dmesg", "--boot", "0"), SHORT, "the kernel, this boot"):
        kept.commands("box/kernel.log", [("dmesg", "--time-format", "iso")], SHORT)
    kept.journal("box/kernel-previous.log", ("--dmesg", "--boot", "-1"), SHORT, "the kernel, the boot before")
    for path, asked in COMMANDS.items():
        kept.commands(path, asked)
    kept.journal("box/docker.log", ("--boot", "0", "_SYSTEMD_UNIT=docker.service"), SHORT, "the Docker engine")
    kept.put_json("box/facts.json", facts(kept), "as spark_facts reads them")
    answers = {path: docker.get(path) for path in ("/version", "/info", "/containers/json?all=1", "/images/json")}
    if any(answers.values()):
        kept.put_json("box/docker.json", answers, "the Docker engine's API")


def facts(kept):
    """What spark_facts tells of a box, but for what stands in other files as it was said."""
    found = {"hostname": platform.node(), "machine": platform.machine(), "kernel": platform.release()}
    for name, read in (("memory", memory), ("host", host), ("fabric", fabric)):
        try:
            found[name] = read()
        except (OSError, ValueError, KeyError) as error:
            kept.note(f"facts, {name}: {type(error).__name__}: {error}")
    return found


def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    kept = Collection()
    docker = Asked(kept)
    kept.deployments = {name: deployment(kept, docker, name) for name in names(kept)}
    box(kept, docker)
    module.exit_json(changed=False, collected=kept.packed())


if __name__ == "__main__":
    main()
