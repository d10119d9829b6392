"""The real program that starts models for requests, with a scripted vllm-switch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from fakes.root_socket import PROGRAM, RootSocket
from fakes.running_edge import HASH, RunningEdge
from vllm_spark.edge import persons, switch_request
from vllm_spark.node import host_layout
from vllm_spark.node.edge_key import KeyEntry
from waiting import LIMIT_S, until

BOB = "sk-of-bob"
# It writes its target, waits for the file with the end of this run, says its second part and ends with its first. It
# also ends with its test, because the program that starts it leaves it running.
SCRIPT = """#!/bin/sh
echo "$1" >> {folder}/calls
while [ ! -e {folder}/end-"$1" ]; do [ ! -e {folder}/closed ] || exit 1; sleep 0.02; done
read -r status said < {folder}/end-"$1"
rm {folder}/end-"$1"
echo "$said"
exit "$status"
"""


def allow(edge: RunningEdge, *, ada: bool = True) -> None:
    """Give ada the right to start models, or take it, and give bob a key without it."""
    keys = {HASH: str(KeyEntry("ada", may_switch=ada)), persons.key_hash(BOB): "bob"}
    spark_edge.write_keys(keys, edge.files.keys)
    assert spark_edge.apply_keys(keys, edge.files.keys, edge.files.admin_socket)


class RunningSwitch:
    """The program of an edge, whose deployments have all been placed unless a test removes one.

    `more` replaces entries of the plan's list."""

    def __init__(self, edge: RunningEdge, **more: Any) -> None:
        self.folder = edge.folder / "switch"
        self.folder.mkdir()
        self.socket = Path(edge.files.switch_socket)
        texts = {file.path: file.content for file in switch_request.files(edge.planned)}
        document: Mapping[str, Any] = {**json.loads(texts[host_layout.EDGE_SWITCH_LIST]), **more}
        (self.folder / "list.json").write_text(json.dumps(document))
        for name in document["deployments"]:
            (self.folder / name).mkdir()
            (self.folder / name / "launch").touch()
        script = self.folder / "vllm-switch"
        script.write_text(SCRIPT.format(folder=self.folder))
        script.chmod(0o755)
        self.lock = self.folder / "operator.lock"
        self.journal = self.folder / "journal"
        listed = ["--list", str(self.folder / "list.json")]
        self.root = RootSocket(self.folder / "root.sock", [*listed, "--switch", str(script)])
        places = {"lock": "operator.lock", "config": "", "states": "states.map", "root-socket": "root.sock"}
        options = [word for name, file in places.items() for word in (f"--{name}", str(self.folder / file))]
        command = [*PROGRAM, "--socket", str(self.socket), *listed, *options]
        with self.journal.open("w") as journal:
            self.process = subprocess.Popen(command, stdout=journal, stderr=journal)
        until(lambda: self.socket.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.journal.read_text()

    def calls(self) -> list[str]:
        """Return the targets that vllm-switch was started with."""
        file = self.folder / "calls"
        return file.read_text().split() if file.exists() else []

    def wait_for_call(self, count: int) -> str:
        """Wait for a run of vllm-switch, and return its target."""
        until(lambda: len(self.calls()) >= count)
        return self.calls()[count - 1]

    def end(self, target: str, status: int = 0, said: str = "done") -> None:
        """Let vllm-switch end, and wait until the program has noted it."""
        ended = self.journal.read_text().count(f"{target} was ")
        # As one step: the script reads what is there.
        (self.folder / "new").write_text(f"{status} {said}\n")
        (self.folder / "new").rename(self.folder / f"end-{target}")
        until(lambda: self.journal.read_text().count(f"{target} was ") > ended)

    def memory_kib(self) -> int:
        """Return the resident memory of the program."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.root.close()
        (self.folder / "closed").touch()
