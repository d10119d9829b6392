"""Decode speed of a model on Sparks: the bytes that a step reads over the bandwidth, and the overheads. Pure.

A step reads the weights that its tokens need and the cache of every sequence. Each layer, each step, each all-reduce
between two Sparks and each drafted token adds a time. docs/reference/prediction.md has the formula and its errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from vllm_spark.recipe.architecture import Architecture

# Bytes per weight, including scales. NVFP4: 4 bits and one 8-bit scale per 16 weights. int4-g32: 4 bits, a 16-bit
# scale and a 4-bit zero per 32 weights.
WIDTHS = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "int4-g32": 0.578125}

# Bytes per weight of parts whose width no recipe names.
UNQUANTISED = 2.0

# Half the width of the printed interval, as a share. Operators differ by 8 % on the same configuration.
INTERVAL_ALONE = 0.12
INTERVAL_PAIR_OR_DRAFTER = 0.18

# Field report 004: shares of the drafted tokens accepted on prose and on code.
ACCEPTED_PROSE, ACCEPTED_CODE = 0.50, 0.76

# Bytes per weight of each part.
Layout = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Constants:
    """Speeds and overheads of a Spark, in bytes and seconds. A site may set its own (vllm_roofline)."""

    # Measured with a saturating read. The data sheet's 273 GB/s are not reached.
    bandwidth: float = 232e9
    # Launches, norms, rotary embedding; with experts also routing, sorting and the grouped product.
    layer_dense_s: float = 0.115e-3
    layer_experts_s: float = 0.205e-3
    # Sampler, scheduler, HTTP.
    step_s: float = 0.5e-3
    # One all-reduce between two Sparks. Measure it with all_reduce_perf of nccl-tests at 10 KB.
    all_reduce_s: float = 0.075e-3
    # Launches of one drafted token.
    draft_s: float = 0.5e-3
    # How often other sequences, and the drafted tokens of one sequence, use other experts; 1 is independent.
    apart_sequences: float = 0.60
    apart_drafts: float = 0.35


@dataclass(frozen=True, slots=True)
class Drafter:
    """Speculative decoding: the drafter, its tokens per step, and the share of them that is accepted."""

    architecture: Architecture
    tokens: int
    acceptance: float
    width: float = UNQUANTISED

    @property
    def tokens_per_step(self) -> float:
        """The mean acceptance length of vLLM."""
        return 1 + self.tokens * self.acceptance


@dataclass(frozen=True, slots=True)
class Load:
    """Load of the server: tokens in the cache of each sequence, concurrent sequences, ranks, and the cache's width."""

    context: int = 1024
    streams: int = 1
    tensor_parallel: int = 1
    kv_width: float = 2.0
    drafter: Drafter | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: part -> bytes read over all ranks, cause -> seconds, and the tokens of each sequence."""

    read: Mapping[str, float]
    seconds: Mapping[str, float]
    tokens: float = field(default=1.0)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_s(self) -> float:
        """The speed of each sequence."""
        return self.tokens / self.total_s

    def bound(self) -> str:
        """Return the longest term and its share of the step."""
        cause, longest = max(self.seconds.items(), key=lambda item: item[1])
        if cause != WEIGHTS:
            return f"{cause}, {longest / self.total_s:.0%} of a step"
        weights = {part: size for part, size in self.read.items() if part != CACHE}
        part, size = max(weights.items(), key=lambda item: item[1])
        share = size / sum(weights.values())
        return f"{cause}, {longest / self.total_s:.0%} of a step; {share:.0%} of them is {PARTS.get(part, part)}"


# Causes of time in a step.
WEIGHTS, CACHE, LAYERS, FIXED, ALL_REDUCE, DRAFTS = (
    "reading the weights",
    "reading the cache",
    "overhead of the layers",
    "overhead of a step",
    "all-reduces between the Sparks",
    "drafting",
)
PARTS = {"mlp": "the MLP", "head": "the output head", "experts": "the experts", "router": "the router"}


def widths(names: Mapping[str, str]) -> dict[str, float]:
    """Return part -> bytes per weight of a recipe's layout."""
    return {part: WIDTHS[name] for part, name in names.items()}


def expert_sets(architecture: Architecture, load: Load, constants: Constants) -> float:
    """Return how many times a step reads the experts of one token. Tokens that use the same expert read it once."""
    experts = architecture.experts
    if experts is None:
        return 0.0
    drafted = load.drafter.tokens if load.drafter else 0
    requests = (1 + (load.streams - 1) * constants.apart_sequences) * (1 + drafted * constants.apart_drafts)
    share = experts.per_token / experts.count
    unused: float = (1 - share) ** requests
    return (1 - unused) / share


