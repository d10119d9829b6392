"""A real supervisor process of one rank, from the files that deploy installs, in a folder of its own. A script takes
the place of docker and of systemctl; the container is a process that copies its env file and sleeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_spark.deploy import files
from vllm_spark.node import host_layout
from waiting import until

LAUNCH = "1f"
IMAGE = "engine@sha256:deadbeef"
TOOLKIT = "0.1.0 (abc)"
FAKE = """#!/bin/sh
case "$0 $1 $2" in
*"systemctl is-active"*) echo active ;;
*systemctl*|*journalctl*) cat "$RANK_DIR/$1" 2>/dev/null ;;
*inspect*) [ -e "$RANK_DIR/no-image" ] || echo content ;;
*" rm "*|*" stop "*) [ ! -e "$RANK_DIR/pid" ] || kill -9 "$(cat "$RANK_DIR/pid")" 2>/dev/null ;;
esac
"""
# The rename lets a test see the whole env file or none of it.
CONTAINER = (
    'echo $$ >"$RANK_DIR/pid"; cp "$RANK_DIR/run/demo/session.env" "$RANK_DIR/seen.new"; '
    'mv "$RANK_DIR/seen.new" "$RANK_DIR/seen.env"; exec sleep 600'
)
# Module -> its time, and the one that it has here. A machine that stands still for ten seconds is no lost peer in these
# tests: test_supervise.py has those.
TIMES = {
    "link": ("\nREAD_TIMEOUT_S = 10.0\n", "\nREAD_TIMEOUT_S = 60.0\n"),
    "meeting": ("\nRETRY_S = 2.0\n", "\nRETRY_S = 0.2\n"),
    "unit_limits": ("FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0,", "FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1,"),
}


class RankProcess:
    """The supervisor of one rank. `key` None installs no key of the link."""

    def __init__(self, folder: Path, key: str | None) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.begun: tuple[Any, ...] = ()
        self.in_turn = ""  # the name of its host if the Spark is shared
        self.launch = LAUNCH
        # The container, and more words of its command.
        self.command, self.words = CONTAINER, [""]
        self._install()
        config = folder / "etc" / "demo"
        config.mkdir(parents=True)
        (config / "deployed.json").write_text(json.dumps({"toolkit": TOOLKIT}))
        self.key_file = config / "link.key"
        if key is not None:
            self.key_file.write_text(f"{key}\n")
        for name in ("docker", "systemctl", "journalctl"):
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
            for name in ("states", "starts"):
                content = content.replace(f'"/var/lib/vllm-spark/{name}"', repr(str(self.folder / name)))
            for old, new in TIMES.values():
                content = content.replace(old, new)
            place.write_text(content)
        for name, (_, new) in TIMES.items():
            (module,) = self.folder.rglob(f"{name}.py")
            assert new in module.read_text()

    def says(self, command: str, text: str) -> None:
        """Let systemctl or journalctl print a text, by the first argument of its call."""
        (self.folder / command).write_text(text)

    @property
    def count(self) -> dict[str, Any]:
        """What the rank counts."""
        record = json.loads((self.folder / "starts" / "demo.json").read_text())
        return dict(record["count"])

    @property
    def start_id(self) -> str:
        return str(json.loads((self.folder / "starts" / "demo.json").read_text())["start"]["id"])

    def kill_container(self) -> None:
        """End the container as a crash does, once its process runs."""
        until(lambda: (pid := (self.folder / "pid").read_text().strip()) and Path("/proc", pid).exists())
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def start(self, rank: int, address: str, peers: str | Mapping[str, str], port: int, api: str = "") -> None:
        """Start the supervisor. `peers` is the address of the other rank of a pair, or host -> address of each."""
        options = {"name": "demo", "rank": rank, "launch": self.launch, "image": IMAGE, "address": address}
        options |= {"port": port, "api": api}
        options |= {"in-turn": self.in_turn} if self.in_turn else {}
        self.begun = (rank, address, peers, port, api)
        argv = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        for host, peer in ({"other": peers} if isinstance(peers, str) else peers).items():
            argv += ["--peer", peer, "--peer-host", host]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "RANK_DIR": str(self.folder)}
        environment.pop("PYTHONPATH", None)
        with self.output_file.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", self.folder / "supervise", *argv, "--", "sh", "-c", self.command, *self.words],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
            )

    def again(self) -> bool:
        """Start the supervisor as before, as systemd does after its end. Returns True if it had ended."""
        ended = self.status is not None
        if ended:
            self.start(*self.begun)
        return ended

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
