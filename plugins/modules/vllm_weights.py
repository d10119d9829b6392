#!/usr/bin/python
"""Weights and images of a Spark: looked at, and the programs that move them started, watched and ended."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_weights
short_description: Look at a Spark's weights, and run the programs that move weights and images
description:
  - Places the programs of C(src/vllm_spark/node) and runs one as a transient unit, which goes on without Ansible and
    ends with the next run. What it has done is in C(/run/vllm-spark/pull).
author: vllm-spark
options:
  action:
    description: >-
      C(look) at the models of O(request); C(start) O(job) with O(request), after whatever an earlier run has left of
      it; C(watch) it once; C(stop) it.
    type: str
    choices: [look, start, watch, stop]
    required: true
  programs:
    description: The programs, path below O(program_dir) to text.
    type: dict
    default: {}
  program_dir:
    description: Where they lie.
    type: path
    default: /usr/local/lib/vllm-spark/pull
  job:
    description: Its id, lower-case letters and hyphens (src/vllm_spark/transfer/jobs.py).
    type: str
  words:
    description: The command that it is.
    type: list
    elements: str
    default: []
  request:
    description: What it is asked. C(hub) and C(sources) of C(look).
    type: dict
    default: {}
  token:
    description: The token of one transfer. Never shown.
    type: str
    default: ""
  environment_variables:
    description: Variables of a container, in a file that only root may read, for as long as the job takes. Never shown.
    type: dict
    default: {}
attributes:
  check_mode:
    support: partial
    description: C(look) and C(watch) only read; nothing else is done.
"""

EXAMPLES = r"""
- name: Look at the weights
  vllm_weights:
    action: look
    programs: {vllm_spark/node/pull/hub_cache.py: "…"}
    request: {hub: /var/lib/vllm-spark/hub, sources: [{folder: models--a--b, commit: "…"}]}
"""

RETURN = r"""
looks:
  description: Of each model, bytes that are whole, unread and missing.
  returned: O(action=look)
  type: list
  elements: dict
progress:
  description: How far the job is.
  returned: O(action=watch)
  type: dict
result:
  description: What it has done, once it has ended.
  returned: O(action=watch) and O(action=stop)
  type: dict
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_files import place

JOBS = "/run/vllm-spark/pull"
LAST_LINES = 20
JOB_ID = re.compile(r"[a-z]+(-[a-z]+)*")


def unit(job):
    return f"vllm-spark-pull-{job}"


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, **more)


def write(folder, programs):
    """The paths of programs that were not there, or other ones."""
    written = []
    for name, text in sorted(programs.items()):
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8") as file:
                same = file.read() == text
        except FileNotFoundError:
            same = False
        if not same:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            place(path, text, "0644")
            written.append(path)
    return written


def look(programs, request):
    """What vllm_spark.node.pull.hub_cache says of the models. Nothing is placed for it: a check changes nothing."""
    folder = tempfile.mkdtemp()
    try:
        write(folder, programs)
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        words = (sys.executable, "-m", "vllm_spark.node.pull.hub_cache")
        shown = run(*words, input=json.dumps(request), env=environment)
    finally:
        shutil.rmtree(folder)
    if shown.returncode:
        raise ValueError(shown.stderr.strip())
    answer = json.loads(shown.stdout)
    if isinstance(answer, dict):
        raise ValueError(answer["error"])
    return answer


def end(job):
    """Take away what an earlier run has left of a job."""
    run("systemctl", "stop", unit(job))
    run("systemctl", "reset-failed", unit(job))
    if job == "fetch-hub":
        run("docker", "rm", "--force", "vllm-spark-fetch")
    for ending in ("request", "progress", "env"):
        path = os.path.join(JOBS, f"{job}.{ending}")
        if os.path.exists(path):
            os.unlink(path)


def start(asked):
    """Start a job. Returns what systemd says against it."""
    job = asked["job"]
    os.makedirs(JOBS, mode=0o700, exist_ok=True)
    end(job)
    result = os.path.join(JOBS, f"{job}.result")
    if os.path.exists(result):
        os.unlink(result)
    folders = {name: asked["request"].get(name) for name in ("folder", "hub", "hub_here")}
    # A container has its own name for it.
    for path in filter(None, (folders["folder"], folders["hub_here"] or folders["hub"])):
        os.makedirs(path, mode=0o755, exist_ok=True)
    request = {**asked["request"], **({"token": asked["token"]} if asked["token"] else {})}
    lines = "".join(f"{name}={value}\n" for name, value in sorted(asked["environment_variables"].items()))
    place(os.path.join(JOBS, f"{job}.request"), json.dumps(request), "0600")
    place(os.path.join(JOBS, f"{job}.env"), lines, "0600")
    return run(
        *("systemd-run", "--quiet", f"--unit={unit(job)}", "--property=TimeoutStopSec=20"),
        *(f"--setenv=PYTHONPATH={asked['program_dir']}", "--setenv=PYTHONDONTWRITEBYTECODE=1"),
        *asked["words"],
    )


def read(job, ending):
    try:
        with open(os.path.join(JOBS, f"{job}.{ending}"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def watch(job):
    """(progress, result or nothing). A job that has gone without a result has been ended by somebody."""
    state = run("systemctl", "show", "--property=ActiveState", "--value", unit(job)).stdout.strip()
    # In this order: what ends between the two questions has its result.
    result = read(job, "result")
    if not result and state not in {"active", "activating", "deactivating", "reloading"}:
        shown = run(
            "journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={LAST_LINES}", f"--unit={unit(job)}"
        )
        result = {"ok": False, "reason": "ended", "detail": shown.stdout.strip()[-600:] or f"{unit(job)} is {state}"}
    return read(job, "progress"), result


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["look", "start", "watch", "stop"], "required": True},
            "programs": {"type": "dict", "default": {}},
            "program_dir": {"type": "path", "default": "/usr/local/lib/vllm-spark/pull"},
            "job": {"type": "str"},
            "words": {"type": "list", "elements": "str", "default": []},
            "request": {"type": "dict", "default": {}},
            "token": {"type": "str", "default": "", "no_log": True},
            "environment_variables": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
        required_if=[("action", name, ["job"]) for name in ("start", "watch", "stop")],
    )
    asked, job = module.params, module.params["job"]
    if job and not JOB_ID.fullmatch(job):
        module.fail_json(msg=f"job {job!r} is not an id")
    if asked["action"] == "look":
        try:
            module.exit_json(changed=False, looks=look(asked["programs"], asked["request"]))
        except ValueError as error:
            module.fail_json(msg=str(error))
    if asked["action"] == "watch":
        progress, result = watch(job)
        module.exit_json(changed=False, progress=progress, result=result)
    if module.check_mode:
        module.exit_json(changed=asked["action"] == "start", result={})
    if asked["action"] == "start":
        write(asked["program_dir"], asked["programs"])
        started = start(asked)
        if started.returncode:
            module.fail_json(msg=f"{unit(job)} does not start: {started.stderr.strip()}")
        module.exit_json(changed=True, result={})
    end(job)
    module.exit_json(changed=False, result=read(job, "result"))


if __name__ == "__main__":
    main()
