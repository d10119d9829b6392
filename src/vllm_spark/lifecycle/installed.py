"""The state of the toolkit on a host, as vllm_holdings reads it, and the items that can be removed. Pure.

An image belongs to the toolkit if it has the label of a derived image, or if a record, the history or a pull of this
host names it by digest. An image that also has another name stays, because it may have another use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from vllm_spark.core.units import GIB, MIB, gib
from vllm_spark.node.host_layout import BASE_LABEL, CURRENT, INPUTS_LABEL, PREVIOUS, SWAPPING
from vllm_spark.recipe import image_name

InstalledState = Mapping[str, Any]
Launch = Mapping[str, Any]


class InstalledImage(TypedDict):
    """An image in Docker. `own` is the bytes that no other image shares. `identity` is that of a derived image
    (spark_docker.identity), else empty."""

    id: str
    identity: str
    tags: list[str]
    digests: list[str]
    labels: dict[str, str]
    own: int


# The launches that a deployment needs: the current one and those that a rollback can restore.
KEPT = (CURRENT, PREVIOUS, SWAPPING)
# Kinds that only tidy up after the others. Reports leave them out.
QUIET = ("reload", "empty", "trace")


@dataclass(frozen=True, slots=True)
class Item:
    """An item that vllm_remove removes. `names` are the names of an image, in order of removal. `bytes` is the disk
    space that the removal frees."""

    kind: str  # unit, container, image, volume, path, shared; those of QUIET tidy up
    name: str
    why: str = ""
    bytes: int = 0
    names: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """Return the item as a line for an operator."""
        amount = f", {size(self.bytes)}" if self.bytes else ""
        return f"{self.kind} {self.name}{amount}{f': {self.why}' if self.why else ''}"


def size(amount: float) -> str:
    """Return bytes as text: GiB from 0.1 GiB, otherwise MiB."""
    return gib(amount) if amount >= GIB / 10 else f"{amount / MIB:.1f} MiB"


def lacks_docker(state: InstalledState) -> bool:
    """Return True if Docker does not answer on a host where it knows what belongs to the toolkit. A host that only has
    an edge may have no Docker."""
    return bool(state["docker"]["error"] and (state["deployments"] or state["history"] or state["pulled"]))


def launches(state: InstalledState, where: Iterable[str] = (), names: Iterable[str] | None = None) -> Iterator[Launch]:
    """Yield the launches of the deployments in `names` (None: all) at the places in `where` (empty: all)."""
    places = tuple(where)
    for name, deployment in state["deployments"].items():
        if names is None or name in names:
            yield from (launch for place, launch in deployment["launches"].items() if not places or place in places)


def references(record: Mapping[str, Any]) -> set[str]:
    """Return the images that a record or a history entry names: the pulled one by digest, and the derived one."""
    names = set()
    if record.get("image") and record.get("digest"):
        names.add(image_name.local_name(record["image"].rpartition(":")[0], record["digest"]))
    if record.get("derived"):
        names.add(record["derived"]["image"])
    return names


def image_of(record: Mapping[str, Any]) -> str:
    """Return the image that the launch of a record runs; empty if the record has none."""
    derived: Mapping[str, str] = record.get("derived") or {}
    return derived.get("image") or next(iter(references(record)), "")


def find(state: InstalledState, reference: str) -> InstalledImage | None:
    """Return the image with this name or digest, or None."""
    images = state["docker"]["images"]
    return next((image for image in images if reference in {*image["tags"], *image["digests"]}), None)


def referenced_images(state: InstalledState, kept: Iterable[Launch]) -> set[str]:
    """Return the names of the images that these launches need. The base of a derived image is included: Docker does not
    remove it, and the next build needs it."""
    return with_bases(state, {name for launch in kept for name in references(launch["record"])})


def with_bases(state: InstalledState, named: set[str]) -> set[str]:
    """Return these names and the base images of the derived images among them."""
    bases = {image["labels"].get(BASE_LABEL, "") for image in state["docker"]["images"] if {*image["tags"]} & named}
    return named | (bases - {""})


def known_images(state: InstalledState) -> set[str]:
    """Return the names of all images that records, history and pulls of this host name, and the IDs of all derived
    images."""
    named = {name for launch in launches(state) for name in references(launch["record"])}
    named |= _history(state) | {*state["pulled"]}
    named |= {image["id"] for image in state["docker"]["images"] if INPUTS_LABEL in image["labels"]}
    return named | {image["labels"].get(BASE_LABEL, "") for image in state["docker"]["images"]} - {""}


def waiting_images(state: InstalledState) -> set[str]:
    """Return the pulled images that have not run yet."""
    return {*state["pulled"]} - _history(state)


def _history(state: InstalledState) -> set[str]:
    return {name for entries in state["history"].values() for entry in entries for name in references(entry)}


def ours(image: InstalledImage, known: Iterable[str]) -> bool:
    """Return True if the toolkit pulled or built this image."""
    return bool({image["id"], *image["tags"], *image["digests"]} & {*known})


def names_of_others(image: InstalledImage, known: Iterable[str]) -> list[str]:
    """Return the names of an image that the toolkit did not set."""
    own = {*known}
    return [name for name in _names(image) if name not in own and not image_name.is_local(name)]


def image_items(
    state: InstalledState, known: set[str], referenced: set[str], going: set[str]
) -> tuple[list[Item], list[str]]:
    """Return (the images of `known` that are not in `referenced`, a line for each one that stays with its reason).

    Derived images come first, because the others are their bases. `going` are the containers to be removed as well."""
    items, left = [], []
    for image in state["docker"]["images"]:
        if not ours(image, known) or {*image["tags"], *image["digests"]} & referenced:
            continue
        name = next(iter([*image["tags"], *image["digests"]]), image["id"])
        users = [c["name"] for c in state["docker"]["containers"] if c["image_id"] == image["id"]]
        if others := names_of_others(image, known):
            left.append(f"image {name} stays: it has a name that is not of vllm-spark, {', '.join(others)}")
        elif used_by := [user for user in users if user not in going]:
            left.append(f"image {name} stays: container {', '.join(used_by)} is made of it")
        else:
            derived = INPUTS_LABEL in image["labels"]
            why = f"derived from {image['labels'].get(BASE_LABEL, 'an image')}" if derived else "pulled"
            items.append(Item("image", image["id"], f"{name}, {why}", image["own"], _names(image)))
    return sorted(items, key=lambda item: not item.why.partition(", ")[2].startswith("derived")), left


def _names(image: InstalledImage) -> tuple[str, ...]:
    """Return all names, digests last: Docker drops a digest with the last tag of its repository."""
    return (*image["tags"], *image["digests"])


def format_items(items: Sequence[Item], left: Sequence[str], verb: str) -> list[str]:
    """Return the lines that an operator reads before the removal."""
    reported = [item for item in items if item.kind not in QUIET]
    if not reported:
        return ["nothing to take away", *left]
    total = sum(item.bytes for item in reported)
    or_more = " or more" if any(item.kind == "image" for item in reported) else ""
    end = f"{len(reported)} in all, {size(total)}{or_more}"
    return [*(f"{verb} {item.line()}" for item in reported), f"{verb} {end}", *left]
