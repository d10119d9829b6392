"""Speeds and overheads of the kernels on the hardware, from hardware.yml. Pure but for the file.

A constant belongs to a kernel or to the hardware, not to a model. A site's own value (vllm_roofline) counts before it.
A factor that was measured on the owner's Sparks (factors.py) multiplies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from vllm_spark.core import strict_yaml
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.sizing.load import Load

INVENTORY_REFUSED = register("inventory-refused", runbook="inventory-refused")

FILE = Path(__file__).with_name("hardware.yml")

# From so many streams on the errors are those of `many`.
MANY_STREAMS = 16

# Widths in bytes per weight above which a kernel works on 16 bits, and on 8.
BYTE, HALF = 1.5, 0.8


class HeldOut(TypedDict):
    """Errors of rows of operators that were left out of the fit, one after the other, for a kind of load.

    `spread` holds 90 % of the rows, as a share of the forecast.
    """

    rows: int
    operators: int
    mean: float
    spread: float


class HardwareEntry(TypedDict):
    """One hardware: its constants, what each can be at least and at most, and the errors of each kind of load."""

    summary: str
    constants: Mapping[str, float]
    bounds: Mapping[str, Sequence[float]]
    by_hand: Sequence[str]
    families: Sequence[str]
    held_out: Mapping[str, HeldOut]


@dataclass(frozen=True, slots=True)
class Interval:
    """Half the width of an interval, as a share: of the speed, and of the time to the first token. `known` is False if
    no row of the family was seen."""

    speed: float
    first_token: float
    known: bool


@dataclass(frozen=True, slots=True)
class Constants:
    """Speeds and overheads, in bytes, FLOP and seconds. docs/reference/prediction.md has their meaning and bounds."""

    bandwidth: float
    narrow_bf16: float
    attention_s: float
    delta_s: float
    mamba_s: float
    feed_forward_s: float
    expert_s: float
    eager_s: float
    step_s: float
    sequence_s: float
    all_reduce_s: float
    link: float
    draft_s: float
    verify_s: float
    apart_drafts: float
    experts_used: float
    attention_token_s: float
    compute_16: float
    compute_8: float
    compute_8_marlin: float
    compute_4: float
    compute_4_marlin: float
    compute_experts: float
    compute_attention: float
    compute_triton: float
    compute_delta: float
    compute_mamba: float
    first_token_s: float
    # Constants that a site has set.
    own: frozenset[str] = frozenset()

    def compute(self, width: float, load: Load) -> float:
        """Return the FLOP per second of products with weights of this width. Marlin computes in 16 bits."""
        if width > BYTE:
            return self.compute_16
        if width > HALF:
            return self.compute_8_marlin if load.marlin_8 else self.compute_8
        return self.compute_4_marlin if load.marlin else self.compute_4

    def multiplied(self, factors: Mapping[str, float]) -> Constants:
        """Return the constants, multiplied by the factors of those that no site has set."""
        values: dict[str, Any] = {
            name: factor * getattr(self, name) for name, factor in factors.items() if name not in self.own
        }
        return replace(self, **values)


@cache
def spark() -> HardwareEntry:
    """Return the content of the file."""
    content: HardwareEntry = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return content


def interval(family: str, *, several: bool = False, drafter: bool = False, streams: int = 1) -> Interval:
    """Return the interval of a load: on one Spark or several, without a drafter or at a given acceptance of one.

    The largest one that applies counts.
    """
    held = spark()["held_out"]
    kinds = {"speed": True, "several": several, "drafter": drafter, "many": streams >= MANY_STREAMS}
    widest = max(held[kind]["spread"] for kind, applies in kinds.items() if applies)
    return Interval(widest, held["first_token"]["spread"], family in spark()["families"])


def constants_of(overrides: Mapping[str, float]) -> Constants:
    """Return the constants of a Spark with those of a site. Raises ValueError for an unknown name."""
    known = spark()["constants"]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}")
    values = {key: float(value) for key, value in {**known, **overrides}.items()}
    return Constants(**values, own=frozenset(overrides))


def of_site(overrides: Mapping[str, float]) -> Constants:
    """Return the constants of a Spark with those of vllm_roofline. Raises RefusedError for an unknown name or value."""
    try:
        known = constants_of(overrides)
        for name in overrides:
            least, most = spark()["bounds"][name]
            value = getattr(known, name)
            if not least <= value <= most:
                raise ValueError(f"{name} {value:g}; a Spark has {least:g} to {most:g}")
        return known
    except (TypeError, ValueError) as error:
        refusal = INVENTORY_REFUSED(
            what=f"vllm_roofline: {error}",
            expected="numbers, under the names of docs/reference/prediction.md",
            fix="correct vllm_roofline in the inventory.",
        )
        raise RefusedError([refusal]) from error
