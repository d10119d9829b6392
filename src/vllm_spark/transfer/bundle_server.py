"""Gives a bundle to one Spark: the two servers of src/vllm_spark/node on this machine's loopback device, to which ssh
leads the Spark. A process of its own, because a task of Ansible ends and this has to go on.

    python -m vllm_spark.transfer.bundle_server FOLDER  the token on stdin; {"weights": port, "shelf": port} on stdout
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from vllm_spark.core import paths
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.node.pull.blob_registry import BlobCache, Server
from vllm_spark.node.pull.hub_cache import NOTES, Manifest, Source
from vllm_spark.node.pull.range_copy import RangeServer

# A giver that nobody asks has been forgotten by a run that was killed. An image may take this long to be unpacked.
IDLE_S = 3600.0
POLL_INTERVAL_S = 1.0


def bundled_models(hub: Path) -> dict[str, tuple[Source, Manifest]]:
    """Every model of a bundle, by its path on the server."""
    found = {}
    for file in sorted(hub.glob(f"models--*/{NOTES}/*.json")):
        if file.name == "stamps.json":
            continue
        model = Source(hub, file.parent.parent.name, file.stem)
        if manifest := model.manifest():
            found[f"{model.folder}/{model.commit}"] = (model, manifest)
    return found


def start(folder: Path, token: str) -> tuple[int, dict[str, int]]:
    """(its process, its two ports). Raises OSError where it does not start."""
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT / "src")}
    running = subprocess.Popen(  # noqa: S603  our own words
        [sys.executable, "-m", "vllm_spark.transfer.bundle_server", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
    )
    assert running.stdin is not None  # noqa: S101  for the type checker
    assert running.stdout is not None  # noqa: S101  for the type checker
    running.stdin.write(token)
    running.stdin.close()
    said = running.stdout.readline()
    if not said:
        raise OSError(f"the giver of {folder} ended with status {running.wait()}")
    return running.pid, json.loads(said)


def stop(process: int) -> None:
    """End it; one that has ended is well."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def main() -> int:
    folder, token = Path(sys.argv[1]), sys.stdin.read().strip()
    giver = RangeServer((LOOPBACK, 0), token, bundled_models(folder / "hub"))
    shelf = Server((LOOPBACK, 0), BlobCache(folder / "images"), token)
    for server in (giver, shelf):
        Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
    print(json.dumps({"weights": giver.server_port, "shelf": shelf.server_port}), flush=True)
    sent, asked_at = -1, time.monotonic()
    while time.monotonic() - asked_at < IDLE_S:
        time.sleep(POLL_INTERVAL_S)
        if giver.sent + shelf.sent != sent:
            sent, asked_at = giver.sent + shelf.sent, time.monotonic()
    return 0


if __name__ == "__main__":
    sys.exit(main())
