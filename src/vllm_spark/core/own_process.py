"""Run a function with network access in a process of its own: `python -m MODULE`.

An action plugin runs in a fork of ansible-playbook. macOS ends a fork that uses its network libraries
(https://docs.ansible.com/ansible/latest/reference_appendices/faq.html#running-on-macos-as-a-control-node).

The request is JSON on stdin, so that no secret is in an argument. The output has one JSON object per line: `log` for
the operator, then `result` or `refusals`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError

# Prints one line to the operator.
Log = Callable[[str], None]


def run(module: str, request: Mapping[str, Any], log: Log, variables: Mapping[str, Any] | None = None) -> Any:
    """Return the result of a module's `serve`. `variables` are further ones of its environment. Raises RefusedError
    with its refusals, and OSError if it ends without a result."""
    further = {name: str(value) for name, value in (variables or {}).items()}
    environment = {**os.environ, **further, "PYTHONPATH": str(paths.SOURCE)}
    with subprocess.Popen(  # noqa: S603  a constant command
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None  # noqa: S101  for the type checker
        assert process.stdout is not None  # noqa: S101  for the type checker
        assert process.stderr is not None  # noqa: S101  for the type checker
        # A value of YAML that JSON does not have, such as a date, becomes text. The checks of the inventory refuse it.
        process.stdin.write(json.dumps(dict(request), default=str))
        process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "refusals" in message:
                raise RefusedError([Refusal(**refusal) for refusal in message["refusals"]])
            if "result" in message:
                return message["result"]
            log(message["log"])
        errors = process.stderr.read().strip().splitlines()
    raise OSError(f"python -m {module} ended with status {process.returncode}: {errors[-1] if errors else 'no output'}")


def serve(work: Callable[[dict[str, Any], Log], Any]) -> int:
    """Do the work of this process: `work` receives the request and returns the result, which must be JSON."""
    # Programs that the work starts must not write into the messages.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        result = work(json.load(sys.stdin), lambda line: send({"log": line}))
    except RefusedError as error:
        send({"refusals": [asdict(refusal) for refusal in error.refusals]})
    else:
        send({"result": result})
    return 0
