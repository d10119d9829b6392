"""Write what the deployments of a site run as a CycloneDX document. vllm_spark.lifecycle.sbom decides what is in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.core import paths
from vllm_spark.core.version import version
from vllm_spark.lifecycle import sbom
from vllm_spark.node.state_file import replace_file
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "deployments": {"type": "raw", "required": True},  # The deployments of the inventory, not yet checked.
        "limit": {"type": "list", "elements": "str", "required": True},  # The hosts of the run.
        "recipe_folders": {"type": "list", "elements": "str", "required": True},  # Folders that contain recipes.
        "lock_file": {"type": "str", "required": True},  # The lock file.
        "file": {"type": "str", "required": True},  # The file to write on this machine.
    }

    def act(self) -> dict[str, Any]:
        file = Path(self.args["file"])
        packages = (paths.ROOT / "requirements.lock").read_text(encoding="utf-8")
        found = sbom.contents(self.args, packages)
        document = sbom.document(found.components, version(), datetime.now(UTC))
        if not self.check_mode:
            replace_file(file, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        self.show(*found.notes, f"{file}: {sbom.summary(found.components)}")
        return {"changed": True}