def weight_bytes(architecture: Architecture, layout: Layout, load: Load, constants: Constants) -> dict[str, float]:
    """Return part -> bytes of weights that one step reads. Decoding reads neither the input embedding nor vision."""
    weights, experts = architecture.weights(), architecture.experts
    active = experts.layers * experts.per_token * architecture.expert if experts else 0
    read = {part: weights[part] * layout.get(part, UNQUANTISED) for part in ("attention", "mlp", "router", "head")}
    read["experts"] = active * layout.get("experts", UNQUANTISED) * expert_sets(architecture, load, constants)
    return {part: size for part, size in read.items() if size}


def cache_bytes(architecture: Architecture, context: int, kv_width: float) -> float:
    """Return the bytes of cache that one step reads for one sequence: K and V of the tokens in each layer's window."""
    total = 0.0
    for group in architecture.attention:
        tokens = min(context, group.window) if group.window else context
        total += group.layers * (2 * group.kv_heads * group.head_size * kv_width * tokens + group.state_bytes)
    return total


def step(architecture: Architecture, layout: Layout, load: Load, constants: Constants | None = None) -> Step:
    """Return the step that decodes one token of every sequence, or several with a drafter."""
    constants = constants or Constants()
    read = weight_bytes(architecture, layout, load, constants)
    weights = sum(read.values())
    cache = load.streams * cache_bytes(architecture, load.context, load.kv_width)
    bandwidth = load.tensor_parallel * constants.bandwidth
    layer_s = constants.layer_experts_s if architecture.experts else constants.layer_dense_s
    seconds = {
        WEIGHTS: weights / bandwidth,
        CACHE: cache / bandwidth,
        LAYERS: architecture.layers * layer_s,
        FIXED: constants.step_s,
    }
    if load.tensor_parallel > 1:
        # Each layer has two, after attention and after the MLP. The embedding has one.
        seconds[ALL_REDUCE] = (2 * architecture.layers + 1) * constants.all_reduce_s
    drafter = load.drafter
    if drafter:
        drafted = sum(weight_bytes(drafter.architecture, {}, Load(), constants).values()) / UNQUANTISED * drafter.width
        seconds[DRAFTS] = drafter.tokens * (drafted / bandwidth + constants.draft_s)
    return Step({**read, CACHE: cache}, seconds, drafter.tokens_per_step if drafter else 1.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Decode speed of one sequence, and its interval.

    With a drafter, `slow` and `fast` are the steps at the lowest and the highest acceptance. `spread` is half the width
    of the interval, as a share. `ceiling` is the speed in tok/s if every drafted token is accepted; a report above it
    measures something else. Without a drafter it is the predicted speed.
    """

    slow: Step
    fast: Step
    accepted: tuple[float, float]
    spread: float
    ceiling: float

    @property
    def low(self) -> float:
        return self.slow.tokens_per_s * (1 - self.spread)

    @property
    def high(self) -> float:
        return self.fast.tokens_per_s * (1 + self.spread)

    def __str__(self) -> str:
        slow, fast = f"{self.slow.tokens_per_s:.1f}", f"{self.fast.tokens_per_s:.1f}"
        figure = slow if slow == fast else f"{slow} to {fast}"
        return f"{figure} tok/s (±{self.spread:.0%}: {self.low:.1f} to {self.high:.1f})"


def predict(
    architecture: Architecture,
    layout: Layout,
    load: Load,
    constants: Constants | None = None,
    accepted: Sequence[float] = (),
) -> Prediction:
    """Return the prediction for a load.

    `accepted` are the measured acceptances; without any, those of prose and of code are used. The acceptance of
    `load.drafter` is ignored.
    """
    drafter = load.drafter

    def at(share: float) -> Step:
        drafting = replace(drafter, acceptance=share) if drafter else None
        return step(architecture, layout, replace(load, drafter=drafting), constants)

    shares = (accepted or (ACCEPTED_PROSE, ACCEPTED_CODE)) if drafter else (0.0,)
    return Prediction(
        slow=at(min(shares)),
        fast=at(max(shares)),
        accepted=(min(shares), max(shares)),
        spread=INTERVAL_PAIR_OR_DRAFTER if drafter or load.tensor_parallel > 1 else INTERVAL_ALONE,
        ceiling=at(1.0).tokens_per_s,
    )


def naive(architecture: Architecture, bits: Mapping[str, str], load: Load) -> float:
    """Return the naive speed in tok/s, for comparison: 273 GB/s over the active weights at the width in the name."""
    label = {"bf16": 2.0, "fp8": 1.0, "nvfp4": WIDTHS["nvfp4"], "int4-g32": 0.5}
    width = min(label[name] for part, name in bits.items() if part != "head")
    accepted = load.drafter.tokens_per_step if load.drafter else 1.0
    return accepted * load.tensor_parallel * 273e9 / (architecture.active * width)


def constants_of(overrides: Mapping[str, float]) -> Constants:
    """Return the constants with those of a site. Raises ValueError for an unknown name."""
    known = asdict(Constants())
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}")
    return Constants(**{**known, **{name: float(value) for name, value in overrides.items()}})
