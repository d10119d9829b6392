"""The judgement of garbage: the gate `garbage` and the fault `garbage` of the bench read the same rules.

A NaN in a kernel ends with status 200 and a text of token 0, which is `!` in some vocabularies and invisible in
Gemma's. So there are rules for token ids beside those for a text.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

# Below these counts a share is not meaningful.
LEAST_IDS, LEAST_IDS_FOR_RATIO = 8, 64
LEAST_CHARACTERS, LEAST_CHARACTERS_FOR_RATIO, LEAST_WORDS = 20, 200, 32

MOST_ID_0_SHARE = 0.2
LEAST_UNIQUE_SHARE = 0.15
LONGEST_RUN = 12
MOST_ONE_CHARACTER_SHARE = 0.5
MOST_COMPRESSION = 6.0
LEAST_PRINTABLE_SHARE = 0.95

# Rulers of tables, headings and comments are long runs in a sound text.
RUN = re.compile(r"([^\s=_*.#~+/|-])\1+")
REPLACEMENT = "\ufffd"


def in_ids(ids: Sequence[int]) -> Iterator[str]:
    """Yield the signs of garbage in the token ids of an answer, each with the values seen."""
    unique, zeros = len(set(ids)), ids.count(0)
    if len(ids) >= LEAST_IDS:
        if unique == 1:
            yield f"all {len(ids)} tokens are id {ids[0]}"
        if zeros >= MOST_ID_0_SHARE * len(ids):
            yield f"{zeros} of {len(ids)} tokens are id 0"
    if few_different(ids):
        yield f"{len(ids)} tokens are {unique} ids, repeated"


def few_different(ids: Sequence[int]) -> bool:
    """Return True if so few of the token ids differ that they are a repetition."""
    return len(ids) >= LEAST_IDS_FOR_RATIO and len(set(ids)) <= LEAST_UNIQUE_SHARE * len(ids)


def in_text(text: str) -> Iterator[str]:
    """Yield the signs of garbage in a text, each with the values seen. An empty text is one."""
    visible = "".join(text.split())
    if not visible:
        yield "the text is empty"
        return
    run = max((match[0] for match in RUN.finditer(text)), key=len, default="")
    if len(run) >= LONGEST_RUN:
        yield f"{run[0]!r} stands {len(run)} times in a row"
    character, times = Counter(visible).most_common(1)[0]
    if len(visible) >= LEAST_CHARACTERS and times >= MOST_ONE_CHARACTER_SHARE * len(visible):
        yield f"{times} of {len(visible)} characters are {character!r}"
    raw = text.encode(errors="replace")
    if len(text) >= LEAST_CHARACTERS_FOR_RATIO and len(raw) / len(zlib.compress(raw)) >= MOST_COMPRESSION:
        yield f"{len(raw)} bytes compress to {len(zlib.compress(raw))}"
    words = text.split()
    if len(words) >= LEAST_WORDS and len(set(words)) <= LEAST_UNIQUE_SHARE * len(words):
        yield f"{len(words)} words are {len(set(words))} words, repeated"
    printable = sum(character.isprintable() and character != REPLACEMENT for character in visible)
    if printable <= LEAST_PRINTABLE_SHARE * len(visible):
        yield f"{len(visible) - printable} of {len(visible)} characters cannot be printed"
