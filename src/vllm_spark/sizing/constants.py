"""Speeds and overheads of the kernels on the hardware, from hardware.yml. Pure but for the file.

A constant belongs to a kernel or to the hardware, not to a model. A site's own value (vllm_roofline) counts before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from vllm_spark.core import removed, strict_yaml
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.inventory.link_timing import Timing
from vllm_spark.sizing.load import Load

INVENTORY_REFUSED = register("inventory-refused", runbook="inventory-refused")

FILE = Path(__file__).with_name("hardware.yml")

# From so many streams on the errors are those of `many`, and from so many tokens of a prompt on those of `depth`.
MANY_STREAMS, DEEP = 16, 8000

# The share of the figures that an interval holds.
HOLDS = 0.9

# Widths in bytes per weight above which a kernel works on 16 bits, and on 8.
BYTE, HALF = 1.5, 0.8


# How many times the link's time a message of few bytes takes more than one of many.
FEW_BYTES_MORE = 4.0


class HeldOut(TypedDict):
    """Errors of a kind of figure, each operator counted once: their median, and the `spread` that holds HOLDS of the
    figures, as a share of the forecast."""

    rows: int
    operators: int
    median: float
    spread: float


class HardwareEntry(TypedDict):
    """One hardware: its constants, what each can be at least and at most, and the errors of each kind of figure: of
    operators whom no fit has met or who were left out (`held_out`), and of other loads of a server whose own factor is
    known (`own`)."""

    summary: str
    constants: Mapping[str, float]
    bounds: Mapping[str, Sequence[float]]
    by_hand: Sequence[str]
    held_out: Mapping[str, HeldOut]
    own: Mapping[str, HeldOut]


@dataclass(frozen=True, slots=True)
class Interval:
    """Half the width of an interval as a share of the forecast, and the number of operators who gave it.

    `own`: by other loads of their own servers. Otherwise they are operators who were left out.
    """

    spread: float
    operators: int
    own: bool = False

    @property
    def whose(self) -> str:
        """Return whose figures it holds."""
        if self.own:
            return f"other loads of {self.operators} servers, whose factor their owners had measured"
        return f"{self.operators} operators who were left out, each counted once"


@dataclass(frozen=True, slots=True)
class Constants:
    """Speeds and overheads, in bytes, FLOP and seconds. docs/reference/prediction.md has their meaning and bounds."""

    bandwidth: float
    narrow_bf16: float
    feed_forward_s: float
    eager_s: float
    all_reduce_s: float
    link: float
    many_bytes_s: float
    verify_s: float
    experts_used: float
    compute_16: float
    compute_8: float
    compute_8_marlin: float
    compute_4: float
    compute_experts: float
    compute_triton: float
    compute_delta: float
    compute_mamba: float
    first_token_s: float
    # Constants that a site has set.
    own: frozenset[str] = frozenset()

    def compute(self, width: float, load: Load) -> float:
        """Return the FLOP per second of products with weights of this width. Marlin computes in 16 bits."""
        if HALF < width <= BYTE:
            return self.compute_8_marlin if load.marlin_8 else self.compute_8
        return self.compute_4 if width <= HALF and not load.marlin else self.compute_16


@cache
def spark() -> HardwareEntry:
    """Return the content of the file."""
    content: HardwareEntry = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return content


def speed_interval(*, several: bool = False, drafter: bool = False, streams: int = 1) -> Interval:
    """Return the interval of a speed: on one Spark or several, without a drafter or at a given acceptance of one.

    The largest one that applies counts.
    """
    kinds = {"speed": True, "several": several, "drafter": drafter, "many": streams >= MANY_STREAMS}
    return max((_interval(kind) for kind, applies in kinds.items() if applies), key=lambda one: one.spread)


def first_token_interval(prompt: int) -> Interval:
    """Return the interval of the time to the first token of a prompt of so many tokens."""
    return _interval("depth" if prompt >= DEEP else "first_token")


def own_interval(kind: str) -> Interval:
    """Return the interval beside a factor of the owner: of "speed" or of "first_token"."""
    held = spark()["own"][kind]
    return Interval(held["spread"], held["operators"], own=True)


def _interval(kind: str) -> Interval:
    held = spark()["held_out"][kind]
    return Interval(held["spread"], held["operators"])


def constants_of(overrides: Mapping[str, float]) -> Constants:
    """Return the constants of a Spark with those of a site. Raises ValueError for an unknown name."""
    known = spark()["constants"]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}")
    values = {key: float(value) for key, value in {**known, **overrides}.items()}
    return Constants(**values, own=frozenset(overrides))


def of_site(overrides: Mapping[str, float], timing: Timing | None = None) -> Constants:
    """Return the constants of a Spark with those of vllm_roofline. Raises RefusedError for an unknown name or value.

    `timing` is that of the all-reduces between the Sparks of a server, inside what a Spark can have; what the owner
    sets counts before it. Those that release 0.1.0 had and this one has not are left out (removed.roofline_notes).
    """
    try:
        kept = {name: overrides[name] for name in overrides if name not in removed.ROOFLINE}
        known = constants_of(kept)
        for name in kept:
            least, most = spark()["bounds"][name]
            value = getattr(known, name)
            if not least <= value <= most:
                raise ValueError(f"{name} {value:g}; a Spark has {least:g} to {most:g}")
        return constants_of({**_timed(timing), **kept} if timing and timing.counts else kept)
    except (TypeError, ValueError) as error:
        refusal = INVENTORY_REFUSED(
            what=f"vllm_roofline: {error}",
            expected="numbers, under the names of docs/reference/prediction.md",
            fix="correct vllm_roofline in the inventory.",
        )
        raise RefusedError([refusal]) from error


def _timed(timing: Timing) -> dict[str, float]:
    """Return the constants with which an all-reduce takes both times (roofline.all_reduce_s), inside the bounds."""
    (few, short), (many, long) = ((timing.sent(size), us * 1e-6) for size, us in timing.calls)
    few *= 1 + FEW_BYTES_MORE
    link = (many - few) / max(long - short - spark()["constants"]["many_bytes_s"], 1e-9)
    found = {"link": _inside("link", link)}
    return found | {"all_reduce_s": _inside("all_reduce_s", short - few / found["link"])}


def _inside(name: str, value: float) -> float:
    least, most = spark()["bounds"][name]
    return min(most, max(least, value))
