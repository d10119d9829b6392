"""The argv of a launch in parts, for a comparison with a recipe or with what a report ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec


@dataclass(frozen=True, slots=True)
class Launch:
    """An argv in parts: options of `docker run`, the image, arguments of `vllm serve` (none on a worker of Ray)."""

    options: Sequence[str]
    image: str
    serve: Sequence[str]

    @classmethod
    def of(cls, spec: Spec) -> Launch:
        argv = launch.argv(spec)
        # `docker run` is preceded by the supervisor, which names the image too. The labels are the last options.
        run = argv.index("run")
        end = max(index for index, word in enumerate(argv) if word == "--label") + 2
        rest = argv[end + 1 :]
        serve = rest[rest.index("serve") + 1 :] if "serve" in rest else []
        return cls(argv[run + 1 : end], argv[end], serve)

    def values(self, option: str) -> list[str]:
        """Return the values of a repeatable option of `docker run`."""
        return [value for name, value in pairwise(self.options) if name == option]

    @property
    def env(self) -> dict[str, str]:
        return dict(value.split("=", 1) for value in self.values("--env"))

    @property
    def flags(self) -> dict[str, list[str]]:
        """The flags of `vllm serve`, without dashes, and their values. The first argument is the model."""
        flags: dict[str, list[str]] = {}
        for word in self.serve[1:]:
            if word.startswith("--"):
                flags[word.removeprefix("--")] = values = []
            else:
                values.append(word)
        return flags
