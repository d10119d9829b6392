"""Copy speed from Spark to Spark: the toolkit against one rsync stream and against the floor, in one run.

The floor is the slowest of three limits of any copy: reading the tree on the sender, writing as many bytes on the
receiver, and sending them over the fabric without storing them (the measurement of iperf3, with sockets, because a
Spark has no iperf3). Runs between the sandbox's two Sparks (`make bench-copy` starts them), or with --here between two
folders of this machine, whose page cache is not dropped. Prints speeds and ratios. It has no limits and cannot fail.

Then it copies an image of ten layers, and the same image with one changed layer, through the two blob caches of a pull.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from copy_ends import COMMIT, FOLDER

from vllm_spark.core import paths
from vllm_spark.node.pull.blob_registry import BlobCache, Server, Upstream
from vllm_spark.transfer import plan

ENDS = Path(__file__).with_name("copy_ends.py")
INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
GIGA = 1e9
PORT, RSYNC_PORT, WIRE_PORT = 25091, 25096, 25097
LAYERS = 10
# The program of a pull, and the same without checksums, which shows the cost of the transfer alone.
PROVEN, UNPROVEN = "-m vllm_spark.node.pull.range_copy", "copy_ends.py"
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

    def popen(self, script: str, **more: Any) -> subprocess.Popen[str]:
        command = [*self.prefix, script] if self.prefix else ["sh", "-c", script]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **more)

    def shell(self, script: str, text: str = "") -> str:
        with self.popen(script, stdin=subprocess.PIPE) as running:
            output, _ = running.communicate(text)
        if running.returncode:
            raise SystemExit(f"{script[:200]}: status {running.returncode}\n{output}")
        return output

    def ask(self, command: str, **request: Any) -> dict[str, Any]:
        return json.loads(self.shell(self.command_line(command, request)))

    def command_line(self, command: str, request: Mapping[str, Any]) -> str:
        return f"python3 {self.folder}/copy_ends.py {command} {shlex.quote(json.dumps(request))}"

    def place(self) -> None:
        """Copy the programs of a pull and the program of this bench to the host."""
        files = {**plan.programs(), "copy_ends.py": ENDS.read_text(encoding="utf-8")}
        writer = (
            "import json, pathlib, sys\n"
            "for path, text in json.load(sys.stdin).items():\n"
            "    file = pathlib.Path(sys.argv[1], path); file.parent.mkdir(parents=True, exist_ok=True)\n"
            "    file.write_text(text)\n"
        )
        self.shell(f"python3 -c {shlex.quote(writer)} {self.folder}", json.dumps(files))

    def job(self, command: str, request: Mapping[str, Any], program: str = PROVEN) -> subprocess.Popen[str]:
        """Start a program of a pull in the way of the module."""
        jobs = f"{self.folder}/jobs"
        request = shlex.quote(json.dumps(request))
        return self.popen(
            f"mkdir -p {jobs} && printf %s {request} >{jobs}/{command}.request && cd {self.folder} && "
            f"echo $$ >{jobs}/{command}.pid && "
            f"VLLM_SPARK_JOBS={jobs} PYTHONPATH={self.folder} exec python3 {program} {command}"
        )

    def result(self, command: str) -> dict[str, Any]:
        return json.loads(self.shell(f"cat {self.folder}/jobs/{command}.result"))


@contextmanager
def ends(here: bool) -> Iterator[tuple[End, End]]:
    """Yield the sender and the receiver."""
    if here:
        with tempfile.TemporaryDirectory() as folder:
            yield End((), f"{folder}/sender", "127.0.0.1"), End((), f"{folder}/receiver", "127.0.0.1")
        return
    hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))["sparks"]["hosts"]
    ssh = ("ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519"))
    known = ("-o", f"UserKnownHostsFile={STATE / 'known_hosts'}")
    spark_ends = [
        End(
            (*ssh, *known, f"spark@{host['ansible_host']}", "sudo", "sh", "-c"),
            "/var/lib/vllm-spark-bench",
            host["sandbox_spark_fabric_address"],
        )
        for host in hosts.values()
    ]
    quoted = [Quoted(end.prefix, end.folder, end.address) for end in spark_ends]
    try:
        yield quoted[0], quoted[1]
    finally:
        for end in quoted:
            end.shell(f"rm -rf {end.folder}")


class Quoted(End):
    """An end over ssh, whose remote shell splits the command once more."""

    def popen(self, script: str, **more: Any) -> subprocess.Popen[str]:
        return End.popen(self, shlex.quote(script), **more)


def ours(sender: End, receiver: End, cold: bool) -> tuple[float, float, float, int]:
    """Return the seconds of a copy without checksums, a first copy and a second copy, and the bytes of the second."""
    request = {
        "address": sender.address,
        "port": PORT,
        "token": "bench",
        "sources": [{"folder": FOLDER, "commit": COMMIT}],
    }
    with sender.job("serve", {**request, "hub": sender.hub}) as serving:
        seconds = []
        for clear, program in ((True, UNPROVEN), (True, PROVEN), (False, PROVEN)):
            if clear:
                receiver.ask("clear", hub=receiver.hub)
                if cold:
                    sender.ask("drop")
            started = time.monotonic()
            if receiver.job("take", {**request, "hub": receiver.hub}, program).wait():
                raise SystemExit(f"the copy failed: {receiver.result('take')}")
            seconds.append(time.monotonic() - started)
        moved = receiver.result("take")["moved"]
        end_serving(sender, serving)
    return seconds[0], seconds[1], seconds[2], moved


def end_serving(sender: End, serving: subprocess.Popen[str]) -> None:
    """Stop the sender by its process id, because a signal to ssh does not reach the remote process."""
    sender.shell(f"kill $(cat {sender.folder}/jobs/serve.pid)")
    serving.wait()


def wire(sender: End, receiver: End, size: int) -> float:
    request = {"address": receiver.address, "port": WIRE_PORT, "size": size}
    with receiver.popen(receiver.command_line("sink", request), stderr=subprocess.PIPE) as sink:
        assert sink.stderr is not None
        sink.stderr.readline()
        sender.ask("source", **request)
        output, _ = sink.communicate()
    return float(json.loads(output)["seconds"])


def one_rsync(sender: End, receiver: End) -> float | None:
    """Return the seconds of one stream, or None if rsync is not installed."""
    # `shell` raises on a non-zero status, and a missing rsync is not an error.
    if not sender.shell("command -v rsync || true").strip():
        return None
    conf = shlex.quote(RSYNC_CONF.format(hub=sender.hub))
    script = f"cd {sender.folder} && printf %s {conf} >rsyncd.conf && echo $$ >rsync.pid"
    daemon_argv = f"rsync --daemon --no-detach --config=rsyncd.conf --address={sender.address} --port={RSYNC_PORT}"
    with sender.popen(f"{script} && exec {daemon_argv}") as daemon:
        for _ in range(100):
            done = receiver.ask("rsync", hub=f"{receiver.folder}/rsync", address=sender.address, port=RSYNC_PORT)
            if "Connection refused" not in done.get("error", ""):
                break
            time.sleep(0.1)
        sender.shell(f"kill $(cat {sender.folder}/rsync.pid)")
        daemon.wait()
    receiver.ask("clear", hub=f"{receiver.folder}/rsync")
    if "error" in done:
        raise SystemExit(done["error"])
    return float(done["seconds"])


def layers(size: int) -> tuple[float, int, float, int]:
    """Return seconds and bytes of a whole image, then seconds and bytes of one whose last layer changed."""
    with tempfile.TemporaryDirectory() as folder:
        head, names = BlobCache(Path(folder)), []
        head.make()
        for _ in range(LAYERS + 1):
            content = os.urandom(size // LAYERS)
            names.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
            head.blob(names[-1]).write_bytes(content)
        with Server(("127.0.0.1", 0), head, "bench") as server:
            Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            results = []
            for digests in (names[:LAYERS], names[LAYERS:]):
                worker = BlobCache(Path(folder) / "worker", Upstream(url, "head", "bench"), keep=False)
                started = time.monotonic()
                moved = sum(len(piece) for name in digests for piece in worker.read("bench/image", name))
                results += [time.monotonic() - started, moved]
            server.shutdown()
    return float(results[0]), int(results[1]), float(results[2]), int(results[3])


def summary_line(name: str, size: int, seconds: float) -> str:
    return f"{name:<52} {size / GIGA / seconds:7.2f} GB/s   {seconds:7.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4096, help="size of the tree (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="between two folders of this machine")
    args = parser.parse_args()
    size = args.mib << 20
    names = ("read", "write", "wire", "sha256", "unproven", "ours", "again", "rsync")
    took: dict[str, list[float]] = {name: [] for name in names}
    with ends(args.here) as (sender, receiver):
        for end in (sender, receiver):
            end.place()
        sender.ask("tree", hub=sender.hub, size=size)
        for _ in range(args.rounds):
            cold = not args.here and sender.ask("drop")["dropped"]
            took["read"].append(sender.ask("read", hub=sender.hub)["seconds"])
            took["write"].append(receiver.ask("write", hub=f"{receiver.folder}/written", size=size)["seconds"])
            took["wire"].append(wire(sender, receiver, size))
            took["sha256"].append(receiver.ask("sha256", size=size)["seconds"])
            unproven, first, second, moved = ours(sender, receiver, cold)
            took["unproven"].append(unproven)
            took["ours"].append(first)
            took["again"].append(second)
            if cold:
                sender.ask("drop")
            stream = one_rsync(sender, receiver)
            took["rsync"] += [stream] if stream else []
    median = {name: statistics.median(seconds) for name, seconds in took.items() if seconds}
    floor = max(median[name] for name in ("read", "write", "wire"))
    where = "from the disk" if cold else "(this kernel keeps its cache)"
    print(summary_line(f"reading the tree {where}", size, median["read"]))
    print(summary_line("writing as much to the disk", size, median["write"]))
    print(summary_line("network, eight streams that are discarded", size, median["wire"]))
    print(summary_line("sha256 on all cores", size, median["sha256"]))
    print(summary_line("toolkit, with every sha256", size, median["ours"]))
    print(summary_line("toolkit, without checksums", size, median["unproven"]))
    print(f"second run: {moved} bytes in {median['again']:.2f} s (aim: 0 in about 1)")
    print(
        f"{args.rounds} rounds of {args.mib} MiB; toolkit against the floor {floor / median['ours']:.2f} (aim: 0.6), "
        f"without checksums {floor / median['unproven']:.2f}, "
        f"against the slower of floor and sha256 {max(floor, median['sha256']) / median['ours']:.2f}"
    )
    if "rsync" in median:
        print(summary_line("one rsync stream, without sha256", size, median["rsync"]))
        proven = median["rsync"] + median["sha256"]
        print(
            f"toolkit against rsync {median['rsync'] / median['ours']:.2f} (aim: 4), "
            f"without checksums {median['rsync'] / median['unproven']:.2f}, "
            f"with checksums against rsync and sha256 after it {proven / median['ours']:.2f}"
        )
    else:
        print("rsync is not installed here")
    whole_s, whole, changed_s, changed = layers(min(size, 1 << 30))
    print(summary_line(f"an image of {LAYERS} layers, through two blob caches", whole, whole_s))
    print(summary_line(f"the same with one layer changed ({changed / whole:.0%} moved)", changed, changed_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
