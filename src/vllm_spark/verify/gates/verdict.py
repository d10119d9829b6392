"""What a gate says: the names of the gates, and one judgement."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.refusal import message

READY, IDENTITY, LOG, FABRIC, FAILOVER, ANSWER = "ready", "identity", "log", "fabric", "failover", "answer"
GARBAGE, STRUCTURED, TOOLS, VISION = "garbage", "structured", "tools", "vision"
REASONING, PROBE = "reasoning", "probe"

# In the order in which they are judged: what each proves, for the checklist of docs/reference.
PROVES = {
    READY: "the engine gives a token; on a worker: its container runs and its head serves",
    IDENTITY: "model, commit, version, image, launch and context length are the recipe's; an unknown name gets 404",
    LOG: "the engine chose the kernels that the recipe was tried with, by its own field and not by the candidates",
    FABRIC: "NCCL uses the network that the recipe wants between two Sparks",
    FAILOVER: "this engine answers, also through a router: tokenizer, unknown model, its own count of requests",
    ANSWER: "questions with one right answer get it",
    GARBAGE: "a longer text is none of NaN: token ids, log-probabilities and text; whole and streamed",
    STRUCTURED: "a JSON schema and a choice are enforced; whole and streamed",
    TOOLS: "tools are called with the right arguments, byte for byte, and no tag leaks; whole and streamed",
    VISION: "two pictures of two colours are told apart",
    REASONING: "thinking has its own field, the answer another, and no tag is in either; whole and streamed",
    PROBE: "as many of seven questions that need a thought are right as a sound run reached",
}

MARKS = {True: "✓", False: "✗", None: "—"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate's judgement. `ok` None: it could not be judged, and `said` tells why."""

    gate: str
    id: str
    ok: bool | None
    said: str
    expected: str = ""
    fix: str = ""
    runbook: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line of a run or a report: mark, gate, which, and what was seen."""
        return f"{MARKS[self.ok]} {self.gate} {self.id}: {self}"

    def __str__(self) -> str:
        return message(self.said, self.expected, self.fix, runbook=self.runbook) if self.ok is False else self.said


def miss(gate: str, name: str, what: str, expected: str, fix: str, *, runbook: str) -> Verdict:  # noqa: PLR0913
    """A gate that does not hold. `runbook` is a file's stem."""
    return Verdict(gate, name, False, what, expected, fix, runbook)
