"""One module of Ansible on some hosts, for a command that is no playbook."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.cli import playbook

# The callback `minimal` of `ansible` prints the result of each host.
PLAIN = {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
RESULT = re.compile(r"^(?P<host>\S+) \| \w+!? => (?=\{)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Done:
    """What Ansible has printed, and its status. It is not 0 if the module fails on one of the hosts."""

    status: int
    output: str
    errors: str

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The result of the module by host. A host of which Ansible has printed none is not in it."""
        read = json.JSONDecoder().raw_decode
        return {found["host"]: read(self.output, found.end())[0] for found in RESULT.finditer(self.output)}


def run(  # noqa: PLR0913  what Ansible needs to know
    verb: str,
    hosts: str,
    module: str,
    arguments: Mapping[str, Any],
    options: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
) -> Done:
    """Run a module on the hosts of a pattern. `options` are Ansible's, `variables` further ones of its environment.
    Raises RefusedError without Ansible; `verb` is the command that needs it."""
    argv = [playbook.program("ansible", verb, options), *options, hosts, "-m", module, "-a", json.dumps(arguments)]
    env = {**playbook.environment(), **PLAIN, **(variables or {})}
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)  # noqa: S603  no shell
    return Done(done.returncode, done.stdout, done.stderr)
