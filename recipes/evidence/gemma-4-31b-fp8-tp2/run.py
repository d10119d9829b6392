#!/usr/bin/env python3
"""Start the pair of a command.json on ONE machine with two GPUs and keep what it said: run.py [FOLDER] --out DIRECTORY

Each rank gets a network namespace (fab0, one end of a veth pair), its own processes, hostname, /tmp and /dev/shm, and
one GPU, so the engine sees two hosts. The model is Gemma 4 31B's geometry without weights. Needs root and
vllm, ray, pyroute2, tokenizers on PATH and PYTHONPATH; no network. Exits 0 if the pair answered.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetNS, netns

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "sandbox/engine"))

from tiny_gemma4 import machine  # noqa: E402
from tiny_gemma4.script import END, SPECIAL  # noqa: E402
from tiny_gemma4.shape import configuration  # noqa: E402
from tiny_gemma4.template import TEMPLATE  # noqa: E402
from tiny_gemma4.vocabulary import make_tokenizer  # noqa: E402

MODEL = "/tmp/gemma-4-31b"  # noqa: S108 - each rank mounts its own /tmp
GEOMETRY = {
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 60,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "enable_moe_block": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
}
VOCABULARY = 262144
# The longest silence of a start that goes well is torch.compile's, about 45 s here.
SILENCE_S = 100
# Mounts in the rank's own mount namespace; /tmp stays readable for the one who looks for Ray's logs afterwards.
ENTER = (
    'mount --bind "$LAB/tmp" /tmp && mount -t tmpfs -o size=8g tmpfs /dev/shm && hostname "$LAB_NAME"'
    " && unset LAB LAB_NAME && export HOME=/tmp/home && mkdir $HOME"
)


def make_model(folder: Path) -> None:
    """A configuration and a tokenizer. Ids that the small tokenizer does not know are filler words, so that the random
    tokens of a model without weights are seen as text."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, _ = make_tokenizer(machine.build())
    state = json.loads(tokenizer.to_str())
    known: dict[str, int] = state["model"]["vocab"]
    known.update({f"Ġw{number}": number for number in range(len(known), VOCABULARY)})
    special = {token: known[token] for token in SPECIAL}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": END,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(configuration(special, VOCABULARY) | GEOMETRY))


@contextmanager
def fabric(hosts: list[dict[str, str]]) -> Iterator[None]:
    """A network namespace for each host, and a cable between the two."""
    names = [host["name"] for host in hosts]
    try:
        for name in names:
            netns.create(name)
        with IPRoute() as links:
            links.link("add", ifname="cable1", kind="veth", peer="cable2", mtu=9000)
            for end, name in zip(("cable1", "cable2"), names, strict=True):
                links.link("set", index=links.link_lookup(ifname=end)[0], net_ns_fd=name)
        for end, host in zip(("cable1", "cable2"), hosts, strict=True):
            with NetNS(host["name"]) as inside:
                index = inside.link_lookup(ifname=end)[0]
                inside.link("set", index=index, ifname="fab0")
                inside.addr("add", index=index, address=host["address"], prefixlen=24)
                inside.link("set", index=index, mtu=9000, state="up")
                inside.link("set", index=inside.link_lookup(ifname="lo")[0], state="up")
        yield
    finally:
        for name in names:
            if name in netns.listnetns():
                netns.remove(name)


class Rank:
    """One host: what is run there, and its processes."""

    def __init__(self, number: int, plan: Mapping[str, Any], without: list[str]) -> None:
        self.host = plan["hosts"][number]
        values = {**self.host, "head": plan["hosts"][0]["address"], "model": MODEL}

        def filled(text: str) -> str:
            # No str.format: the engine takes JSON as an argument.
            return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)

        rank, lab = plan["ranks"][number], plan["lab"]
        env = {name: value for name, value in {**plan["env"], **rank["env"]}.items() if name not in without}
        self.env = {name: filled(value) for name, value in env.items()}
        self.lab_env = {name: filled(value) for name, value in lab["env"].items()}
        self.commands = [[filled(word) for word in command] for command in rank["commands"]]
        self.lab_args = [filled(word) for word in lab["args"]] if self.commands[-1][0] == "vllm" else []

    @property
    def script(self) -> str:
        *first, last = [shlex.join(command) for command in self.commands]
        return " && ".join([*first, f"exec {last} {shlex.join(self.lab_args)}".strip()])

    def describe(self) -> str:
        env = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        lab = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.lab_env.items())]
        extra = [f"# and the arguments {shlex.join(self.lab_args)}"] if self.lab_args else []
        name = self.host["name"]
        return "\n".join(
            [f"# {name}: environment", *env, "# only in the lab", *lab, *extra, "# command", self.script, ""]
        )

    def start(self, work: Path, log: Path, secret: Mapping[str, str]) -> None:
        mine = work / self.host["name"]
        shutil.copytree(work / "model", f"{mine}{MODEL}")  # MODEL lies in /tmp, which is the host's own
        isolate = ["unshare", "-m", "-u", "-p", "-f", "--mount-proc", "--kill-child"]
        words = ["nsenter", f"--net=/var/run/netns/{self.host['name']}", *isolate]
        outer = {"LAB": str(mine), "LAB_NAME": self.host["name"], "PYTHONUNBUFFERED": "1"}
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 - the words of command.json
                [*words, "sh", "-c", f"{ENTER} && {self.script}"],
                env={**os.environ, **outer, **self.lab_env, **self.env, **secret},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, patience_s: float) -> float | None:
        """Ask the rank's first process to end, as `docker stop` does: the seconds it took, None if it was killed."""
        started, pid = time.monotonic(), self.process.pid
        try:
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            self.process.wait(patience_s)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()  # --kill-child takes the whole process namespace with it
            self.process.wait()
            return None
        return round(time.monotonic() - started, 1)

    def ports(self) -> list[str]:
        """Every listening TCP port of this host: address, port, process."""
        found = []
        for table in ("tcp", "tcp6") if self.process.poll() is None else ():
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, port = fields[1].split(":")
                if fields[3] == "0A":
                    found.append((int(port, 16), readable(address), owner(fields[9])))
        return [f"{self.host['name']}\t{port}\t{address}\t{process}" for port, address, process in sorted(found)]


