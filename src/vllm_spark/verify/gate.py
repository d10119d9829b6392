"""The type of a gate. Each file of verify/gates defines one as `GATE`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_spark.core.types import Document
from vllm_spark.node.engine_api import CHAT, PROOFS
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict

# Returns the HTTP requests that the gate needs.
Requests = Callable[[GateRequest], Iterable[HttpRequest]]
# Judges a gate from the request, the probe with its responses, and the engine's log since its start.
Judge = Callable[[GateRequest, Probe, Sequence[str]], Iterator[Verdict]]


# Every role of a recipe.
ROLES = frozenset(PROOFS)

# Returns True if the gate is judged for this deployment.
Applies = Callable[[GateRequest], bool]


def always(request: GateRequest) -> bool:
    """Return True: the gate is judged for every deployment."""
    return True


def no_requests(request: GateRequest) -> Iterable[HttpRequest]:
    """Return nothing: the gate reads the log or the container."""
    return ()


def cases_schema(description: str, cases: Iterable[str], default: str) -> Document:
    """Return the schema of a gate whose only option, `cases`, selects some of its cases."""
    names = {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"enum": list(cases)},
        "description": default,
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "description": description,
        "properties": {"cases": names},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition that must hold before a deployment counts as serving.

    `proves` is its line in the checklist. `order` is its place among all gates. `schema` is the JSON schema of
    `gates.NAME` in a recipe; None: a recipe cannot configure it. `more_fields` are further fields of `gates`, by name.
    An `optional` gate is judged only if the recipe names it, or if the deployment has a router and `for_router` is set.
    A `cheap` gate shares the first round; every other gate has a round of its own. `condition` is the checklist's text
    for where the gate is judged. A catalogue recipe without a gate that `needs_reason_to_omit` has a comment with the
    reason. `judge_worker` judges a worker, which has no API. `applies` tells for which deployments the gate is judged,
    `roles` for which roles.
    """

    name: str
    proves: str
    order: int
    schema: Document | None
    requests: Requests
    judge: Judge
    judge_worker: Judge | None = None
    applies: Applies = always
    more_fields: Mapping[str, Document] = field(default_factory=dict)
    optional: bool = True
    for_router: bool = False
    roles: frozenset[str] = frozenset({CHAT})
    needs_reason_to_omit: bool = False
    cheap: bool = False
    condition: str = ""

    def __post_init__(self) -> None:
        for attribute in ("name", "proves"):
            if not getattr(self, attribute):
                raise ValueError(f"gate {self.name!r}: {attribute} is empty — expected: a text")
        if self.optional and self.schema is None:
            raise ValueError(f"gate {self.name}: schema is None — expected: a schema, a recipe switches it on by name")

    @property
    def judged_where(self) -> str:
        """The deployments in which this gate is judged, in words."""
        return self.condition or ("where the recipe names it" if self.optional else "every deployment")
