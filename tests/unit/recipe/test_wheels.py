"""Lines of a requirements file: their form, what they must have of a recipe's pins, and their key in the lock file."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.recipe import lockfile, wheels

HASH = f" --hash=sha256:{'1' * 64}"
RAY, ATTRS = f"ray==2.55.1{HASH}", f"attrs==26.1.0{HASH}{HASH}"

# (lines, pins) -> whether the lines are enough
COVERED: dict[tuple[tuple[str, ...], tuple[str, ...]], bool] = {
    ((RAY, ATTRS), ("ray==2.55.1",)): True,
    ((RAY, ATTRS), ("Ray[cgraph]==2.55.1", "attrs==26.1.0")): True,
    ((f"a-b==1{HASH}",), ("a_B==1",)): True,
    ((), ("ray==2.55.1",)): False,
    ((ATTRS,), ("ray==2.55.1",)): False,
    ((RAY,), ("ray==2.55.2",)): False,
    ((RAY, "attrs==26.1.0"), ("ray==2.55.1",)): False,
    ((RAY[:-1],), ("ray==2.55.1",)): False,
    ((f"{RAY} --index-url=https://example.org",), ("ray==2.55.1",)): False,
    ((f"ray==2.55.1 --hash=md5:{'1' * 32}",), ("ray==2.55.1",)): False,
    ((f"ray>=2.55.1{HASH}",), ("ray==2.55.1",)): False,
}


@pytest.mark.parametrize("case", COVERED)
def test_each_line_needs_a_hash_and_each_pin_a_line(case: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    assert wheels.cover(*case) is COVERED[case]


def patterns(node: Any) -> list[str]:
    """Return the patterns of a schema that are about hashes of wheels."""
    if isinstance(node, dict):
        own = [node["pattern"]] if "--hash" in str(node.get("pattern", "")) else []
        return own + [found for value in node.values() for found in patterns(value)]
    return [found for value in node for found in patterns(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("file", [paths.RECIPES / "schema.json", lockfile.SCHEMA], ids=lambda file: file.name)
def test_the_schemas_have_the_same_pattern(file: Any) -> None:
    assert patterns(json.loads(file.read_text(encoding="utf-8"))) == [f"^{wheels.LINE.pattern}$"]


def test_the_key_names_all_that_the_choice_of_wheels_depends_on() -> None:
    image: dict[str, Any] = {"derive": {"pip": ["b==1", "a==2"]}}
    assert wheels.key({"image": image}) == "a==2 b==1 for Python 3.12 on linux/arm64"
    other = {"derive": {**image["derive"], "python": "3.11"}, "platforms": ["linux/amd64", "linux/arm64"]}
    assert wheels.key({"image": other}) == "a==2 b==1 for Python 3.11 on linux/amd64 linux/arm64"


def test_the_catalogue_has_the_wheels_of_its_pins() -> None:
    texts = [file.read_text(encoding="utf-8") for file in paths.RECIPES.glob("*.yml")]
    pinned = [text for text in texts if re.search(r"^    pip: ", text, re.MULTILINE)]
    assert pinned
    assert all("\n    wheels:" in text for text in pinned)
