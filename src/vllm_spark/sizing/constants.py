"""Speeds and overheads of the hardware, and of the families of kernels on it, from hardware.yml. Pure but for the file.

A constant belongs to a hardware. A family of models may have its own value of a constant, because its kernels differ.
A site's own value (vllm_roofline) counts before both. A factor that was measured on the owner's Sparks (factors.py)
multiplies either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from vllm_spark.core import strict_yaml
from vllm_spark.core.refusal import RefusedError, register

INVENTORY_REFUSED = register("inventory-refused", runbook="inventory-refused")

FILE = Path(__file__).with_name("hardware.yml")

# Widths in bytes per weight above which a kernel works on 16 bits, and on 8.
BYTE, HALF = 1.5, 0.8


class HeldOut(TypedDict):
    """Errors of rows whose configuration was left out of the fit, or whose family was."""

    rows: int
    mean: float
    inside: float
    spread: float
    first_token_rows: int
    first_token_mean: float
    first_token_spread: float
    several: NotRequired[float]
    drafter: NotRequired[float]
    drafter_streams: NotRequired[float]


class FamilyEntry(TypedDict):
    """Constants of a family of models, and the rows and configurations that they are fitted to."""

    held_out: HeldOut
    constants: Mapping[str, float]
    rows: int
    configurations: int


class HardwareEntry(TypedDict):
    """One hardware: constants, meaning and rows behind each, and families."""

    summary: str
    constants: Mapping[str, float]
    rows: Mapping[str, int]
    held_out: HeldOut
    families: Mapping[str, FamilyEntry]


@dataclass(frozen=True, slots=True)
class Interval:
    """Half the width of an interval, as a share: of the speed, and of the time to the first token. `known` is False if
    no row of the family was seen."""

    speed: float
    first_token: float
    known: bool


@dataclass(frozen=True, slots=True)
class Constants:
    """Speeds and overheads, in bytes, FLOP and seconds. docs/reference/prediction.md has their meaning and rows."""

    bandwidth: float
    narrow_bf16: float
    efficiency_8: float
    efficiency_4: float
    efficiency_experts: float
    layer_dense_s: float
    layer_experts_s: float
    eager_layer_s: float
    eager_launch_s: float
    step_s: float
    sequence_s: float
    all_reduce_s: float
    link: float
    draft_s: float
    verify_s: float
    apart_sequences: float
    apart_drafts: float
    experts_used: float
    attention_token_s: float
    compute_16: float
    compute_8: float
    compute_8_marlin: float
    compute_4: float
    compute_4_marlin: float
    experts_16: float
    experts_8: float
    experts_4: float
    compute_attention: float
    first_token_s: float
    own: frozenset[str] = field(default=frozenset())
    # Constant -> what its value here is multiplied with.
    factors: Mapping[str, float] = field(default_factory=dict)

    def efficiency(self, width: float) -> float:
        """Return the share of the bandwidth that kernels of this width reach."""
        return 1.0 if width > BYTE else self.efficiency_8 if width > HALF else self.efficiency_4

    def routed(self, width: float) -> float:
        """Return the share of `compute` that the grouped product of experts of this width reaches."""
        return self.experts_16 if width > BYTE else self.experts_8 if width > HALF else self.experts_4

    def compute(self, width: float, marlin: bool) -> float:
        """Return the FLOP per second that kernels of this width reach. Marlin computes in 16 bits."""
        if width > BYTE:
            return self.compute_16
        if width > HALF:
            return self.compute_8_marlin if marlin else self.compute_8
        return self.compute_4_marlin if marlin else self.compute_4

    def for_family(self, name: str) -> Constants:
        """Return the constants with the values of a family, except those that a site has set."""
        families = spark()["families"]
        values = families[name]["constants"] if name in families else {}
        own: dict[str, Any] = {key: value for key, value in values.items() if key not in self.own}
        for key, factor in self.factors.items():
            if key not in self.own:
                own[key] = factor * own.get(key, getattr(self, key))
        return replace(self, factors={}, **own)


@cache
def spark() -> HardwareEntry:
    """Return the content of the file."""
    content: HardwareEntry = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return content


def interval(family: str, *, several: bool = False, drafter: bool = False, streams: int = 1) -> Interval:
    """Return the interval of a family: on one Spark or several, without a drafter or at a given acceptance of one.

    The largest one that applies counts. What a family has not of its own is that of the hardware.
    """
    families, held = spark()["families"], spark()["held_out"]
    if family in families:
        held = {**held, **families[family]["held_out"]}
    widths = [held["spread"]]
    if several:
        widths.append(held["several"])
    if drafter:
        widths.append(held["drafter" if streams == 1 else "drafter_streams"])
    return Interval(max(widths), held["first_token_spread"], family in families)


def constants_of(overrides: Mapping[str, float]) -> Constants:
    """Return the constants of a Spark with those of a site. Raises ValueError for an unknown name."""
    known = spark()["constants"]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}")
    values = {key: float(value) for key, value in {**known, **overrides}.items()}
    return Constants(**values, own=frozenset(overrides), factors={})


def of_site(overrides: Mapping[str, float]) -> Constants:
    """Return the constants of a Spark with those of vllm_roofline. Raises RefusedError for an unknown name or value."""
    try:
        return constants_of(overrides)
    except (TypeError, ValueError) as error:
        refusal = INVENTORY_REFUSED(
            what=f"vllm_roofline: {error}",
            expected="numbers, under the names of docs/reference/prediction.md",
            fix="correct vllm_roofline in the inventory.",
        )
        raise RefusedError([refusal]) from error
