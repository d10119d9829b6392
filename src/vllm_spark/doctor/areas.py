"""Areas of the engine and its libraries (areas.yml): which part of the program an exception comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import yaml

# Where the packages begin in the path of a frame. A source tree is installed as .../vllm/vllm/ or .../vllm/.
_PACKAGES = re.compile(r".*(?:site-|dist-|/)packages/|.*/(?=vllm/)|.*/python3\.\d+/")
# The outermost frames of every start: they say nothing of the area.
_OUTER = re.compile(
    r"vllm/entrypoints/(?:cli/|\S+ (?:run_server\w*|run_headless|main|build_\w*engine_client\w*|from_\w+)$)"
)


@cache
def areas() -> tuple[dict[str, Any], ...]:
    """Load the areas. Raises KeyError or TypeError on a malformed file."""
    text = resources.files("vllm_spark.doctor").joinpath("areas.yml").read_text(encoding="utf-8")
    return tuple(yaml.safe_load(text)["areas"])


def area_of(frames: Sequence[str]) -> str:
    """Return the id of the area of the innermost frame that has one, or an empty text. A frame is "file function"."""
    places = (_PACKAGES.sub("", frame, count=1) for frame in reversed(frames))
    return next(filter(None, (_area(place) for place in places if not _OUTER.match(place))), "")


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
