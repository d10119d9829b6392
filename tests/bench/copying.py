"""Bytes per second from Spark to Spark: ours against one rsync stream and against the floor, all in this run.

The floor is the slowest of three that no copy can be faster than: reading the tree where it is, writing as many bytes
where they go, and sending them over the fabric to nowhere (iperf3's question, asked with sockets, because a Spark has
no iperf3). Between the sandbox's two Sparks (`make bench-copy` sees to it), or with --here between two folders of this
machine, whose cache is left alone. Prints figures and ratios; judges nothing.

Then an image of ten layers of which one has changed, through the two shelves that a pull uses: what is moved, how fast.
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
# The program of a pull, and the same with its sum taken out: what the way alone costs.
PROVEN, UNPROVEN = "-m vllm_spark.node.pull.range_copy", "copy_ends.py"
RSYNC_CONF = "use chroot = no\n[hub]\npath = {hub}\nread only = yes\nuid = 0\ngid = 0\n"


@dataclass(frozen=True, slots=True)
class End:
    """One Spark, or a folder of this machine. `prefix` is the command that runs a shell's words there."""

    prefix: tuple[str, ...]
    folder: str
    address: str

    @property
    def hub(self) -> str:
        return f"{self.folder}/hub"

    def popen(self, words: str, **more: Any) -> subprocess.Popen[str]:
        command = [*self.prefix, words] if self.prefix else ["sh", "-c", words]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **more)

    def shell(self, words: str, text: str = "") -> str:
        with self.popen(words, stdin=subprocess.PIPE) as running:
            said, _ = running.communicate(text)
        if running.returncode:
            raise SystemExit(f"{words[:200]}: status {running.returncode}\n{said}")
        return said

    def ask(self, command: str, **asked: Any) -> dict[str, Any]:
        return json.loads(self.shell(self.words(command, asked)))

    def words(self, command: str, asked: Mapping[str, Any]) -> str:
        return f"python3 {self.folder}/copy_ends.py {command} {shlex.quote(json.dumps(asked))}"

    def place(self) -> None:
        """The programs of a pull, as a Spark has them, and this bench's own."""
        files = {**plan.programs(), "copy_ends.py": ENDS.read_text(encoding="utf-8")}
        writer = (
            "import json, pathlib, sys\n"
            "for path, text in json.load(sys.stdin).items():\n"
            "    file = pathlib.Path(sys.argv[1], path); file.parent.mkdir(parents=True, exist_ok=True)\n"
            "    file.write_text(text)\n"
        )
        self.shell(f"python3 -c {shlex.quote(writer)} {self.folder}", json.dumps(files))

    def job(self, command: str, asked: Mapping[str, Any], program: str = PROVEN) -> subprocess.Popen[str]:
        """A program of a pull, started as the module starts it."""
        jobs = f"{self.folder}/jobs"
        request = shlex.quote(json.dumps(asked))
        return self.popen(
            f"mkdir -p {jobs} && printf %s {request} >{jobs}/{command}.request && cd {self.folder} && "
            f"echo $$ >{jobs}/{command}.pid && "
            f"VLLM_SPARK_JOBS={jobs} PYTHONPATH={self.folder} exec python3 {program} {command}"
        )

    def result(self, command: str) -> dict[str, Any]:
        return json.loads(self.shell(f"cat {self.folder}/jobs/{command}.result"))


@contextmanager
def ends(here: bool) -> Iterator[tuple[End, End]]:
    """(giver, taker)."""
    if here:
        with tempfile.TemporaryDirectory() as folder:
            yield End((), f"{folder}/giver", "127.0.0.1"), End((), f"{folder}/taker", "127.0.0.1")
        return
    hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))["sparks"]["hosts"]
    ssh = ("ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519"))
    known = ("-o", f"UserKnownHostsFile={STATE / 'known_hosts'}")
    made = [
        End(
            (*ssh, *known, f"spark@{host['ansible_host']}", "sudo", "sh", "-c"),
            "/var/lib/vllm-spark-bench",
            host["sandbox_spark_fabric_address"],
        )
        for host in hosts.values()
    ]
    quoted = [Quoted(end.prefix, end.folder, end.address) for end in made]
    try:
        yield quoted[0], quoted[1]
    finally:
        for end in quoted:
            end.shell(f"rm -rf {end.folder}")


class Quoted(End):
    """Over ssh: the far shell takes the words apart once more."""

    def popen(self, words: str, **more: Any) -> subprocess.Popen[str]:
        return End.popen(self, shlex.quote(words), **more)


def ours(giver: End, taker: End, cold: bool) -> tuple[float, float, float, int]:
    """(seconds of a copy that proves nothing, of a first copy, of a second, bytes that the second moved)."""
    asked = {
        "address": giver.address,
        "port": PORT,
        "token": "bench",
        "sources": [{"folder": FOLDER, "commit": COMMIT}],
    }
    with giver.job("serve", {**asked, "hub": giver.hub}) as serving:
        seconds = []
        for clear, program in ((True, UNPROVEN), (True, PROVEN), (False, PROVEN)):
            if clear:
                taker.ask("clear", hub=taker.hub)
                if cold:
                    giver.ask("drop")
            begun = time.monotonic()
            if taker.job("take", {**asked, "hub": taker.hub}, program).wait():
                raise SystemExit(f"the copy failed: {taker.result('take')}")
            seconds.append(time.monotonic() - begun)
        moved = taker.result("take")["moved"]
        end_serving(giver, serving)
    return seconds[0], seconds[1], seconds[2], moved


