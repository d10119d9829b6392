"""Whether an unknown name is a known one misspelled, or the name of something else. Pure.

Letters alone do not tell: MOE_FP4 is closer to MOE_INT4 than most misspellings are to what was meant. So names are
compared word by word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

# Words that turn the meaning round.
SWITCHES = {"enable", "disable", "no", "not"}
# A shorter word is another word if a letter differs: moe and mode, fp4 and int4.
LEAST_LETTERS = 4
# Letters in common of a misspelled word. cache and caching have 0.67.
ALIKE = 0.65


def same_meaning(name: str, known: str) -> bool:
    """Return True if `name` is `known` with misspelled words, other separators, or a word left out."""
    given, wanted = _words(name), _words(known)
    if "".join(given) == "".join(wanted):
        return True
    if len(given) == len(wanted):
        return all(map(_misspelled, given, wanted))
    left_out = [word for word in wanted if word not in given]
    # XPU_MLA_SPARSE is another kernel than MLA_SPARSE: of names in capitals, every word counts.
    return (
        name.islower()
        and len(left_out) == 1 < len(given) == len(wanted) - 1
        and [word for word in wanted if word in given] == given
        and not (SWITCHES & set(left_out) or _has_digit(left_out[0]))
    )


def opposite(name: str, known: Collection[str]) -> str:
    """Return the known flag enable-X for disable-X, or an empty text."""
    other = f"enable-{name.removeprefix('disable-')}"
    return other if name.startswith("disable-") and other in known else ""


def _words(name: str) -> Sequence[str]:
    return re.split(r"[-_.]", name.lower())


def _misspelled(given: str, wanted: str) -> bool:
    """Return True for one word, or for two that differ as a slip of the hand does. A digit is never a slip."""
    if given == wanted:
        return True
    if {given, wanted} & SWITCHES or _has_digit(given + wanted) or min(len(given), len(wanted)) < LEAST_LETTERS:
        return False
    return difflib.SequenceMatcher(None, given, wanted).ratio() >= ALIKE


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))
