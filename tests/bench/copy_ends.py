"""What the bench of copies runs on the two ends: makes a tree, measures the floor, runs rsync. The standard library
and the programs of a pull, beside which it is placed.

    copy_ends.py COMMAND JSON       prints one JSON object
    copy_ends.py take               the taker of a pull, its sums taken out
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from vllm_spark.node.pull import range_copy

BLOCK = 1 << 20
FILES = 8
STREAMS = 8
FOLDER, COMMIT = "models--bench--copy", "be" * 20


def tree(asked: dict[str, Any]) -> dict[str, Any]:
    """A model of `size` bytes in FILES shards that no compression makes smaller, with its manifest."""
    root = Path(asked["hub"]) / FOLDER
    shutil.rmtree(asked["hub"], ignore_errors=True)
    (root / "blobs").mkdir(parents=True)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / ".vllm-spark").mkdir()
    entries = []
    for number in range(FILES):
        path, digest, left = root / "blobs" / "new", hashlib.sha256(), asked["size"] // FILES
        with path.open("wb") as file:
            while left:
                block = os.urandom(min(BLOCK, left))
                digest.update(block)
                file.write(block)
                left -= len(block)
        blob = root / "blobs" / digest.hexdigest()
        path.rename(blob)
        name = f"model-{number}.safetensors"
        (root / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/{blob.name}")
        entries.append({"path": name, "size": blob.stat().st_size, "sha256": blob.name, "blob": blob.name})
    manifest = {"repository": "bench/copy", "commit": COMMIT, "files": entries}
    (root / ".vllm-spark" / f"{COMMIT}.json").write_text(json.dumps(manifest))
    os.sync()
    return {"bytes": sum(entry["size"] for entry in entries)}


def drop(_: dict[str, Any]) -> dict[str, Any]:
    """Have the next read come from the disk, where this kernel lets us."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return {"dropped": False}
    return {"dropped": True}


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds to read all blobs, STREAMS at a time."""
    files = [file for file in (Path(asked["hub"]) / FOLDER / "blobs").iterdir() if file.is_file()]

    def all_of(file: Path) -> None:
        block = bytearray(BLOCK)
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass

    return timed([(all_of, file) for file in files])


def write(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds to write as many bytes, STREAMS at a time, until they are on the disk."""
    folder = Path(asked["hub"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    block = os.urandom(BLOCK)

    def one(number: int) -> None:
        with (folder / str(number)).open("wb", buffering=0) as file:
            for _ in range(asked["size"] // STREAMS // BLOCK):
                file.write(block)
            os.fsync(file.fileno())

    found = timed([(one, number) for number in range(STREAMS)])
    shutil.rmtree(folder)
    return found


def sink(asked: dict[str, Any]) -> dict[str, Any]:
    """Take bytes from STREAMS connections and forget them. Says when it listens on stderr."""
    block = bytearray(BLOCK)

    def one(connection: socket.socket) -> None:
        while connection.recv_into(block):
            pass

    with socket.create_server((asked["address"], asked["port"]), backlog=STREAMS) as listener:
        print("listening", file=sys.stderr, flush=True)
        connections = [listener.accept()[0] for _ in range(STREAMS)]
        return timed([(one, connection) for connection in connections])


def source(asked: dict[str, Any]) -> dict[str, Any]:
    """Send `size` bytes over STREAMS connections: what the wire and the kernel give."""
    block = os.urandom(BLOCK)

    def one(_: int) -> None:
        with socket.create_connection((asked["address"], asked["port"])) as connection:
            for _ in range(asked["size"] // STREAMS // BLOCK):
                connection.sendall(block)

    return timed([(one, number) for number in range(STREAMS)])


def sha256(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds to hash `size` bytes of memory on every core: what proving costs where nothing else does."""
    block, cores = os.urandom(BLOCK), os.cpu_count() or 1

    def one(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(asked["size"] // cores // BLOCK):
            digest.update(block)

    return timed([(one, number) for number in range(cores)])


def rsync(asked: dict[str, Any]) -> dict[str, Any]:
    """One stream of rsync, without encryption, from a daemon on the giver."""
    shutil.rmtree(asked["hub"], ignore_errors=True)
    Path(asked["hub"]).mkdir(parents=True)
    begun = time.monotonic()
    words = ["rsync", "-a", "--whole-file", f"rsync://{asked['address']}:{asked['port']}/hub/", f"{asked['hub']}/"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip()}
    os.sync()
    return {"seconds": time.monotonic() - begun}


def take() -> int:
    """The taker of a pull as it is placed beside this program, but that it reads nothing again and believes all."""
    finish = range_copy.PartialFile.finish

    def believe(part: range_copy.PartialFile, stamps: range_copy.Stamps) -> bool:
        part.digest = SimpleNamespace(hexdigest=lambda: part.entry.sha256)
        return finish(part, stamps)

    range_copy.PartialFile.finish = believe  # type: ignore[method-assign]
    range_copy.PartialFile._sum = lambda *_: None  # type: ignore[method-assign]
    return range_copy.main()


def clear(asked: dict[str, Any]) -> dict[str, Any]:
    shutil.rmtree(asked["hub"], ignore_errors=True)
    return {}


def timed(work: list[Any]) -> dict[str, Any]:
    begun = time.monotonic()
    threads = [Thread(target=act, args=(one,)) for act, one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.monotonic() - begun}


COMMANDS = {
    "tree": tree,
    "drop": drop,
    "read": read,
    "write": write,
    "sink": sink,
    "source": source,
    "rsync": rsync,
    "sha256": sha256,
    "clear": clear,
}

if __name__ == "__main__":
    if sys.argv[1] == "take":
        sys.exit(take())
    print(json.dumps(COMMANDS[sys.argv[1]](json.loads(sys.argv[2]))))
