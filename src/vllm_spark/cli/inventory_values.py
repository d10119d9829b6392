"""Variables of the inventory's Sparks as Ansible fills them, for a command that is no playbook. Contacts none."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.cli import playbook

RESULT = re.compile(r"^(?P<host>\S+) \| SUCCESS => ", re.MULTILINE)
# The values may be secret: only this process reads them.
UNSEEN = {"ANSIBLE_LOG_PATH": "/dev/null", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "false"}


def of_sparks(verb: str, templates: Mapping[str, Any], options: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return host -> `templates` with its values, for each host of the group `sparks`. `options` are Ansible's.

    Raises RefusedError without Ansible, and SystemExit with Ansible's words for an inventory that it cannot read.
    """
    argv = [playbook.program("ansible", verb), *options, "sparks"]
    # The module runs on this machine.
    argv += ["-m", "ansible.builtin.debug", "-a", json.dumps({"msg": templates})]
    env = {**playbook.environment(), **UNSEEN, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)  # noqa: S603  no shell
    if done.returncode:
        # Of an inventory that cannot be read, it is the toolkit's own refusal.
        raise SystemExit((done.stderr or done.stdout).strip())
    found = RESULT.finditer(done.stdout)
    return {each["host"]: json.JSONDecoder().raw_decode(done.stdout, each.end())[0]["msg"] for each in found}
