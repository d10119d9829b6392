"""The known names that an unknown one may mean. Pure.

Of names that people choose, the nearest one is a help (`close_names`). Of the engine's names, letters alone do not tell
whether one is misspelled or the name of something else: MOE_FP4 is closer to MOE_INT4 than most misspellings are to
what was meant. So these are compared word by word (`meant`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

# Words that turn the meaning round.
SWITCHES = {"enable", "disable", "no", "not"}
# A shorter word is another word if a letter differs: moe and mode, fp4 and int4.
LEAST_LETTERS = 4
# Letters in common of a misspelled word. cache and caching have 0.67.
ALIKE = 0.65
# Names with less in common are not taken for a misspelling. Of so many, the first with the same meaning is named.
CLOSE, CANDIDATES = 0.7, 5
CLOSE_BEGIN = 0.8


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that `name` may mean: those that begin with it, else the one that is most similar, else those of
    which it is a misspelled beginning, else none.

    A name with which all others begin stands for them."""
    names = list(known)
    begun = [each for each in names if name and each.startswith(name)]
    shortest = min(begun, key=len, default="")
    if begun and all(each.startswith(shortest) for each in begun):
        return [shortest]
    begins = dict.fromkeys(each[: len(name)] for each in names)
    near = difflib.get_close_matches(name, begins, n=1, cutoff=CLOSE_BEGIN)
    return begun or difflib.get_close_matches(name, names, n=1) or [each for each in names if each[: len(name)] in near]


def choice(names: Iterable[str]) -> str:
    """Return the end of a fix: the name to use, or the names to choose from."""
    quoted_names = [repr(name) for name in names]
    return f"name {quoted_names[0]}." if len(quoted_names) == 1 else f"name one of {', '.join(quoted_names)}."


def meant(name: str, known: Collection[str]) -> str:
    """Return the known name of the engine that was meant, with `: false` behind an opposite; empty if none was."""
    close = difflib.get_close_matches(name, known, n=CANDIDATES, cutoff=CLOSE)
    same = next((each for each in close if same_meaning(name, each)), "")
    opposite = f"enable-{name.removeprefix('disable-')}"
    if not same and name.startswith("disable-") and opposite in known:
        return f"{opposite}: false, which means the same"
    return same


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
