"""Bytes per second from Spark to Spark: the copy of a pull, rsync, rclone, and the floor, all in this run.

rsync and rclone prove nothing while they copy. Each is therefore also measured with the sha256 of its files after it.

The floor is the slowest of three limits of any copy: reading the tree, writing as many bytes, and sending them over the
fabric without a disk (iperf3's measurement, made with sockets, because a Spark has no iperf3). It runs between the
sandbox's two Sparks (`make bench-copy`), or with --here between two folders of this machine, without dropping its page
cache. It prints figures and ratios, and no verdict.

Then it pulls an image of ten layers, and one of which one layer has changed, through the two blob caches of a pull, and
copies a tree to three receivers: as a pull does, and from one sender to one after the other. Both ends of these are on
this machine, on addresses of its loopback device.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from copy_ends import COMMIT, FOLDER

from vllm_spark.core import paths
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.blob_server import BlobServer
from vllm_spark.node.pull.upstream import Upstream
from vllm_spark.transfer import plan
from vllm_spark.transfer.jobs import JOBS

ENDS = Path(__file__).with_name("copy_ends.py")
INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
GIGA = 1e9
PORT, OTHER_PORT, WIRE_PORT = 25091, 25096, 25097
LAYERS = 10
READ, WRITE, WIRE = "floor: reading the tree", "floor: writing as much", "floor: the wire, eight streams"
SHA256, AGAIN = "sha256 on every core", "second run"
PROVEN, UNPROVEN = "the copy of a pull, every sha256 verified", "the same without sha256"
# The program of a pull, and the same without sha256: the cost of the transfer alone.
VERIFIED, UNVERIFIED = "-m vllm_spark.node.pull.run", "copy_ends.py unverified"
RSYNC_CONF = "use chroot = no\n[hub]\npath = {hub}\nread only = yes\nuid = 0\ngid = 0\n"


@dataclass(frozen=True, slots=True)
class End:
    """One Spark, or a folder of this machine. `prefix` is the command that runs a shell command there."""

    prefix: tuple[str, ...]
    folder: str
    address: str

    @property
    def hub(self) -> str:
        return f"{self.folder}/hub"

    def popen(self, command: str, **more: Any) -> subprocess.Popen[str]:
        argv = [*self.prefix, command] if self.prefix else ["sh", "-c", command]
        return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, **more)

    def shell(self, command: str, text: str = "") -> str:
        with self.popen(command, stdin=subprocess.PIPE) as running:
            output, _ = running.communicate(text)
        if running.returncode:
            raise SystemExit(f"{command[:200]}: status {running.returncode}\n{output}")
        return output

    def call(self, command: str, **params: Any) -> dict[str, Any]:
        return json.loads(self.shell(self.command(command, params)))

    def command(self, name: str, params: Mapping[str, Any]) -> str:
        return f"python3 {self.folder}/copy_ends.py {name} {shlex.quote(json.dumps(params))}"

    def place(self) -> None:
        """Place the programs of a pull, as on a Spark, and the commands of this benchmark."""
        files = {**plan.programs(), "copy_ends.py": ENDS.read_text(encoding="utf-8")}
        writer = (
            "import json, pathlib, sys\n"
            "for path, text in json.load(sys.stdin).items():\n"
            "    file = pathlib.Path(sys.argv[1], path); file.parent.mkdir(parents=True, exist_ok=True)\n"
            "    file.write_text(text)\n"
        )
        self.shell(f"python3 -c {shlex.quote(writer)} {self.folder}", json.dumps(files))

    def job(self, job: str, params: Mapping[str, Any], program: str = VERIFIED) -> subprocess.Popen[str]:
        """Start a job of a pull as the module starts it."""
        jobs = f"{self.folder}/jobs"
        request = shlex.quote(json.dumps(params))
        return self.popen(
            f"mkdir -p {jobs} && printf %s {request} >{jobs}/{job}.request && cd {self.folder} && "
            f"echo $$ >{jobs}/{job}.pid && "
            f"VLLM_SPARK_JOBS={jobs} PYTHONPATH={self.folder} exec python3 {program} {' '.join(JOBS[job].arguments)}"
        )

    def result(self, job: str) -> dict[str, Any]:
        return json.loads(self.shell(f"cat {self.folder}/jobs/{job}.result"))


@contextmanager
def ends(here: bool) -> Iterator[tuple[End, End]]:
    """Yield the sender and the receiver."""
    if here:
        with tempfile.TemporaryDirectory() as folder:
            yield End((), f"{folder}/sender", "127.0.0.1"), End((), f"{folder}/receiver", "127.0.0.1")
        return
    hosts = yaml.load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)["sparks"]["hosts"]
    ssh = ("ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519"))
    known = ("-o", f"UserKnownHostsFile={STATE / 'known_hosts'}")
    unquoted = [
        End(
            (*ssh, *known, f"spark@{host['ansible_host']}", "sudo", "sh", "-c"),
            "/var/lib/vllm-spark-bench",
            host["sandbox_spark_fabric_address"],
        )
        for host in hosts.values()
    ]
    quoted = [Quoted(end.prefix, end.folder, end.address) for end in unquoted]
    try:
        yield quoted[0], quoted[1]
    finally:
        for end in quoted:
            end.shell(f"rm -rf {end.folder}")


class Quoted(End):
    """An end over ssh, where the remote shell splits the command once more."""

    def popen(self, command: str, **more: Any) -> subprocess.Popen[str]:
        return End.popen(self, shlex.quote(command), **more)


def peer_request(sender: End, manifest: str) -> dict[str, Any]:
    """Return what both ends of a copy are told."""
    source = {"folder": FOLDER, "commit": COMMIT, "manifest": manifest}
    return {"address": sender.address, "port": PORT, "token": "bench", "sources": [source]}


def copy(sender: End, receiver: End, cold: bool, manifest: str) -> tuple[float, float, float, int]:
    """Return the seconds of an unverified copy, a first and a second copy, and the bytes of the second."""
    params = peer_request(sender, manifest)
    with sender.job("serve-files", {**params, "hub": sender.hub}) as serving:
        seconds = []
        for clear, program in ((True, UNVERIFIED), (True, VERIFIED), (False, VERIFIED)):
            if clear:
                receiver.call("clear", hub=receiver.hub)
                if cold:
                    sender.call("drop")
            started_at = time.monotonic()
            if receiver.job("fetch-peer", {**params, "hub": receiver.hub}, program).wait():
                raise SystemExit(f"the copy failed: {receiver.result('fetch-peer')}")
            seconds.append(time.monotonic() - started_at)
        moved = receiver.result("fetch-peer")["moved"]
        end_serving(sender, serving)
    return seconds[0], seconds[1], seconds[2], moved


def fetch(copies: Sequence[tuple[End, End]], manifest: str) -> None:
    """Copy to each receiver from its sender, all at once, as one round of a pull does."""
    serving, fetching = [], []
    for sender, receiver in copies:
        params = peer_request(sender, manifest)
        serving.append((sender, sender.job("serve-files", {**params, "hub": sender.hub})))
        fetching.append((receiver, receiver.job("fetch-peer", {**params, "hub": receiver.hub})))
    for receiver, job in fetching:
        if job.wait():
            raise SystemExit(f"the copy failed: {receiver.result('fetch-peer')}")
    for sender, job in serving:
        end_serving(sender, job)


def receivers(size: int) -> tuple[float, float]:
    """Return the seconds of copies to three receivers: in the two rounds of a pull, and from one sender in three."""
    with tempfile.TemporaryDirectory() as folder:
        first, second, third, fourth = (End((), f"{folder}/{number}", f"127.0.0.{number}") for number in (2, 3, 4, 5))
        for end in (first, second, third, fourth):
            end.place()
        manifest = str(first.call("tree", hub=first.hub, size=size)["manifest"])
        seconds = []
        for rounds in (
            [[(first, second)], [(first, third), (second, fourth)]],
            [[(first, second)], [(first, third)], [(first, fourth)]],
        ):
            for end in (second, third, fourth):
                end.call("clear", hub=end.hub)
            started_at = time.monotonic()
            for copies in rounds:
                fetch(copies, manifest)
            seconds.append(time.monotonic() - started_at)
    return seconds[0], seconds[1]


def end_serving(sender: End, serving: subprocess.Popen[str]) -> None:
    """Stop the server by its process id, because a signal to ssh does not reach it."""
    sender.shell(f"kill $(cat {sender.folder}/jobs/serve-files.pid)")
    serving.wait()


def wire(sender: End, receiver: End, size: int) -> float:
    params = {"address": receiver.address, "port": WIRE_PORT, "size": size}
    with receiver.popen(receiver.command("sink", params), stderr=subprocess.PIPE) as sink:
        assert sink.stderr is not None
        sink.stderr.readline()
        sender.call("source", **params)
        output, _ = sink.communicate()
    return float(json.loads(output)["seconds"])


@dataclass(frozen=True, slots=True)
class Tool:
    """Another way to copy the tree. `serve` runs on the sender, `client` is a command of copy_ends.py."""

    name: str
    program: str
    serve: str
    client: str
    shards: bool = False


RSYNCD = "exec rsync --daemon --no-detach --config=rsyncd.conf --address={address} --port={port}"
RCLONE = "exec rclone serve http --config '' --addr {address}:{port} --no-modtime {hub} 2>rclone.log"
TOOLS = (
    Tool("one rsync stream", "rsync", RSYNCD, "rsync"),
    Tool("an rsync stream for each shard", "rsync", RSYNCD, "rsync", shards=True),
    Tool("rclone, eight streams", "rclone", RCLONE, "rclone"),
)


def is_installed(tool: Tool, *both: End) -> bool:
    # A missing program is an answer here, and `shell` ends the benchmark if a command fails.
    return all(end.shell(f"command -v {tool.program} || true").strip() for end in both)


def other_copy(tool: Tool, sender: End, receiver: End, shards: list[str]) -> tuple[float, float]:
    """Return the seconds of a copy with another tool, and of the sha256 of its files after it."""
    hub = f"{receiver.folder}/other"
    receiver.call("clear", hub=hub)
    conf = shlex.quote(RSYNC_CONF.format(hub=sender.hub))
    serve = tool.serve.format(address=sender.address, port=OTHER_PORT, hub=sender.hub)
    prepare = f"cd {sender.folder} && printf %s {conf} >rsyncd.conf && echo $$ >other.pid"
    with sender.popen(f"{prepare} && {serve}") as daemon:
        try:
            wait_for_port(sender, receiver)
            params = {"hub": hub, "address": sender.address, "port": OTHER_PORT}
            seconds = seconds_of(receiver.call(tool.client, **params, shards=shards if tool.shards else []))
        finally:
            sender.shell(f"kill $(cat {sender.folder}/other.pid)")
            daemon.wait()
    verified = seconds_of(receiver.call("verify", hub=hub))
    receiver.call("clear", hub=hub)
    return seconds, verified


def wait_for_port(sender: End, receiver: End) -> None:
    probe = f"import socket; socket.create_connection(({sender.address!r}, {OTHER_PORT}), 1)"
    receiver.shell(f"for try in $(seq 100); do python3 -c {shlex.quote(probe)} 2>/dev/null && exit; sleep 0.1; done")


def seconds_of(reply: Mapping[str, Any]) -> float:
    if "error" in reply:
        raise SystemExit(reply["error"])
    return float(reply["seconds"])


def layers(size: int) -> tuple[float, int, float, int]:
    """Return seconds and bytes of a whole image, and of an image of which one layer changed, through two caches."""
    with tempfile.TemporaryDirectory() as folder:
        head, names = BlobCache(Path(folder)), []
        head.create()
        for _ in range(LAYERS + 1):
            content = os.urandom(size // LAYERS)
            names.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
            head.blob(names[-1]).write_bytes(content)
        with BlobServer(("127.0.0.1", 0), {"": head}, "bench") as server:
            Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            results: list[float] = []
            for digests in (names[:LAYERS], names[LAYERS:]):
                worker = BlobCache(Path(folder) / "worker", Upstream(url, "bench/image", "head", "bench"), keep=False)
                started_at = time.monotonic()
                moved = sum(len(block) for name in digests for block in worker.read(name))
                results += [time.monotonic() - started_at, moved]
            server.shutdown()
    return float(results[0]), int(results[1]), float(results[2]), int(results[3])


def format_rate(name: str, size: int, seconds: float, every: Sequence[float] = ()) -> str:
    spread = f"   {min(every):.2f} to {max(every):.2f} s" if every else ""
    return f"{name:<52} {size / GIGA / seconds:7.2f} GB/s   {seconds:7.2f} s{spread}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4096, help="size of the tree (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="between two folders of this machine")
    args = parser.parse_args()
    size = args.mib << 20
    took: dict[str, list[float]] = {}

    def add(name: str, seconds: float) -> None:
        took.setdefault(name, []).append(seconds)

    with ends(args.here) as (sender, receiver):
        for end in (sender, receiver):
            end.place()
        if not args.here:
            install_tools(sender, receiver)
        tree = sender.call("tree", hub=sender.hub, size=size)
        tools = [tool for tool in TOOLS if is_installed(tool, sender, receiver)]
        for _ in range(args.rounds):
            cold = not args.here and sender.call("drop")["dropped"]
            add(READ, sender.call("read", hub=sender.hub)["seconds"])
            add(WRITE, receiver.call("write", hub=f"{receiver.folder}/written", size=size)["seconds"])
            add(WIRE, wire(sender, receiver, size))
            add(SHA256, receiver.call("sha256", size=size)["seconds"])
            unverified, verified, again, moved = copy(sender, receiver, cold, str(tree["manifest"]))
            add(UNPROVEN, unverified)
            add(PROVEN, verified)
            add(AGAIN, again)
            for tool in tools:
                if cold:
                    sender.call("drop")
                copied, proven = other_copy(tool, sender, receiver, tree["shards"])
                add(tool.name, copied)
                add(f"{tool.name}, then sha256", copied + proven)
    median = {name: statistics.median(seconds) for name, seconds in took.items()}
    print(f"{args.rounds} rounds of {args.mib} MiB; the disk is read {'cold' if cold else 'from the page cache'}")
    for name in (name for name in median if name != AGAIN):
        print(format_rate(name, size, median[name], took[name]))
    print(f"second run: {moved} bytes in {median[AGAIN]:.2f} s")
    print_ratios(median, tools)
    for tool in (tool for tool in TOOLS if tool not in tools):
        print(f"{tool.name}: {tool.program} is not installed here")
    whole_s, whole, changed_s, changed = layers(min(size, 1 << 30))
    print(format_rate(f"an image of {LAYERS} layers, through two caches", whole, whole_s))
    print(format_rate(f"the same with one layer changed ({changed / whole:.0%} moved)", changed, changed_s))
    as_a_tree, one_by_one = receivers(min(size, 1 << 30))
    print(format_rate("three receivers as a tree, all bytes together", 3 * min(size, 1 << 30), as_a_tree))
    print(format_rate("three receivers, one after the other", 3 * min(size, 1 << 30), one_by_one))
    return 0


def install_tools(*both: End) -> None:
    """Install the other tools on the Sparks of the sandbox. One that cannot be installed is reported and left out."""
    for end in both:
        end.shell(
            "for tool in rsync rclone; do command -v $tool >/dev/null || "
            "{ apt-get -q update && apt-get -qy install $tool; } >/dev/null 2>&1 || true; done"
        )


def print_ratios(median: Mapping[str, float], tools: list[Tool]) -> None:
    """Print the speed of the copy of a pull against the floor and against the fastest of the others."""
    floor = max(median[name] for name in (READ, WRITE, WIRE))
    print(f"the copy of a pull against the floor: {floor / median[PROVEN]:.2f}")
    print(f"the same without sha256 against the floor: {floor / median[UNPROVEN]:.2f}")
    if tools:
        proven = min((f"{tool.name}, then sha256" for tool in tools), key=median.__getitem__)
        fastest = min((tool.name for tool in tools), key=median.__getitem__)
        print(f"against {proven}: {median[proven] / median[PROVEN]:.2f}")
        print(f"against {fastest}, which proves nothing: {median[fastest] / median[PROVEN]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
