"""`vllm-spark runbook`: the page of a message or symptom. It reads the toolkit's own pages alone.

A message of the engine has the page that the doctor names, because both read the same rules. Words are searched in the
runbooks and in the pages of operations: their titles, symptoms and bodies.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from vllm_spark.core import near_names, paths
from vllm_spark.core.refusal import Fix, register
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import UNRECOGNISED, Finding
from vllm_spark.doctor.log import Log

NO_RUNBOOK = register("no-runbook", runbook="wrong-command")

# What a word counts by its place: the name of the page, its title, its symptom (which names the refusals), the rest.
WEIGHTS = (8, 6, 3, 1)
PER_WORD = 3  # what a page counts for each word that it has, beside its weight
SYMPTOM = "## Symptom\n"
LISTED = 8
MESSAGE_WORDS = 4
STEM = 5  # letters of a word that no page has as it is
# Words that nearly every page has, and that say nothing of a symptom.
COMMON = re.compile("an?|and|are|as|at|be|by|for|from|ha(s|ve)|in?|is|its?|no|not|o[fnr]|that|the(re)?|to|was|with")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("words", nargs="+", metavar="WORD", help="words of a message or symptom, or the name of a page")


def run(args: argparse.Namespace) -> int:
    """Print the page that is named, that the doctor names for a message, or that fits alone; otherwise the pages that
    fit, the best one first.

    Raises RefusedError if none has one of the words.
    """
    pages = all_pages()
    message = " ".join(args.words)
    if finding := diagnosed(message):
        print(f"{finding.cause}\nFix: {finding.fix}\n")
    # A message ends with the path of its page.
    named = [finding.runbook.removesuffix(".md")] if finding else named_page(args.words[-1], pages)
    found = named or best(message.lower().split(), pages)
    if not found:
        close = near_names.close_names(args.words[0], pages)
        raise NO_RUNBOOK.error(
            what=f"no page has {' '.join(args.words)!r}",
            expected="a word of a message, or the name of a page",
            fix=Fix(f"vllm-spark runbook {close[0]}") if close else "name other words of the message.",
        )
    if len(found) == 1:
        print(pages[found[0]], end="")
        return 0
    width = max(map(len, found[:LISTED]))
    for name in found[:LISTED]:
        print(f"{name:{width}}  {title(pages[name])}")
    print(f"Next: vllm-spark runbook {found[0]}")
    return 0


def all_pages() -> dict[str, str]:
    """Return the texts of the runbooks by their names, and of the pages of operations as operations/NAME."""
    files = {file.stem: file for file in sorted(paths.RUNBOOKS.glob("*.md"))}
    files |= {f"operations/{file.stem}": file for file in sorted((paths.RUNBOOKS.parent / "operations").glob("*.md"))}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


def named_page(word: str, pages: Mapping[str, str]) -> list[str]:
    """Return the page that a word names by its name or path, or none."""
    path = PurePath(word.removesuffix("."))
    names = ("/".join(path.with_suffix("").parts[-2:]), path.name.removesuffix(".md"))
    return [name for name in names if name in pages][:1]


def diagnosed(message: str) -> Finding | None:
    """Return the doctor's finding of a message, or None if it knows none. A few words are no message."""
    if len(message.split()) < MESSAGE_WORDS and ": " not in message:
        return None
    log = Log()
    log.read(f"{message}\n")
    return next((found for found in judge([log]).findings if found.signature != UNRECOGNISED), None)


def best(words: Sequence[str], pages: Mapping[str, str]) -> list[str]:
    """Return the names of the pages that have any of the words, best first. Common words count if all are.

    A page that has them together is before those that have them in better places.
    """
    telling = [word for word in words if not COMMON.fullmatch(word)] or words
    whole = "\n".join(pages.values()).lower()
    singular = [word.removesuffix("s") if len(word) > STEM else word for word in telling]
    telling = [word if _pattern(word).search(whole) else word[:STEM] for word in singular]
    ranks = {name: _rank(telling, name, text) for name, text in pages.items()}
    names = [name for name, rank in ranks.items() if rank]
    together = _pattern(" ".join(words))
    return sorted(names, key=lambda name: (not together.search(f"{name}\n{pages[name]}".lower()), -ranks[name]))


def _pattern(word: str) -> re.Pattern[str]:
    """Return a pattern for a word at the beginning of one of a page; a short word is a whole one."""
    return re.compile(rf"(?<![a-z0-9]){re.escape(word)}" + (r"(?![a-z0-9])" if len(word) < STEM else ""))


def title(page: str) -> str:
    """Return the title of a page."""
    return page.partition("\n")[0].removeprefix("# ")


def _rank(words: Sequence[str], name: str, page: str) -> int:
    """Return what a page counts for words: their weights, and more for each word that it has; 0 without any."""
    symptom, _, rest = page.partition(SYMPTOM)[2].partition("\n## ")
    rest = rest or page  # a page of operations has no symptom
    places = [part.lower() for part in (name, title(page), symptom, rest)]
    weights = [
        next((weight for weight, place in zip(WEIGHTS, places, strict=True) if _pattern(word).search(place)), 0)
        for word in words
    ]
    return sum(weights) + PER_WORD * sum(map(bool, weights))