def end_serving(giver: End, serving: subprocess.Popen[str]) -> None:
    """By its own process: over ssh a signal to ssh would reach nothing."""
    giver.shell(f"kill $(cat {giver.folder}/jobs/serve.pid)")
    serving.wait()


def wire(giver: End, taker: End, size: int) -> float:
    asked = {"address": taker.address, "port": WIRE_PORT, "size": size}
    with taker.popen(taker.words("sink", asked), stderr=subprocess.PIPE) as sink:
        assert sink.stderr is not None
        sink.stderr.readline()
        giver.ask("source", **asked)
        said, _ = sink.communicate()
    return float(json.loads(said)["seconds"])


def one_rsync(giver: End, taker: End) -> float | None:
    """Seconds of one stream, or None where rsync is not installed."""
    # `shell` raises on a non-zero status, and none found is an answer.
    if not giver.shell("command -v rsync || true").strip():
        return None
    conf = shlex.quote(RSYNC_CONF.format(hub=giver.hub))
    words = f"cd {giver.folder} && printf %s {conf} >rsyncd.conf && echo $$ >rsync.pid"
    daemon_words = f"rsync --daemon --no-detach --config=rsyncd.conf --address={giver.address} --port={RSYNC_PORT}"
    with giver.popen(f"{words} && exec {daemon_words}") as daemon:
        for _ in range(100):
            done = taker.ask("rsync", hub=f"{taker.folder}/rsync", address=giver.address, port=RSYNC_PORT)
            if "Connection refused" not in done.get("error", ""):
                break
            time.sleep(0.1)
        giver.shell(f"kill $(cat {giver.folder}/rsync.pid)")
        daemon.wait()
    taker.ask("clear", hub=f"{taker.folder}/rsync")
    if "error" in done:
        raise SystemExit(done["error"])
    return float(done["seconds"])


def layers(size: int) -> tuple[float, int, float, int]:
    """Through two shelves: (seconds and bytes of a whole image, seconds and bytes of one whose last layer changed)."""
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
            found = []
            for wanted in (names[:LAYERS], names[LAYERS:]):
                worker = BlobCache(Path(folder) / "worker", Upstream(url, "head", "bench"), keep=False)
                begun = time.monotonic()
                moved = sum(len(piece) for name in wanted for piece in worker.read("bench/image", name))
                found += [time.monotonic() - begun, moved]
            server.shutdown()
    return float(found[0]), int(found[1]), float(found[2]), int(found[3])


def shown(name: str, size: int, seconds: float) -> str:
    return f"{name:<52} {size / GIGA / seconds:7.2f} GB/s   {seconds:7.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4096, help="size of the tree (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="between two folders of this machine")
    given = parser.parse_args()
    size = given.mib << 20
    names = ("read", "write", "wire", "sha256", "unproven", "ours", "again", "rsync")
    took: dict[str, list[float]] = {name: [] for name in names}
    with ends(given.here) as (giver, taker):
        for end in (giver, taker):
            end.place()
        giver.ask("tree", hub=giver.hub, size=size)
        for _ in range(given.rounds):
            cold = not given.here and giver.ask("drop")["dropped"]
            took["read"].append(giver.ask("read", hub=giver.hub)["seconds"])
            took["write"].append(taker.ask("write", hub=f"{taker.folder}/written", size=size)["seconds"])
            took["wire"].append(wire(giver, taker, size))
            took["sha256"].append(taker.ask("sha256", size=size)["seconds"])
            unproven, first, second, moved = ours(giver, taker, cold)
            took["unproven"].append(unproven)
            took["ours"].append(first)
            took["again"].append(second)
            if cold:
                giver.ask("drop")
            stream = one_rsync(giver, taker)
            took["rsync"] += [stream] if stream else []
    median = {name: statistics.median(seconds) for name, seconds in took.items() if seconds}
    floor = max(median[name] for name in ("read", "write", "wire"))
    where = "from the disk" if cold else "(this kernel keeps its cache)"
    print(shown(f"reading the tree {where}", size, median["read"]))
    print(shown("writing as much, until it is on the disk", size, median["write"]))
    print(shown("the wire, eight streams to nowhere", size, median["wire"]))
    print(shown("sha256 on every core", size, median["sha256"]))
    print(shown("ours, every sha256 proven", size, median["ours"]))
    print(shown("ours, its sums taken out", size, median["unproven"]))
    print(f"second run: {moved} bytes in {median['again']:.2f} s (aim: 0 in about 1)")
    print(
        f"{given.rounds} rounds of {given.mib} MiB; ours against the floor {floor / median['ours']:.2f} (aim: 0.6), "
        f"without sums {floor / median['unproven']:.2f}, "
        f"against the slower of floor and sha256 {max(floor, median['sha256']) / median['ours']:.2f}"
    )
    if "rsync" in median:
        print(shown("one rsync stream, which proves no sha256", size, median["rsync"]))
        proven = median["rsync"] + median["sha256"]
        print(
            f"ours against it {median['rsync'] / median['ours']:.2f} (aim: 4), "
            f"without sums {median['rsync'] / median['unproven']:.2f}, "
            f"with sums against it and sha256 after it {proven / median['ours']:.2f}"
        )
    else:
        print("rsync is not installed here")
    whole_s, whole, changed_s, changed = layers(min(size, 1 << 30))
    print(shown(f"an image of {LAYERS} layers, through two shelves", whole, whole_s))
    print(shown(f"the same with one layer changed ({changed / whole:.0%} moved)", changed, changed_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
