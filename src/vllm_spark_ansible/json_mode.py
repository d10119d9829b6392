"""A run of a verb that prints its document for programs: `-e json=true`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.vars import load_extra_vars

from vllm_spark.core import json_output, removed
from vllm_spark.core.refusal import Refusal

VARIABLE = "json"
# That of Ansible for a run that it cannot begin.
EXIT_STATUS = 1


def verb(playbook: str, loader: Any) -> str:
    """Return the verb of a playbook, given as a path or as a name of the collection, if this run prints its document;
    otherwise nothing."""
    name = _asked(playbook, loader)
    return name if name in json_output.DOCUMENTS else ""


def refusal(playbook: str, loader: Any) -> Refusal | None:
    """Return the refusal of a run that asks for a document that its verb has no more."""
    return removed.DOCUMENTS.get(_asked(playbook, loader))


def _asked(playbook: str, loader: Any) -> str:
    name = Path(playbook).name.removesuffix(".yml").rpartition(".")[2]
    return name if boolean(load_extra_vars(loader).get(VARIABLE, False), strict=False) else ""


def keep_stdout(display: Any) -> None:
    """Keep everything but the document from stdout: lines for a person are dropped, and with -v they go to stderr. The
    workers of Ansible inherit this."""
    usual = display.display

    def to_stderr(text: str, *args: Any, stderr: bool = False, **how: Any) -> None:
        if stderr or display.verbosity:
            usual(text, *args, stderr=True, **how)

    display.display = to_stderr
