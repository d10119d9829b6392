"""Derived images: what a recipe adds to repository@digest, as a build context and a name. Pure.

The name carries the hash of everything that decides what the image holds, so that an image of that name is the right
one, and another input is another image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllm_spark.core import paths
from vllm_spark.core.host_layout import BUILD_DIR
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.templates import templates
from vllm_spark.core.types import Document

SECRET_IN_INDEX = register("secret-in-index", runbook="image-build")


NAME_DIGITS = 12


@dataclass(frozen=True, slots=True)
class DerivedImage:
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


def derived_image(document: Document, files: Mapping[str, str]) -> DerivedImage | None:
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
        "image_steps.py": (paths.NODE / "image_build.py").read_text(encoding="utf-8"),
        **{f"patches/{name}": files[patch["path"]] for name, patch in named.items()},
    }
    if "pip" in wanted:
        context["pins.txt"] = "\n".join(wanted["pip"]) + "\n"
    return DerivedImage(document["name"], base, context, overlay)


def command(image: DerivedImage, toolkit: str, pip_index: str = "") -> list[str]:
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
        yield SECRET_IN_INDEX(
            what=f"vllm_pip_index holds a login for {split.hostname}",
            expected="an index without one, because whoever has the image can read it",
            fix="name an index without a password, or put the login into the box's own proxy.",
        )
