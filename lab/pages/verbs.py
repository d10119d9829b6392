"""The playbook of each verb in the root of the clone: what an owner types, three lines that import its play."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import yaml

from vllm_spark.core import paths

PLAYS = paths.ROOT / "playbooks"


def pages() -> dict[str, Callable[[], str]]:
    """Return path in the repository -> the function that returns the playbook of each verb."""
    return {file.name: partial(text, file.name) for file in sorted(PLAYS.glob("*.yml"))}


def text(name: str) -> str:
    """Return a verb's playbook. Its name is that of the first play."""
    first, *_ = yaml.safe_load((PLAYS / name).read_text(encoding="utf-8"))
    return f"---\n- name: {first['name']}\n  ansible.builtin.import_playbook: playbooks/{name}\n"
