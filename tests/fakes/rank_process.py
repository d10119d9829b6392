"""A real supervisor process of one rank, from the files that deploy installs, in a folder of its own. A script takes
the place of docker and of systemctl; the container is a process that copies its env file and sleeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from vllm_spark.deploy import files
from vllm_spark.node import host_layout

LAUNCH = "1f"
IMAGE = "engine@sha256:deadbeef"
TOOLKIT = "0.1.0 (abc)"
FAKE = """#!/bin/sh
case "$0 $1 $2" in
*systemctl*) cat "$RANK_DIR/restarts" ;;
*inspect*) echo content ;;
*" rm "*|*" stop "*) [ ! -e "$RANK_DIR/pid" ] || kill -9 "$(cat "$RANK_DIR/pid")" 2>/dev/null ;;
esac
"""
# The rename lets a test see the whole env file or none of it.
CONTAINER = (
    'echo $$ >"$RANK_DIR/pid"; cp "$RANK_DIR/run/demo/session.env" "$RANK_DIR/seen.new"; '
    'mv "$RANK_DIR/seen.new" "$RANK_DIR/seen.env"; exec sleep 600'
)


class RankProcess:
    """The supervisor of one rank. `key` None installs no key of the link."""

    def __init__(self, folder: Path, key: str | None) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self._install()
        config = folder / "etc" / "demo"
        config.mkdir(parents=True)
        (config / "deployed.json").write_text(json.dumps({"toolkit": TOOLKIT}))
        self.key_file = config / "link.key"
        if key is not None:
            self.key_file.write_text(f"{key}\n")
        self.restarted(0)
        for name in ("docker", "systemctl"):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(FAKE)
            (folder / "bin" / name).chmod(0o755)

    def _install(self) -> None:
        """Place the planned files below the folder, with the folders of this rank in place of those of a Spark."""
        for file in files.supervisor():
            place = self.folder / Path(file.path).relative_to(host_layout.PROGRAM_DIR)
            place.parent.mkdir(parents=True, exist_ok=True)
            content = file.content.replace('"/etc/vllm-spark"', repr(str(self.folder / "etc")))
            content = content.replace('"/run/vllm-spark"', repr(str(self.folder / "run")))
            content = content.replace('"/var/lib/vllm-spark/states"', repr(str(self.folder / "states")))
            # A machine that stands still for ten seconds is no lost peer here: test_supervise.py has those.
            place.write_text(content.replace("\nREAD_TIMEOUT_S = 10.0\n", "\nREAD_TIMEOUT_S = 60.0\n"))
        (link,) = self.folder.rglob("link.py")
        assert "\nREAD_TIMEOUT_S = 60.0\n" in link.read_text()

    def restarted(self, count: int) -> None:
        """Say how often systemd has restarted the unit."""
        (self.folder / "restarts").write_text(f"{count}\n")

    def kill_container(self) -> None:
        """End the container as a crash does."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def start(self, rank: int, address: str, peer: str, port: int, api: str = "") -> None:
        options = {"name": "demo", "rank": rank, "launch": LAUNCH, "image": IMAGE, "address": address}
        options |= {"peer": peer, "peer-host": "other", "port": port, "api": api}
        argv = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "RANK_DIR": str(self.folder)}
        environment.pop("PYTHONPATH", None)
        with self.output_file.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", self.folder / "supervise", *argv, "--", "sh", "-c", CONTAINER],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
            )

    @property
    def output_file(self) -> Path:
        return self.folder / "journal"

    @property
    def journal(self) -> str:
        return self.output_file.read_text(errors="replace")

    @property
    def state(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.folder / "run" / "demo" / "state.json").read_text())
        except FileNotFoundError:
            return {"state": ""}
        return document

    @property
    def container_env(self) -> str:
        """The env file that the container has received, empty before its start."""
        seen = self.folder / "seen.env"
        return seen.read_text() if seen.exists() else ""

    @property
    def status(self) -> int | None:
        """The exit status, None while the supervisor runs."""
        assert self.process
        return self.process.poll()

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
