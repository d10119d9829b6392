"""Return the key of a pair's link that a deploy installs: the head draws it, the other hosts take the head's."""

from __future__ import annotations

import secrets
from typing import Any

from vllm_spark_ansible.action import SparkAction

KEY_BYTES = 32


class ActionModule(SparkAction):
    """Arguments: head. Returns `key`, 64 hexadecimal digits. The task must have no_log and the name vllm_server_link
    for its result."""

    quiet = True

    def act(self) -> dict[str, Any]:
        return {"key": secrets.token_hex(KEY_BYTES) if self.host == self.args["head"] else ""}
