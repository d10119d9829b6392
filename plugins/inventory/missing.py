"""Explain an inventory that does not exist. Ansible names only the path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

DOCUMENTATION = r"""
name: missing
short_description: Explain an inventory that does not exist
description:
  - Claims a source that is a path of nothing, and fails with the command that creates an inventory.
author: vllm-spark
options: {}
"""


class InventoryModule(BaseInventoryPlugin):
    """Claim a path that does not exist. A list of hosts contains a comma."""

    NAME = "vllm_spark.toolkit.missing"

    def verify_file(self, path: str) -> bool:
        """Return True for a path that does not exist."""
        return "," not in path and not Path(path).exists()

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Fail with the fix."""
        raise AnsibleParserError(
            f"there is no inventory at {path} — expected: a folder with hosts.yml. Fix: cp -r inventories/minimal "
            "inventories/site. Then change address and user in its hosts.yml; or name an inventory with -i FOLDER. "
            "See docs/runbooks/inventory-refused.md"
        )
