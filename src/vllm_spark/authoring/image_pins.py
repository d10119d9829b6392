"""The image and the engine of an import: those of the file, pinned where a digest is on record. images.yml is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_spark.authoring.launch_file import Launch
from vllm_spark.authoring.shell import UNKNOWN
from vllm_spark.core import strict_yaml, text
from vllm_spark.core.engine_version import numbers
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_flags

KNOWN = strict_yaml.load_own(Path(__file__).with_name("images.yml").read_text(encoding="utf-8"))
REFERENCE = re.compile(r"(?:docker\.io/)?([a-z0-9][a-z0-9._/:-]*?)(?::([\w][\w.-]*))?(?:@(sha256:[0-9a-f]{64}))?")
RELEASE = re.compile(r"vllm/vllm-openai:v(\d+\.\d+\.\d+)(-aarch64|-ubuntu\d+|-cu\d+)*")
# Images of another architecture than a Spark's.
FOREIGN = re.compile(r"x86_64|amd64")


def choose(
    launch: Launch, flags: Mapping[str, Any], base: Document, catalogue: Sequence[Document], left_out: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `image` and `engine`. `base` has those for a file without an image, or with one that cannot be taken over.

    An image is taken over if the file has its digest, if a recipe of the catalogue pins it, or if it is one that
    images.yml knows; without a digest `lock` has to resolve it.
    """
    shown = text.one_line(launch.image.replace(UNKNOWN, "$"))
    named, at, digest = launch.image.partition("@")
    # A name without a tag means `latest`; a name of a local build is looked up, and nothing is pinned to it.
    known_as = KNOWN["names"].get(named.removesuffix(":latest"), named)
    match = REFERENCE.fullmatch(known_as + at + digest)
    needed = [images[flags[flag]] for flag, images in KNOWN["values"].items() if str(flags.get(flag)) in images]
    if needed and (match is None or match[1] != needed[0]):
        left_out.append(
            f"image {shown or 'of vLLM'}: no release has a value of its flags; {needed[0]} has it, and is taken"
        )
        match = REFERENCE.fullmatch(needed[0])
    elif known_as != named:
        left_out.append(
            f"container {shown}: the name of a build on its owner's machine; {known_as} is what is published"
        )
    repository, tag = (match[1], match[2] or "latest") if match else ("", "")
    pins = [one for one in catalogue if one["image"]["repository"] == repository and "digest" in one["image"]]
    if match is None or FOREIGN.search(tag) or not (match[3] or repository in KNOWN["published"] or pins):
        taken = f"{base['image']['repository']}:{base['image']['tag']}"
        left_out += [f"container {shown}: the recipe has {taken}, pinned; --like RECIPE takes another"] if shown else []
        return dict(base["image"]), dict(base["engine"])
    same = [one for one in pins if (one["image"]["digest"] == match[3] if match[3] else one["image"]["tag"] == tag)]
    image: dict[str, Any] = {"repository": repository, "tag": tag}
    if match[3]:
        image |= {"digest": match[3], "seen": "in the imported file"}
    elif same:
        image |= {"digest": same[0]["image"]["digest"], "seen": f"in {same[0]['name']} of the catalogue"}
    if release := RELEASE.fullmatch(f"{repository}:{tag}"):
        return image, {"version": release[1]}
    image["published"] = {**KNOWN["other"], **KNOWN["published"].get(repository, {})}
    return image, {"version": _release_of(launch.version) or (*same, base)[0]["engine"]["version"]}


def _release_of(version: str) -> str:
    """Return the release whose flags a build has: the first with data that is not older. A build from a copy without
    tags calls itself 0.1.dev."""
    known = engine_flags.versions()
    if not re.match(r"\d+\.\d+\.\d", version) or numbers(version) < numbers(known[0]):
        return ""
    return next((one for one in known if numbers(one) >= numbers(version)), known[-1])
