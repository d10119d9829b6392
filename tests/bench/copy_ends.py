"""Commands of the copy benchmark on both sides: write a tree, measure the floor, run the other tools.

It is placed beside the programs of a pull and uses only them and the standard library.

    copy_ends.py COMMAND JSON                        prints one JSON object
    copy_ends.py unverified JOB MODULE FUNCTION      runs a job of a pull that computes no sha256
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

from vllm_spark.node.pull import run
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.model_files import parse
from vllm_spark.node.pull.partial_file import PartialFile

BLOCK = 1 << 20
FILES = 8
STREAMS = 8
FOLDER, COMMIT = "models--bench--copy", "be" * 20


def tree(params: dict[str, Any]) -> dict[str, Any]:
    """Write a model of `size` bytes of random data in FILES shards, with its manifest."""
    root = Path(params["hub"]) / FOLDER
    shutil.rmtree(params["hub"], ignore_errors=True)
    (root / "blobs").mkdir(parents=True)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / ".vllm-spark").mkdir()
    entries = []
    for number in range(FILES):
        path, digest, left = root / "blobs" / "new", hashlib.sha256(), params["size"] // FILES
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
    return {"shards": [entry["blob"] for entry in entries], "manifest": parse(json.dumps(manifest)).sha256}


def drop(_: dict[str, Any]) -> dict[str, Any]:
    """Drop the page cache, if this kernel permits it."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return {"dropped": False}
    return {"dropped": True}


def read(params: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to read all blobs, STREAMS at a time."""
    files = [file for file in (Path(params["hub"]) / FOLDER / "blobs").iterdir() if file.is_file()]

    def all_of(file: Path) -> None:
        block = bytearray(BLOCK)
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass

    return timed([(all_of, file) for file in files])


def write(params: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to write `size` bytes to the disk, STREAMS at a time."""
    folder = Path(params["hub"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    block = os.urandom(BLOCK)

    def one(number: int) -> None:
        with (folder / str(number)).open("wb", buffering=0) as file:
            for _ in range(params["size"] // STREAMS // BLOCK):
                file.write(block)
            os.fsync(file.fileno())

    result = timed([(one, number) for number in range(STREAMS)])
    shutil.rmtree(folder)
    return result


def sink(params: dict[str, Any]) -> dict[str, Any]:
    """Receive and discard bytes of STREAMS connections. Prints a line to stderr when it listens."""
    block = bytearray(BLOCK)

    def one(connection: socket.socket) -> None:
        while connection.recv_into(block):
            pass

    with socket.create_server((params["address"], params["port"]), backlog=STREAMS) as listener:
        print("listening", file=sys.stderr, flush=True)
        connections = [listener.accept()[0] for _ in range(STREAMS)]
        return timed([(one, connection) for connection in connections])


def source(params: dict[str, Any]) -> dict[str, Any]:
    """Send `size` bytes over STREAMS connections: the limit of the wire and the kernel."""
    block = os.urandom(BLOCK)

    def one(_: int) -> None:
        with socket.create_connection((params["address"], params["port"])) as connection:
            for _ in range(params["size"] // STREAMS // BLOCK):
                connection.sendall(block)

    return timed([(one, number) for number in range(STREAMS)])


def sha256(params: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to hash `size` bytes of memory on every core."""
    block, cores = os.urandom(BLOCK), os.cpu_count() or 1

    def one(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(params["size"] // cores // BLOCK):
            digest.update(block)

    return timed([(one, number) for number in range(cores)])


def rsync(params: dict[str, Any]) -> dict[str, Any]:
    """Copy with unencrypted rsync from a daemon on the sender: one stream, or one for each of `shards`."""
    source_url = f"rsync://{params['address']}:{params['port']}/hub"
    blobs = f"{FOLDER}/blobs"
    (Path(params["hub"]) / blobs).mkdir(parents=True)
    files = [f"{blobs}/{name}" for name in params["shards"]] or [""]
    return finished(
        [["rsync", "-a", "--whole-file", f"{source_url}/{file}", f"{params['hub']}/{file}"] for file in files]
    )


def rclone(params: dict[str, Any]) -> dict[str, Any]:
    """Copy with rclone over plain HTTP, from `rclone serve http` on the sender: STREAMS files and parts at once."""
    url = f"http://{params['address']}:{params['port']}"
    streams = ["--transfers", str(STREAMS), "--multi-thread-streams", str(STREAMS), "--multi-thread-cutoff", "64M"]
    return finished([["rclone", "copy", "--config", "", "--http-url", url, *streams, ":http:", params["hub"]]])


def finished(commands: list[list[str]]) -> dict[str, Any]:
    """Run commands at the same time. Return their seconds until the disk has everything, or the error of one."""
    started_at = time.monotonic()
    running = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for argv in commands]
    errors = [process.communicate()[1].strip() for process in running]
    failed = [error for process, error in zip(running, errors, strict=True) if process.returncode]
    if failed:
        return {"error": failed[0]}
    os.sync()
    return {"seconds": time.monotonic() - started_at}


def verify(params: dict[str, Any]) -> dict[str, Any]:
    """Compare each blob of a copy with its name, which is its sha256, on every core. Return the seconds."""
    wrong: list[str] = []

    def one(file: Path) -> None:
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file.name:
                wrong.append(file.name)

    files = sorted((Path(params["hub"]) / FOLDER / "blobs").iterdir())
    result = timed([(one, file) for file in files])
    return {"error": f"{len(wrong)} of {len(files)} files differ"} if wrong or len(files) != FILES else result


def unverified() -> int:
    """Run a job of a pull that accepts every file without reading it."""
    finish = PartialFile.finish

    def accept(file: PartialFile, checksums: ChecksumCache) -> bool:
        file.digest = SimpleNamespace(hexdigest=lambda: file.entry.sha256)
        return finish(file, checksums)

    PartialFile.finish = accept  # type: ignore[method-assign]
    PartialFile._hash_range = lambda *_: None  # type: ignore[method-assign]
    del sys.argv[1]
    return run.main()


def clear(params: dict[str, Any]) -> dict[str, Any]:
    shutil.rmtree(params["hub"], ignore_errors=True)
    return {}


def timed(work: list[Any]) -> dict[str, Any]:
    started_at = time.monotonic()
    threads = [Thread(target=act, args=(one,)) for act, one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.monotonic() - started_at}


COMMANDS = {
    "tree": tree,
    "drop": drop,
    "read": read,
    "write": write,
    "sink": sink,
    "source": source,
    "rsync": rsync,
    "rclone": rclone,
    "verify": verify,
    "sha256": sha256,
    "clear": clear,
}

if __name__ == "__main__":
    if sys.argv[1] == "unverified":
        sys.exit(unverified())
    print(json.dumps(COMMANDS[sys.argv[1]](json.loads(sys.argv[2]))))
