"""Variables of a site that a plan without hosts reads: measured constants, and the least speed (--site FILE)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.core import documents, paths, removed
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.inventory import link_timing
from vllm_spark.sizing import constants
from vllm_spark.sizing.constants import Constants

BAD_SITE = register("bad-site", runbook="inventory-refused")


@dataclass(frozen=True, slots=True)
class Site:
    """The constants of the prediction, and the least speed of a sequence in tok/s; 0 accepts every speed."""

    constants: Constants
    least_speed: float = 0.0
    overrides: Mapping[str, float] = field(default_factory=dict)

    def between(self, hosts: Sequence[str]) -> Constants:
        """Return the constants with what fabric.yml timed between these hosts."""
        timing = link_timing.read(paths.REPORTS / "fabric", hosts)
        return constants.of_site(self.overrides, timing) if timing else self.constants


def read(file: Path | None) -> Site:
    """Return the site's values from a file of variables, for example group_vars/all/vllm.yml of an inventory.

    Raises RefusedError for a file that is not YAML, and for an unknown constant.
    """
    if file is None:
        return Site(constants.of_site({}))
    try:
        variables = documents.read_yaml(file)
        least = float(variables.get("vllm_least_tok_s", 0))
    except (DocumentError, TypeError, ValueError) as error:
        refusal = BAD_SITE(what=f"{file}: {error}", expected="YAML variables of a site", fix=f"correct {file}.")
        raise RefusedError([refusal]) from error
    overrides = variables.get("vllm_roofline") or {}
    known = constants.of_site(overrides)
    for line in removed.roofline_notes(overrides):
        print(line, file=sys.stderr)
    return Site(known, least, overrides)
