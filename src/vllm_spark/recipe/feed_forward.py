"""The parts of a model that work on one token: MLPs, experts, and embeddings per layer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# A gated MLP has three matrices: gate, up and down. A plain one has up and down.
GATED = 3


@dataclass(frozen=True, slots=True)
class Mlp:
    """`layers` MLPs of one width."""

    layers: int
    width: int
    matrices: int = GATED

    def weights(self, hidden: int) -> int:
        """Return the weights of all of them."""
        return self.layers * self.matrices * hidden * self.width

    def adapter(self, hidden: int) -> int:
        """Return the weights of a LoRA adapter of rank 1 on all of them."""
        return self.layers * self.matrices * (hidden + self.width)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of `layers` layers: `count` per layer, of which each token uses `per_token`.

    `shared_width` is the width of the expert that every token uses. With a latent the routed experts work on `latent`
    numbers, and each layer projects to it and back (Nemotron-3). `used` is the share of the experts among which the
    router is even on natural text; 0 is not measured.
    """

    layers: int
    count: int
    per_token: int
    width: int
    matrices: int = GATED
    shared_width: int = 0
    latent: int = 0
    used: float = 0.0

    def expert(self, hidden: int) -> int:
        """Return the weights of one expert of one layer."""
        return self.matrices * (self.latent or hidden) * self.width

    def adapter(self, hidden: int) -> int:
        """Return the weights of a LoRA adapter of rank 1 on every expert."""
        routed = self.count * ((self.latent or hidden) + self.width)
        shared = hidden + self.shared_width if self.shared_width else 0
        return self.layers * self.matrices * (routed + shared)

    def weights(self, hidden: int) -> dict[str, int]:
        """Return part -> weights of all layers."""
        return {
            "experts": self.layers * self.count * self.expert(hidden),
            "router": self.layers * self.count * hidden,
            "shared": self.layers * self.matrices * hidden * self.shared_width,
            "latent": self.layers * 2 * hidden * self.latent,
        }


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """An embedding of `size` numbers for each layer (Gemma 4 E2B and E4B). A step looks up a row of its table."""

    size: int
    vocabulary: int

    def table_weights(self, layers: int) -> int:
        """Return the weights of the table."""
        return self.vocabulary * layers * self.size

    def read_weights(self, hidden: int, layers: int) -> int:
        """Return the weights that a step reads: the model's projection, and each layer's gate and projection."""
        return 3 * hidden * layers * self.size
