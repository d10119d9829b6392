"""Serve a bundle to one Spark: its files and its images on this machine's loopback device. Another machine reaches it
through SSH.

It is a process of its own, because it must outlive the Ansible task that starts it.

    python -m vllm_spark.transfer.bundle_server FOLDER PORT  the run's secret on stdin; one line of Opened on stdout
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TypedDict

from vllm_spark.core import paths
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.blob_server import BlobServer
from vllm_spark.node.pull.model_files import Manifest, Source, source_of
from vllm_spark.transfer import bundle

# A server without a request for this long was left behind by a run that was killed. Docker may unpack an image for as
# long.
IDLE_TIMEOUT_S = 3600.0


class Opened(TypedDict):
    """The port of the server, and the manifests that it serves: FOLDER/COMMIT -> sha256."""

    port: int
    manifests: dict[str, str]


def bundled_models(folder: Path) -> dict[str, tuple[Source, Manifest]]:
    """Return every model of a bundle by its path on the server, FOLDER/COMMIT."""
    models = {}
    for ref in bundle.read_contents(folder)["models"]:
        model = source_of(str(folder / "hub"), ref)
        if manifest := model.manifest():
            models[f"{model.folder}/{model.commit}"] = (model, manifest)
    return models


def start(folder: Path, token: str, port: int = 0) -> tuple[int, Opened]:
    """Start the server on a port, by default a free one. Return its process id and what it serves. Raises OSError if it
    does not start."""
    environment = {**os.environ, "PYTHONPATH": str(paths.SOURCE)}
    running = subprocess.Popen(  # noqa: S603  a constant command
        [sys.executable, "-m", "vllm_spark.transfer.bundle_server", str(folder), str(port)],
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
    line = running.stdout.readline()
    if not line:
        raise OSError(f"the server of {folder} ended with status {running.wait()}")
    return running.pid, json.loads(line)


def stop(process: int) -> None:
    """Stop the server, if it still runs."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def main() -> int:
    """Serve until stopped, or until no proven request came for the idle timeout."""
    folder, port, token = Path(sys.argv[1]), int(sys.argv[2]), sys.stdin.read().strip()
    try:
        server = BlobServer((LOOPBACK, port), {"": BlobCache(folder / "images")}, token)
    except OSError:  # the port is taken
        return 1
    server.add(bundled_models(folder))
    with server.running():
        print(json.dumps(Opened(port=server.server_port, manifests=server.sums())), flush=True)
        server.wait(Event(), IDLE_TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
