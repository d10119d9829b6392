"""Derived images: what a recipe adds to repository@digest, as a build context and a name. Pure.

The name carries the hash of everything that decides what the image holds, so that an image of that name is the right
one, and another input is another image.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from vllm_spark import paths, progress
from vllm_spark.refusal import Refusal, message
from vllm_spark.templating import templates

Document = Mapping[str, Any]

# On the head: what the image was built from, and the builder's log.
BUILD_DIR = "/var/lib/vllm-spark/build"
NAME_DIGITS = 12
LINE_WIDTH = 80

# A step's own last words, between what the builder puts before a line and the colour it ends one with.
REFUSED = re.compile(r"vllm-spark refuses: ([^\x1b\n]*)")
NOISE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Derived:
    """One derived image. `files` is the build context but for the overlay, which is fetched: path -> content."""

    recipe: str
    base: str
    files: Mapping[str, str]
    overlay: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> str:
        """Hash of what decides the image's content: the context, and what is fetched into it."""
        hashed = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in self.files.items()}
        return hashlib.sha256(json.dumps([hashed, dict(self.overlay)], sort_keys=True).encode()).hexdigest()

    @property
    def image(self) -> str:
        return f"vllm-spark/{self.recipe}:{self.inputs[:NAME_DIGITS]}"

    @property
    def folder(self) -> str:
        """The build context on the head."""
        return f"{BUILD_DIR}/{self.recipe}-{self.inputs[:NAME_DIGITS]}"


def derived(document: Document, files: Mapping[str, str]) -> Derived | None:
    """The derived image of a pinned recipe, or None where it runs its image as it is. `files` holds the patches'
    texts by path, as recipe.read gives them."""
    wanted, patches = document["image"].get("derive", {}), document.get("patches", [])
    if not wanted and not patches:
        return None
    base = f"{document['image']['repository']}@{document['image']['digest']}"
    overlay = {key: wanted["overlay"][key] for key in ("url", "sha256", "folder")} if "overlay" in wanted else {}
    # Numbered, because order counts and two folders may hold a file of one name.
    named = {f"{number:02}-{patch['path'].rpartition('/')[2]}": patch for number, patch in enumerate(patches, 1)}
    context = {
        "Dockerfile": templates()
        .get_template("Dockerfile.j2")
        .render(recipe=document["name"], base=base, pip=wanted.get("pip"), overlay=overlay, patches=list(named)),
        "image_steps.py": (paths.BOX / "image_steps.py").read_text(encoding="utf-8"),
        **{f"patches/{name}": files[patch["path"]] for name, patch in named.items()},
    }
    if "pip" in wanted:
        context["pins.txt"] = "\n".join(wanted["pip"]) + "\n"
    return Derived(document["name"], base, context, overlay)


def command(image: Derived, toolkit: str, pip_index: str = "") -> list[str]:
    """The build. It takes the box's own network, because that is the one whose names and proxies are known to work."""
    labels = {"base": image.base, "inputs": image.inputs, "recipe": image.recipe, "toolkit": toolkit}
    arguments = {"PIP_INDEX_URL": pip_index} if pip_index and "pins.txt" in image.files else {}
    if arguments and urlsplit(pip_index).scheme == "http":
        # pip takes nothing from a host over plain HTTP unless it is told that it may; the inventory has named it.
        arguments["PIP_TRUSTED_HOST"] = urlsplit(pip_index).hostname or ""
    return [
        # Without BuildKit a step that fails would leave its container.
        *("docker", "build", "--force-rm", "--network", "host", "--tag", image.image),
        *(word for name, value in labels.items() for word in ("--label", f"vllm-spark.{name}={value}")),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
        image.folder,
    ]


def index_refusals(pip_index: str) -> Iterator[Refusal]:
    """A build's arguments stay readable in the image's history."""
    split = urlsplit(pip_index)
    if split.password or split.username:
        yield Refusal(
            id="secret-in-index",
            what=f"vllm_pip_index holds a login for {split.hostname}",
            expected="an index without one, because whoever has the image can read it",
            fix="name an index without a password, or put the login into the box's own proxy.",
            runbook="image-build",
        )


def headline(line: str, elapsed_s: float, deadline_s: float) -> str:
    """What an operator reads while an image is built; `line` is the last of the log."""
    shown = " ".join(NOISE.sub("", line).split())[:LINE_WIDTH]
    return f"building ({shown or 'starting'})  {progress.clock(elapsed_s)} of {progress.clock(deadline_s)}"


def overlay_failure(overlay: Mapping[str, str], said: str) -> str:
    """Why an overlay could not be fetched; `said` is get_url's own message, which has the checksum seen."""
    return message(
        f"the overlay {overlay['url']} was not taken: {' '.join(said.split())}",
        f"an archive with sha256 {overlay['sha256']}",
        "correct image.derive.overlay of the recipe, if its archive changed on purpose; nothing was built.",
        runbook="image-overlay",
    )


def transfer_failure(transfer: Mapping[str, Any], said: str) -> str:
    """Why the worker did not get the head's image; `said` is what the step that failed said."""
    return message(
        f"{transfer['image']} did not go from {transfer['head_host']} to its worker: {' '.join(said.split())}",
        f"a registry on {transfer['head']} port {transfer['port']}, reached over the fabric while the transfer takes",
        "see what the runbook checks, then deploy again: layers that arrived are kept.",
        runbook="image-transfer",
    )


def failure(image: str, lines: Sequence[str], log: str) -> str:
    """Why a build failed, from the end of its log: a step's own reason, else the builder's last words."""
    text = NOISE.sub("", "\n".join(lines))
    refused = REFUSED.findall(text)
    said = refused[-1].strip() if refused else " ".join(text.split())[-300:] or "the builder ended without a word"
    if refused and said.startswith("patch "):
        return message(
            f"building {image} stopped: {said}",
            "a patch that applies to the base image without changes, or is there already",
            f"make the patch anew for this base, or leave it out of the recipe; the whole log is {log}.",
            runbook="patch-does-not-apply",
        )
    return message(
        f"building {image} stopped: {said}",
        "every step of the recipe's image.derive to be possible on this base",
        f"correct image.derive of the recipe; the whole log is {log}.",
        runbook="image-build",
    )
