"""The plugins of the collection. Their imports of the Python package vllm-spark fail with a `Fix:` where it is missing.

ansible-galaxy installs the files of the package with the collection, but Python does not find them there. Ansible
imports this module before a plugin of any kind, and does not copy it to a host.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("vllm_spark", "vllm_spark_ansible")
# Installed from there as editable, because the package reads the recipes and templates of its folder.
COLLECTION = Path(__file__).resolve().parents[1]


class MissingPackage:
    """A finder of modules. Python asks it last, when no other has found the module."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        """Raises AnsibleError, which Ansible prints without a traceback, for the toolkit's own packages."""
        if name in PACKAGES:
            from ansible.errors import AnsibleError  # noqa: PLC0415  modules of a host need nothing of it

            install = shlex.join((sys.executable, "-m", "pip", "install", "--editable", str(COLLECTION)))
            raise AnsibleError(
                f"{sys.executable} has no module {name} — expected: the Python package vllm-spark. "
                f"Fix: {install}. See docs/operations/controllers.md"
            )


sys.meta_path.append(MissingPackage)
