"""The collection in the wheel, where Ansible finds it without a setting: beside the package in site-packages."""

from __future__ import annotations

import re
from glob import glob
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COLLECTION = "ansible_collections/vllm_spark/toolkit"
# What a verb, Ansible or a message names. Links become files, because a wheel has none.
FILES = (
    "ansible.cfg",
    "galaxy.yml",
    "meta/runtime.yml",
    "requirements.lock",
    "playbooks/*.yml",
    "plugins/**/*.py",
    "roles/*/[!R]*/**",
    "recipes/*",
    "recipes/[!e]*/*",
    "recipes/engines/*",
    "templates/*",
    "docs/README.md",
    "docs/operations/*",
    "docs/reference/*",
    "docs/runbooks/*",
    "inventories/minimal/**",
    "inventories/sample/**",
)
# Of the evidence, what a recipe names.
EVIDENCE = re.compile(r"recipes/evidence/\S+\.jsonl")


class BuildWithCollection(build_py):
    """Copy the files of the collection too. The sdist takes what this list names."""

    def get_data_files_without_manifest(self) -> list[tuple[str, str, str, list[str]]]:
        """Return (package, source, target, names) of all files that are no modules."""
        found = {name for pattern in FILES for name in glob(pattern, recursive=True) if Path(name).is_file()}
        recipes = "".join(Path(name).read_text(encoding="utf-8") for name in glob("recipes/*.yml"))
        found |= {*EVIDENCE.findall(recipes)}
        # A verb of the root imports the playbook of its name.
        verbs = {Path(name).name for name in found if name.startswith("playbooks/")}
        kept = sorted(name for name in found | verbs if "__pycache__" not in name)
        collection = ("", "", str(Path(self.build_lib, COLLECTION)), kept)
        return [*super().get_data_files_without_manifest(), collection]

    _get_data_files = get_data_files_without_manifest


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithCollection})
