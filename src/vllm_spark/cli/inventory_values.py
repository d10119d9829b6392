"""Variables of the inventory's Sparks as Ansible fills them, for a command that is no playbook. Contacts none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.cli import one_module

# The values may be secret: only this process reads them.
UNSEEN = {"ANSIBLE_LOG_PATH": "/dev/null", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "false"}


def of_sparks(verb: str, templates: Mapping[str, Any], options: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return host -> `templates` with its values, for each host of the group `sparks`. `options` are Ansible's.

    Raises RefusedError without Ansible, and SystemExit with Ansible's words for an inventory that it cannot read.
    """
    # The module runs on this machine.
    done = one_module.run(verb, "sparks", "ansible.builtin.debug", {"msg": templates}, options, variables=UNSEEN)
    if done.status:
        # It is the toolkit's own refusal if the inventory cannot be read.
        raise SystemExit((done.errors or done.output).strip())
    return {host: result["msg"] for host, result in done.results.items()}
