"""Derived images: the build context and the name of what a recipe adds to repository@digest. Pure functions.

The name contains a hash of every input of the build. An image of that name is therefore the right one, and a change of
an input changes the name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.templates import templates
from vllm_spark.core.types import Document
from vllm_spark.node.host_layout import BUILD_DIR
from vllm_spark.recipe import image_name, wheels

NO_INDEX = register("no-index", runbook="image-build")
SECRET_IN_INDEX = register("secret-in-index", runbook="image-build")

NAME_DIGITS = 12


@dataclass(frozen=True, slots=True)
class DerivedImage:
    """One derived image. `files` is the build context (path -> content) without the downloads: the overlay, and
    `added` (path in the context -> url and sha256)."""

    recipe: str
    base: str
    files: Mapping[str, str]
    overlay: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def inputs(self) -> str:
        """Hash of every input of the build: the context's files and the overlay's URL, sha256 and folder."""
        hashed = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in self.files.items()}
        return hashlib.sha256(json.dumps([hashed, dict(self.overlay)], sort_keys=True).encode()).hexdigest()

    @property
    def downloads(self) -> list[dict[str, str]]:
        """The files that are downloaded into the folder: url, sha256 and path."""
        wanted = {**({"overlay.tar.gz": self.overlay} if self.overlay else {}), **self.added}
        return [
            {"url": one["url"], "sha256": one["sha256"], "path": f"{self.folder}/{path}"}
            for path, one in wanted.items()
        ]

    @property
    def folders(self) -> list[str]:
        """The folders of the build context."""
        return sorted(
            {self.folder, *(f"{self.folder}/{path}".rpartition("/")[0] for path in (*self.files, *self.added))}
        )

    @property
    def image(self) -> str:
        return image_name.derived_name(self.recipe, self.inputs[:NAME_DIGITS])

    @property
    def folder(self) -> str:
        """The folder of the build context on the head."""
        return f"{BUILD_DIR}/{self.recipe}-{self.inputs[:NAME_DIGITS]}"


def derived_image(document: Document, files: Mapping[str, str]) -> DerivedImage | None:
    """Return the derived image of a pinned recipe, or None if the recipe runs its image unchanged.

    `files` holds the texts of the patches: path -> content, as in Recipe.files.
    """
    derive, patches = document["image"].get("derive", {}), document.get("patches", [])
    if not derive and not patches:
        return None
    base = image_name.local_name(document["image"]["repository"], document["image"]["digest"])
    overlay = {key: derive["overlay"][key] for key in ("url", "sha256", "folder")} if "overlay" in derive else {}
    # Numbered, because the order matters and files of two folders may have the same name.
    numbered = {f"{number:02}-{patch['path'].rpartition('/')[2]}": patch for number, patch in enumerate(patches, 1)}
    # The name has the checksum, so that the Dockerfile, which is an input of the image, has it too.
    added = {f"files/{one['sha256']}": one for one in derive.get("files", ())}
    context = {
        "Dockerfile": templates()
        .get_template("Dockerfile.j2")
        .render(
            recipe=document["name"],
            base=base,
            pip=derive.get("pip"),
            python=wheels.python_of(document),
            overlay=overlay,
            added=added,
            patches=list(numbered),
        ),
        "image_steps.py": (paths.NODE / "image_build.py").read_text(encoding="utf-8"),
        **{f"patches/{name}": files[patch["path"]] for name, patch in numbered.items()},
    }
    if "pip" in derive:
        for file, lines in (("pins.txt", map(wheels.normal, derive["pip"])), ("wheels.txt", derive["wheels"])):
            context[file] = "\n".join(lines) + "\n"
    return DerivedImage(document["name"], base, context, overlay, added)


def command(image: DerivedImage, toolkit: str, pip_index: str = "") -> list[str]:
    """Return the argv of the build. It uses the host's network, whose DNS and proxies are known to work."""
    labels = {"base": image.base, "inputs": image.inputs, "recipe": image.recipe, "toolkit": toolkit}
    arguments = {"PIP_INDEX_URL": pip_index} if pip_index and "pins.txt" in image.files else {}
    if arguments and urlsplit(pip_index).scheme == "http":
        # pip rejects a host over plain HTTP unless the host is declared trusted. The inventory chose this host.
        arguments["PIP_TRUSTED_HOST"] = urlsplit(pip_index).hostname or ""
    return [
        # Without BuildKit a failed step would leave its container behind.
        *("docker", "build", "--force-rm", "--network", "host", "--tag", image.image),
        *(arg for name, value in labels.items() for arg in ("--label", f"vllm-spark.{name}={value}")),
        *(arg for name, value in arguments.items() for arg in ("--build-arg", f"{name}={value}")),
        image.folder,
    ]


def index_refusals(pip_index: str) -> Iterator[Refusal]:
    """Yield a refusal of an index that is no URL, or has a login: build arguments stay readable in the image."""
    try:
        split = urlsplit(pip_index)
    except ValueError as error:
        # It may have a login.
        yield NO_INDEX(what=f"vllm_pip_index is no URL: {error}", expected="the URL of an index", fix="correct it.")
        return
    if split.password or split.username:
        yield SECRET_IN_INDEX(
            what=f"vllm_pip_index holds a login for {split.hostname}",
            expected="an index without a login, because everyone who has the image can read it",
            fix="set vllm_pip_index to an index without a password, or put the login into the host's own proxy.",
        )
