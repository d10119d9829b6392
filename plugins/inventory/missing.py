"""Explain an inventory that Ansible cannot read. Ansible itself says it up to four times, in words of its plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from ansible import context
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display

from vllm_spark.core import json_output
from vllm_spark.core.refusal import Refusal
from vllm_spark.inventory import source
from vllm_spark_ansible import json_mode

DOCUMENTATION = r"""
name: missing
short_description: Explain an inventory that does not exist or is not YAML
description:
  - Claims a source that is a path of nothing, or a file that is not YAML or has such a file in its group_vars or
    host_vars. Says what is wrong with it in one line, and ends the program.
author: vllm-spark
options: {}
"""


class InventoryModule(BaseInventoryPlugin):
    """Claim what no other plugin can read. A list of hosts contains a comma."""

    NAME = "vllm_spark.toolkit.missing"

    def verify_file(self, path: str) -> bool:
        """Return True for a source with a fault."""
        self._refusal: Refusal | None = None
        if "," not in path:
            file = Path(path)
            self._refusal = source.unreadable(file) if file.exists() else source.missing(file)
        return self._refusal is not None

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> NoReturn:
        """Print the refusal and end the program. Ansible would go on with its other plugins after any error."""
        assert self._refusal  # noqa: S101  for the type checker: verify_file has returned True
        Display().display(str(self._refusal), color="red", stderr=True)
        if verb := json_mode.verb((context.CLIARGS.get("args") or [""])[0], loader):
            print(json_output.text(json_output.refused(verb, [self._refusal])), flush=True)
        raise SystemExit(json_mode.EXIT_STATUS)
