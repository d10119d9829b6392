#!/usr/bin/python
"""Start, watch and stop a job: a program that runs on a Spark without Ansible."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_host_job
short_description: Start, watch and stop a program that runs on a Spark without Ansible
description:
  - Places the programs of C(src/vllm_spark/node) and runs one as a transient unit, which continues without Ansible and
    is stopped by the next run, unless that one asks for the same with O(joins). Its progress and its result are in
    C(/run/vllm-spark/pull).
author: vllm-spark
options:
  action:
    description: >-
      C(start) removes what an earlier run has left of O(job) and starts it with O(request). C(watch) reads its progress
      once. C(stop) stops it.
    type: str
    choices: [start, watch, stop]
    required: true
  job:
    description: The id of the job, lower-case letters and hyphens.
    type: str
    required: true
  programs:
    description: The programs, path below O(program_dir) to text.
    type: dict
    default: {}
  program_dir:
    description: The folder of the programs.
    type: path
    default: /usr/local/lib/vllm-spark/pull
  argv:
    description: The argv of the job.
    type: list
    elements: str
    default: []
  request:
    description: The request that the job reads.
    type: dict
    default: {}
  joins:
    description: Leave the job of an interrupted run running if it has the same programs and the same request.
    type: bool
    default: false
  token:
    description: The token of one transfer. Never shown.
    type: str
    default: ""
  environment_variables:
    description: Variables of a container, in a file that only root may read, until the job ends. Never shown.
    type: dict
    default: {}
attributes:
  check_mode:
    support: partial
    description: C(watch) only reads; the other actions do nothing.
"""

EXAMPLES = r"""
- name: Stop the sampler
  vllm_spark.toolkit.spark_host_job:
    action: stop
    job: bench
"""

RETURN = r"""
progress:
  description: The progress of the job.
  returned: O(action=watch)
  type: dict
result:
  description: The result of the job after its end; empty before.
  returned: O(action=watch), O(action=start) and O(action=stop)
  type: dict
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandResult,
    read_object,
    run,
    write_file,
    write_texts,
)

JOBS = layout.JOBS_DIR
LOG_LINES = 20
# What a job is asked for. The unit of one that can be joined has the sha256.
ASKED = ("programs", "argv", "request", "token", "environment_variables")
JOB_ID = re.compile(r"[a-z]+(-[a-z]+)*")


def unit(job: str) -> str:
    return f"vllm-spark-pull-{job}"


def remove_job(job: str) -> None:
    """Remove the unit, the container and the files of an earlier run of a job."""
    run("systemctl", "stop", unit(job), timeout_s=None)
    run("systemctl", "reset-failed", unit(job), timeout_s=None)
    if job == "fetch-hub":
        run("docker", "rm", "--force", "vllm-spark-fetch", timeout_s=None)
    for ending in ("request", "progress", "env"):
        path = os.path.join(JOBS, f"{job}.{ending}")
        if os.path.exists(path):
            os.unlink(path)


def start(params: Mapping[str, Any]) -> CommandResult:
    """Start a job, or join one that runs. Returns the result of systemd-run or systemctl."""
    job = params["job"]
    description = unit(job)
    if params["joins"]:
        asked = json.dumps([params[name] for name in ASKED], sort_keys=True)
        description = f"{unit(job)} {hashlib.sha256(asked.encode()).hexdigest()}"
        runs = run("systemctl", "show", "--property=ActiveState,Description", unit(job), timeout_s=None)
        if {"ActiveState=active", f"Description={description}"} <= {*runs.stdout.splitlines()}:
            return runs
    os.makedirs(JOBS, mode=0o700, exist_ok=True)
    remove_job(job)
    result = os.path.join(JOBS, f"{job}.result")
    if os.path.exists(result):
        os.unlink(result)
    folders = {name: params["request"].get(name) for name in ("folder", "hub", "hub_here")}
    # In a container the hub has another path; hub_here is that of the host.
    for path in filter(None, (folders["folder"], folders["hub_here"] or folders["hub"])):
        os.makedirs(path, mode=0o755, exist_ok=True)
    request = {**params["request"], **({"token": params["token"]} if params["token"] else {})}
    env = "".join(f"{name}={value}\n" for name, value in sorted(params["environment_variables"].items()))
    write_file(os.path.join(JOBS, f"{job}.request"), json.dumps(request), "0600")
    write_file(os.path.join(JOBS, f"{job}.env"), env, "0600")
    return run(
        *("systemd-run", "--quiet", f"--unit={unit(job)}", "--property=TimeoutStopSec=20"),
        f"--description={description}",
        *(f"--setenv=PYTHONPATH={params['program_dir']}", "--setenv=PYTHONDONTWRITEBYTECODE=1"),
        *params["argv"],
        timeout_s=None,
    )


def read(job: str, ending: str) -> dict[str, Any]:
    return read_object(os.path.join(JOBS, f"{job}.{ending}")) or {}


def watch(job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (progress, result). The result is empty while the job runs. A job that ended without a result was
    stopped from outside."""
    state = run("systemctl", "show", "--property=ActiveState", "--value", unit(job), timeout_s=None).stdout.strip()
    # In this order: a job that ends between the two reads has its result.
    result = read(job, "result")
    if not result and state not in {"active", "activating", "deactivating", "reloading"}:
        bounds = (f"--lines={LOG_LINES}", f"--unit={unit(job)}")
        log = run("journalctl", "--quiet", "--no-pager", "--output=cat", *bounds, timeout_s=None).stdout.strip()
        result = {"ok": False, "reason": "ended", "detail": log[-600:] or f"{unit(job)} is {state}"}
    return read(job, "progress"), result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["start", "watch", "stop"], "required": True},
            "job": {"type": "str", "required": True},
            "programs": {"type": "dict", "default": {}},
            "program_dir": {"type": "path", "default": layout.PULL_PROGRAM_DIR},
            "argv": {"type": "list", "elements": "str", "default": []},
            "request": {"type": "dict", "default": {}},
            "joins": {"type": "bool", "default": False},
            "token": {"type": "str", "default": "", "no_log": True},
            "environment_variables": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    action, job = params["action"], params["job"]
    if not JOB_ID.fullmatch(job):
        module.fail_json(msg=f"job {job!r} is not an id")
    if action == "watch":
        progress, result = watch(job)
        module.exit_json(changed=False, progress=progress, result=result)
    if module.check_mode:
        module.exit_json(changed=action == "start", result={})
    if action == "start":
        write_texts(params["program_dir"], params["programs"])
        started = start(params)
        if started.status:
            module.fail_json(msg=f"{unit(job)} does not start: {started.stderr.strip()}")
        module.exit_json(changed=True, result={})
    remove_job(job)
    module.exit_json(changed=False, result=read(job, "result"))


if __name__ == "__main__":
    main()
