"""The load of a step or of a server: sequences, their context, a part of a prompt, ranks, and a drafter. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing.layout import UNQUANTISED


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
    """Load of the server: tokens in the cache of each sequence, concurrent sequences, ranks, and the cache's width.

    `prompt` tokens of a prompt are computed in the same step, after the `before` tokens that are computed already.
    """

    context: int = 1024
    streams: int = 1
    tensor_parallel: int = 1
    kv_width: float = 2.0
    drafter: Drafter | None = None
    # max-num-batched-tokens, and the tokens of a prompt in this step after those that are computed already.
    batched: int = 8192
    prompt: int = 0
    before: int = 0
    eager: bool = False
    # How often other sequences use other experts: 1 for texts of their own, about 0 for one text in all of them.
    apart: float = 1.0
    # Weights of 4 bits, and of 8, are computed in 16 bits (Marlin), not by kernels of their own width.
    marlin: bool = False
    marlin_8: bool = False

    @property
    def drafted(self) -> int:
        """The drafted tokens of one sequence in one step."""
        return self.drafter.tokens if self.drafter else 0

    @property
    def decoded(self) -> int:
        """The tokens of all sequences that the model judges in one step, with the drafted ones."""
        return self.streams * (1 + self.drafted)

    @property
    def tokens(self) -> int:
        """All tokens of a step."""
        return self.decoded + self.prompt
