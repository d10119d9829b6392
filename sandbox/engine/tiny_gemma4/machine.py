"""Convert the scripts to a machine whose state is two words: the last one, and the last mark.

A word with the same successor in all scripts determines that successor alone. Some words are shared and have a
successor per script: `<|tool_call>` has only one spelling, because the engine's parsers identify it by its id. There
the current mark selects the successor: the start of the script, or the last of its `marks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tiny_gemma4.script import AFTER_GREETING, END, FALLBACK, GREETED, GREETING, SCRIPTS

# Logits before the soft cap of 30: of a single successor; of each of several; the amount that the mark adds to the
# right one. The last two are below the cap, so that their sum is clearly larger.
SURE, SHARED, MARKED = 120.0, 24.0, 24.0
# Least lead of the scripted word over every other word.
LEAST_LEAD = 20.0


@dataclass(slots=True)
class Machine:
    """The tables: word -> successors; mark -> level, from 1; word -> marks under which it is preferred."""

    successors: dict[str, dict[str, None]] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    preferred: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """All scripted words."""
        return (*self.successors, END)

    def shared(self, word: str) -> bool:
        return len(self.successors.get(word, ())) > 1

    def mark(self, words: Sequence[str]) -> str:
        """Return the current mark: the one with the highest level; empty if there is none."""
        return max((word for word in words if word in self.levels), key=lambda word: self.levels[word], default="")

    def logits(self, words: Sequence[str]) -> dict[str, float]:
        """Return the logits of the next word. Words that are missing have 0."""
        last, mark = words[-1], self.mark(words)
        found = dict.fromkeys(self.words, 0.0) | FALLBACK
        for successor in self.successors.get(last, ()):
            found[successor] += SHARED if self.shared(last) else SURE
        for word, marks in self.preferred.items():
            found[word] += MARKED if mark in marks else 0.0
        if last == GREETING[-1]:
            word, more = AFTER_GREETING
            found[word] += more
        return found

    def speak(
        self,
        prompt: Sequence[str],
        most: int,
        allowed: Callable[[str, str], bool] = lambda text, word: True,
        letters: str = "",
    ) -> Iterator[str]:
        """Yield the greedy reply of at most `most` words, without the end of the turn. `allowed` is a grammar: it
        returns True if a word may follow a text. `letters` are additional words, as for the tokenizer."""
        reply: list[str] = []
        while len(reply) < most:
            logits = dict.fromkeys(letters, 0.0) | self.logits([*prompt, *reply])
            text = "".join(reply)
            word = next(word for word in sorted(logits, key=lambda word: -logits[word]) if allowed(text, word))
            if word == END:
                return
            reply.append(word)
            yield word


def build() -> Machine:
    """Return the machine of all scripts. Raises ValueError if it would not reproduce a script exactly."""
    machine = Machine()
    for chain in (GREETED, *(script.chain for script in SCRIPTS)):
        for word, successor in pairwise(chain):
            machine.successors.setdefault(word, {})[successor] = None
    for script in SCRIPTS:
        mark = script.start
        for word, successor in pairwise(script.chain):
            if word in script.marks:
                mark = word
                machine.levels[mark] = 2 + script.marks.index(mark)
            if machine.shared(word):
                machine.levels.setdefault(mark, 1)
                machine.preferred.setdefault(successor, {})[mark] = None
    for chain in (GREETED, *(script.chain for script in SCRIPTS)):
        _check(machine, chain)
    return machine


def _check(machine: Machine, chain: Sequence[str]) -> None:
    for index, successor in enumerate(chain[1:], 1):
        logits = machine.logits(chain[:index])
        lead = logits[successor] - max(value for word, value in logits.items() if word != successor)
        if lead < LEAST_LEAD:
            raise ValueError(
                f"after {chain[index - 1]!r} of {chain[0]!r} the word {successor!r} leads by {lead:g} — expected: at "
                f"least {LEAST_LEAD:g}. Fix: split the script's words in another way, or give it a mark."
            )
