"""Program of the copy bench on both hosts: creates a tree, measures the floor, runs rsync.

It needs the standard library and the programs of a pull, which are in the same folder.

    copy_ends.py COMMAND JSON       prints one JSON object
    copy_ends.py take               the receiver of a pull without checksums
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


def tree(request: dict[str, Any]) -> dict[str, Any]:
    """Create a model of `size` incompressible bytes in FILES shards, with its manifest."""
    root = Path(request["hub"]) / FOLDER
    shutil.rmtree(request["hub"], ignore_errors=True)
    (root / "blobs").mkdir(parents=True)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / ".vllm-spark").mkdir()
    entries = []
    for number in range(FILES):
        path, digest, left = root / "blobs" / "new", hashlib.sha256(), request["size"] // FILES
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
    """Drop the page cache if the kernel permits it, so that the next read is from the disk."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return {"dropped": False}
    return {"dropped": True}


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to read all blobs, STREAMS at a time."""
    files = [file for file in (Path(request["hub"]) / FOLDER / "blobs").iterdir() if file.is_file()]

    def all_of(file: Path) -> None:
        block = bytearray(BLOCK)
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass

    return timed([(all_of, file) for file in files])


def write(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to write `size` bytes to the disk, STREAMS at a time."""
    folder = Path(request["hub"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    block = os.urandom(BLOCK)

    def one(number: int) -> None:
        with (folder / str(number)).open("wb", buffering=0) as file:
            for _ in range(request["size"] // STREAMS // BLOCK):
                file.write(block)
            os.fsync(file.fileno())

    result = timed([(one, number) for number in range(STREAMS)])
    shutil.rmtree(folder)
    return result


def sink(request: dict[str, Any]) -> dict[str, Any]:
    """Receive bytes from STREAMS connections and discard them. Prints a line on stderr when it listens."""
    block = bytearray(BLOCK)

    def one(connection: socket.socket) -> None:
        while connection.recv_into(block):
            pass

    with socket.create_server((request["address"], request["port"]), backlog=STREAMS) as listener:
        print("listening", file=sys.stderr, flush=True)
        connections = [listener.accept()[0] for _ in range(STREAMS)]
        return timed([(one, connection) for connection in connections])


def source(request: dict[str, Any]) -> dict[str, Any]:
    """Send `size` bytes over STREAMS connections: the limit of network and kernel."""
    block = os.urandom(BLOCK)

    def one(_: int) -> None:
        with socket.create_connection((request["address"], request["port"])) as connection:
            for _ in range(request["size"] // STREAMS // BLOCK):
                connection.sendall(block)

    return timed([(one, number) for number in range(STREAMS)])


def sha256(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to hash `size` bytes of memory on all cores: the cost of the checksums alone."""
    block, cores = os.urandom(BLOCK), os.cpu_count() or 1

    def one(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(request["size"] // cores // BLOCK):
            digest.update(block)

    return timed([(one, number) for number in range(cores)])


def rsync(request: dict[str, Any]) -> dict[str, Any]:
    """Run one stream of rsync, without encryption, from a daemon on the sender."""
    shutil.rmtree(request["hub"], ignore_errors=True)
    Path(request["hub"]).mkdir(parents=True)
    started = time.monotonic()
    argv = ["rsync", "-a", "--whole-file", f"rsync://{request['address']}:{request['port']}/hub/", f"{request['hub']}/"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip()}
    os.sync()
    return {"seconds": time.monotonic() - started}


def take() -> int:
    """Run the receiver of a pull without reading back and without comparing checksums."""
    finish = range_copy.PartialFile.finish

    def believe(part: range_copy.PartialFile, stamps: range_copy.Stamps) -> bool:
        part.digest = SimpleNamespace(hexdigest=lambda: part.entry.sha256)
        return finish(part, stamps)

    range_copy.PartialFile.finish = believe  # type: ignore[method-assign]
    range_copy.PartialFile._sum = lambda *_: None  # type: ignore[method-assign]
    return range_copy.main()


def clear(request: dict[str, Any]) -> dict[str, Any]:
    shutil.rmtree(request["hub"], ignore_errors=True)
    return {}


def timed(work: list[Any]) -> dict[str, Any]:
    started = time.monotonic()
    threads = [Thread(target=act, args=(one,)) for act, one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.monotonic() - started}


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
