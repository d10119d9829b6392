"""What the edge's map says of a key: PERSON/RIGHT/CLASS/TOKENS, without empty fields at the end, as `ada`, `ada/switch`
or `ci//batch/1000000`. HAProxy reads a field by its number (templates/haproxy.cfg.j2).

plugins/module_utils/spark_edge_key.py is a link to this file. Standard library alone.
"""

from __future__ import annotations

from dataclasses import dataclass

SEPARATOR = "/"
# The right to start a model by a request, and the class of keys that leave the engine to persons. Other keys are of the
# class `interactive`, which the map does not name.
MAY_SWITCH, BATCH, INTERACTIVE = "switch", "batch", "interactive"
CLASSES = (INTERACTIVE, BATCH)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key's person, whether its requests may start a model, its class, and its tokens a day; 0 without a quota."""

    person: str
    may_switch: bool = False
    batch: bool = False
    tokens_a_day: int = 0

    def __str__(self) -> str:
        right, class_ = self.may_switch * MAY_SWITCH, self.batch * BATCH
        fields = (self.person, right, class_, str(self.tokens_a_day or ""))
        return SEPARATOR.join(fields).rstrip(SEPARATOR)

    @property
    def has_more(self) -> bool:
        """True for a key of which the map says more than its person."""
        return str(self) != self.person

    @property
    def shown(self) -> str:
        """The person, and in brackets what the key has beyond one that may only ask."""
        words = ("may switch" * self.may_switch, self.batch * BATCH)
        quota = f"{self.tokens_a_day} tokens a day" if self.tokens_a_day else ""
        more = ", ".join(word for word in (*words, quota) if word)
        return f"{self.person} ({more})" if more else self.person


def parse(text: str) -> KeyEntry:
    """Return an entry of the map."""
    person, right, class_, tokens = (*text.split(SEPARATOR), "", "", "")[:4]
    quota = int(tokens) if tokens.isascii() and tokens.isdigit() else 0
    return KeyEntry(person, right == MAY_SWITCH, class_ == BATCH, quota)


def persons(entries: dict[str, str]) -> list[str]:
    """Return the persons of a map: hash of a key -> entry."""
    return sorted({parse(entry).person for entry in entries.values()})
