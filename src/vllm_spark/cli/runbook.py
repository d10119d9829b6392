"""`vllm-spark runbook`: the page of a symptom, found by its words. It reads the toolkit's own pages alone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_spark.core import near_names, paths
from vllm_spark.core.refusal import Fix, register

NO_RUNBOOK = register("no-runbook", runbook="wrong-command")

# What a word counts by its place: the name of the page, its title, its symptom (which names the refusals), the rest.
WEIGHTS = (8, 6, 3, 1)
SYMPTOM = "## Symptom\n"
LISTED = 8
# Words that nearly every page has, and that say nothing of a symptom.
COMMON = re.compile("an?|and|are|as|at|be|by|for|from|ha(s|ve)|in?|is|its?|no|not|o[fnr]|that|the(re)?|to|was|with")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("words", nargs="+", metavar="WORD", help="words of a message or symptom, or the name of a page")


def run(args: argparse.Namespace) -> int:
    """Print the page that is named or fits alone; otherwise the pages that fit, the best one first.

    Raises RefusedError if none has one of the words.
    """
    pages = {file.stem: file.read_text(encoding="utf-8") for file in sorted(paths.RUNBOOKS.glob("*.md"))}
    # A message ends with the path of its page.
    named = Path(args.words[0]).name.removesuffix(".md") if len(args.words) == 1 else ""
    words = " ".join(args.words).lower().split()
    found = [named] if named in pages else best(words, pages)
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


def best(words: Sequence[str], pages: Mapping[str, str]) -> list[str]:
    """Return the names of the pages that have the most of the words, best first. Common words count if all are.

    A page that has them together is before those that have them in better places.
    """
    telling = [word for word in words if not COMMON.fullmatch(word)] or words
    ranks = {name: _rank(telling, name, text) for name, text in pages.items()}
    most = max(found for found, _ in ranks.values())
    names = [name for name, (found, _) in ranks.items() if found == most > 0]
    together = " ".join(words)
    return sorted(names, key=lambda name: (together not in pages[name].lower(), -ranks[name][1]))


def title(page: str) -> str:
    """Return the title of a page."""
    return page.partition("\n")[0].removeprefix("# ")


def _rank(words: Sequence[str], name: str, page: str) -> tuple[int, int]:
    """Return how many of the words a page has, and the sum of their weights."""
    symptom, _, rest = page.partition(SYMPTOM)[2].partition("\n## ")
    places = [part.lower() for part in (name, title(page), symptom, rest)]
    weights = [
        next((weight for weight, place in zip(WEIGHTS, places, strict=True) if word in place), 0) for word in words
    ]
    return sum(map(bool, weights)), sum(weights)
