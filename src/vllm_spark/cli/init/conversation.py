"""Questions to the owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conversation:
    """The terminal. A silent one takes every default."""

    silent: bool

    def ask(self, question: str, default: str = "") -> str:
        """Return the answer, or the default if it is empty. Without a default the question comes again."""
        if self.silent:
            return default
        while not (answer := input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default):
            pass
        return answer

    def confirms(self, question: str) -> bool:
        """Return True for a yes. A silent conversation confirms nothing."""
        return not self.silent and self.ask(f"{question} (yes, no)", "yes") == "yes"

    def tell(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)