def readable(address: str) -> str:
    """10.77.0.1 of the kernel's 01004D0A; an IPv4 address in IPv6 likewise."""
    if set(address) == {"0"}:
        return "*"
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:])))


def owner(inode: str) -> str:
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) != f"socket:[{inode}]":
                continue
            words = (link.parents[1] / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        scripts = [word for word in words if word.endswith(".py")]
        return Path(scripts[0] if "python" in words[0] and scripts else words[0]).name
    return "?"


def ask(path: str, body: Mapping[str, Any], timeout_s: float = 60) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:8000{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - a constant http address
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return {
        "request": {"path": path, **body},
        "status": status,
        "seconds": round(time.monotonic() - started, 2),
        "body": json.loads(text) if text.startswith(b"{") else text.decode(errors="replace"),
    }


def wait(ranks: list[Rank], deadline: float, started: float) -> bool:
    """True once a completion was answered; False if a rank ended or time is up."""
    told, size, grown = started, 0, started
    while time.monotonic() < deadline:
        if (now := ranks[0].log.stat().st_size) > size:
            size, grown = now, time.monotonic()
        if time.monotonic() > grown + SILENCE_S:
            print(f"no word for {SILENCE_S} s")
            return False
        if any(rank.process.poll() is not None for rank in ranks):
            print(f"ended: {[(rank.host['name'], rank.process.poll()) for rank in ranks]}")
            return False
        try:
            answer = ask("/v1/completions", {"model": "gemma-4-31b", "prompt": "Hello", "max_tokens": 1})
            if answer["status"] != HTTPStatus.OK:
                print(f"refused: {answer}")
            return bool(answer["status"] == HTTPStatus.OK)
        except OSError:
            time.sleep(1)
        if time.monotonic() > told + 15:
            told = time.monotonic()
            last = ranks[0].log.read_text(errors="replace").strip().rpartition("\n")[2]
            print(f"{told - started:4.0f} s  {last[:160]}", flush=True)
    print("deadline")
    return False


def wait_for_port(port: int, head: Rank, deadline: float) -> None:
    """Until the head listens, so that the worker's first try finds it."""
    while time.monotonic() < deadline and head.process.poll() is None:
        if any(f"\t{port}\t" in line for line in head.ports()):
            return
        time.sleep(0.5)


def cleaned(text: str, work: Path) -> str:
    """The log without colours and without the places of this machine."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).replace("\r", "\n").replace(str(work), "/lab")
    for place in os.environ.get("PYTHONPATH", "").split(":"):
        text = text.replace(place, "site-packages") if place else text
    return re.sub(r"(?:/[\w.+-]+)+/(?:site|dist)-packages", "site-packages", text)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", nargs="?", type=Path, default=HERE, help="where command.json is")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True, help="for the model and the hosts' /tmp; stays")
    options.add_argument("--deadline", type=float, default=420, help="seconds until ready")
    options.add_argument("--without", action="append", default=[], metavar="NAME", help="leave this variable out")
    chosen = options.parse_args()
    plan = json.loads((chosen.folder / "command.json").read_text())
    ranks = [Rank(number, plan, chosen.without) for number in range(len(plan["hosts"]))]
    secret = {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if "RAY_AUTH_MODE" in plan["env"] else {}
    work, out = chosen.work / secrets.token_hex(4), chosen.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text("\n".join(rank.describe() for rank in ranks))
    make_model(work / "model")
    result: dict[str, Any] = {"ready_s": None}
    with fabric(plan["hosts"]):
        started = time.monotonic()
        deadline = started + chosen.deadline
        running: list[Rank] = []
        try:
            for rank in ranks:
                if running and plan.get("worker_waits_for_port"):
                    wait_for_port(plan["worker_waits_for_port"], running[0], deadline)
                rank.start(work, work / f"{rank.host['name']}.log", secret)
                running.append(rank)
            netns.setns(plan["hosts"][0]["name"])  # from here on this process asks as one on the head
            if wait(running, deadline, started):
                result["ready_s"] = round(time.monotonic() - started, 1)
                print(f"ready after {result['ready_s']} s")
                common = {"model": "gemma-4-31b", "max_tokens": 16, "temperature": 0}
                question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
                result["answers"] = [
                    ask("/v1/completions", {**common, "prompt": "The fabric between two Sparks", "ignore_eos": True}),
                    ask("/v1/chat/completions", {**common, **question}),
                ]
        finally:
            (out / "ports.txt").write_text("".join(f"{line}\n" for rank in running for line in rank.ports()))
            result["stopped_s"] = {rank.host["name"]: rank.stop(patience_s=30) for rank in running}
            for rank, name in zip(running, ("engine.log", "worker.log"), strict=False):
                text = rank.log.read_text(errors="replace")
                for value in secret.values():
                    text = text.replace(value, "<token>")
                (out / name).write_text(cleaned(text, work))
            (out / "answer.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "answers"}))
    return 0 if result["ready_s"] and all(answer["status"] == HTTPStatus.OK for answer in result["answers"]) else 1


if __name__ == "__main__":
    sys.exit(main())
