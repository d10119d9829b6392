"""The wheels of a derived image: lines of a requirements file, `NAME==VERSION --hash=sha256:…`. Pure functions.

They are the packages of `image.derive.pip` and all that these need, for the image's Python and the recipe's platforms.
The build installs those that the base image lacks, and no file with another checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vllm_spark.core.platforms import DEFAULT_PLATFORMS
from vllm_spark.core.types import Document

# The Python of vLLM's images.
PYTHON = "3.12"

# recipes/schema.json and recipe/lockfile.schema.json have the same pattern.
LINE = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][A-Za-z0-9.+!]*( --hash=sha256:[0-9a-f]{64})+")


def python_of(document: Document) -> str:
    """Return the version of Python in a recipe's image, such as 3.12."""
    return str(document["image"].get("derive", {}).get("python", PYTHON))


def key(document: Document) -> str:
    """Return the key of a recipe's packages in the lock file."""
    image = document["image"]
    pins, platforms = " ".join(sorted(image["derive"]["pip"])), " ".join(image.get("platforms", DEFAULT_PLATFORMS))
    return f"{pins} for Python {python_of(document)} on {platforms}"


def normal(pin: str) -> str:
    """Return NAME==VERSION of a pin without its extras, the name normalized (PEP 503)."""
    name, _, version = pin.partition("==")
    return f"{re.sub('[-_.]+', '-', name.partition('[')[0]).lower()}=={version}"


def cover(lines: Sequence[str], pins: Iterable[str]) -> bool:
    """Return True if each line has a hash, and if each pin has a line."""
    named = {line.partition(" ")[0] for line in lines}
    return all(map(LINE.fullmatch, lines)) and all(normal(pin) in named for pin in pins)
