"""Areas of the engine and its libraries (areas.yml): which part of the program an exception comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_spark.doctor import rule_files

# Where the packages begin in the path of a frame. A source tree is installed as .../vllm/vllm/ or .../vllm/.
_PACKAGES = re.compile(r".*(?:site-|dist-|/)packages/|.*/(?=vllm/)|.*/python3\.\d+/")
# The outermost frames of every start: they say nothing of the area.
_OUTER = re.compile(
    r"vllm/entrypoints/(?:cli/|\S+ (?:run_server\w*|run_headless|main|build_\w*engine_client\w*|from_\w+)$)"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the type of an exception says, in any area. Its texts are str.format templates."""

    line: re.Pattern[str]
    cause: str
    fix: str


@cache
def areas() -> tuple[dict[str, Any], ...]:
    """Load the areas. Raises KeyError or TypeError on a malformed file."""
    return tuple(rule_files.load("areas")["areas"])


@cache
def kinds() -> tuple[Kind, ...]:
    """Load the kinds. Raises KeyError, TypeError or re.error on a malformed file."""
    return tuple(
        Kind(re.compile(kind["line"]), kind["cause"], kind["fix"]) for kind in rule_files.load("areas")["kinds"]
    )


def kind_texts(area: str, line: str, frames: Sequence[str], sentence: str) -> tuple[str, str] | None:
    """Return cause and fix of an exception of an area by its type, or None if its type says nothing."""
    fields = next(entry for entry in areas() if entry["id"] == area)
    for kind in kinds() if "part" in fields else ():
        if match := kind.line.search(line):
            values = match.groupdict() | {"part": fields["part"], "package": _package(frames), "sentence": sentence}
            return kind.cause.format(**values), kind.fix.format(fix=fields["fix"])
    return None


def area_of(frames: Sequence[str]) -> str:
    """Return the id of the area of the innermost frame that has one, or an empty text. A frame is "file function"."""
    return next((_area(place) for place in _places(frames)), "")


def _package(frames: Sequence[str]) -> str:
    """Return the package of the innermost frame of an area."""
    name = next(_places(frames), "vllm/").partition("/")[0].partition(" ")[0].removesuffix(".py")
    return "vLLM" if name == "vllm" else name


def _places(frames: Sequence[str]) -> Iterator[str]:
    """Yield the frames of areas from the package's name on, the innermost one first."""
    places = (_PACKAGES.sub("", frame, count=1) for frame in reversed(frames))
    return (place for place in places if not _OUTER.match(place) and _area(place))


def area_by_words(line: str) -> str:
    """Return the id of the first area whose words are in the message of an exception, or an empty text."""
    if "KeyError" in line:  # its message is a name of the program, no sentence
        return ""
    return next((area["id"] for area in areas() if "words" in area and re.search(area["words"], line)), "")


def _area(place: str) -> str:
    return next((area for pattern, area in _prefixes() if pattern.match(place)), "")


@cache
def _prefixes() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return a pattern per prefix, the longest prefix first. A * spans a function's path and goes before all others."""
    pairs = [(path, area["id"]) for area in areas() for path in area["paths"]]
    pairs.sort(key=lambda pair: ("*" not in pair[0], -len(pair[0])))
    return tuple((_pattern(path), area) for path, area in pairs)


def _pattern(path: str) -> re.Pattern[str]:
    # A package's name alone stands for the whole package, and for a module of that name.
    end = r"(?:/|\.py|_\w*/)" if re.fullmatch(r"\w+", path) else ""
    return re.compile(r".*".join(map(re.escape, path.split("*"))) + end)
