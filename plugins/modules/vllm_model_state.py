#!/usr/bin/python
"""Report how much of the models is in the hub cache of a Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_model_state
short_description: Report how much of the models is in the hub cache of a Spark
description:
  - Runs C(vllm_spark.node.pull.hub_cache) from a temporary folder, because it changes nothing.
author: vllm-spark
options:
  programs:
    description: The programs of a pull, path below a folder to text.
    type: dict
    required: true
  hub:
    description: The hub cache.
    type: path
    required: true
  sources:
    description: The models, with C(folder) and C(commit).
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Read the state of the weights
  vllm_spark.toolkit.vllm_model_state:
    programs: {vllm_spark/node/pull/hub_cache.py: "…"}
    hub: /var/lib/vllm-spark/hub
    sources: [{folder: models--a--b, commit: "…"}]
"""

RETURN = r"""
looks:
  description: For each model, the bytes that are complete, not read yet, and missing.
  returned: success
  type: list
  elements: dict
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import run, write_texts


def model_states(programs: Mapping[str, str], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the state of the models as the program reports it. Raises ValueError with the program's error."""
    folder = tempfile.mkdtemp()
    try:
        write_texts(folder, programs)
        env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        argv = (sys.executable, "-m", "vllm_spark.node.pull.hub_cache")
        # Reading a model may take minutes.
        result = run(*argv, stdin=json.dumps(request), env=env, timeout_s=None)
    finally:
        shutil.rmtree(folder)
    if result.status:
        raise ValueError(result.stderr.strip())
    answer = json.loads(result.stdout)
    if isinstance(answer, dict):
        raise ValueError(answer["error"])
    states: list[dict[str, Any]] = answer
    return states


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "programs": {"type": "dict", "required": True},
            "hub": {"type": "path", "required": True},
            "sources": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    request = {name: module.params[name] for name in ("hub", "sources")}
    try:
        looks = model_states(module.params["programs"], request)
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, looks=looks)


if __name__ == "__main__":
    main()
