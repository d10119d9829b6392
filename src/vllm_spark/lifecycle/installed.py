"""What the toolkit has on a box, as vllm_holdings reads it, and what can be taken away from it. Pure.

An image is the toolkit's where it has the label of a derived one, or where a record, the history or a pull of this box
names it by digest. One that somebody has given a name of his own is left alone: he may want it for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark.core.ports import LOOPBACK, REGISTRY_PORT
from vllm_spark.core.units import GIB, MIB, gib

InstalledState = Mapping[str, Any]
Launch = Mapping[str, Any]

# Of a deployment's folder: what runs and what ran before it, which are never taken away while it is there.
KEPT = ("current", "previous", "swapping")

DERIVED_LABEL, BASE_LABEL = "vllm-spark.inputs", "vllm-spark.base"
# The names that the toolkit itself gives: a derived image, and one on its way to the other Spark.
DERIVED_NAME = "vllm-spark/"
ON_ITS_WAY = f"{LOOPBACK}:{REGISTRY_PORT}/"


# Steps that only tidy up after the others: nothing to tell an operator.
QUIET = ("reload", "empty")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to take away, as vllm_remove does it. `names` are an image's, one after the other; `bytes` what is
    free then."""

    kind: str  # unit, container, image, volume, path, rules; reload and empty tidy up
    name: str
    why: str = ""
    bytes: int = 0
    names: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """What an operator reads."""
        shown = f", {size(self.bytes)}" if self.bytes else ""
        return f"{self.kind} {self.name}{shown}{f': {self.why}' if self.why else ''}"


def size(amount: float) -> str:
    """Bytes as an operator reads them; most of what is no image is small."""
    return gib(amount) if amount >= GIB / 10 else f"{amount / MIB:.1f} MiB"


def launches(held: InstalledState, where: Iterable[str] = (), names: Iterable[str] | None = None) -> Iterator[Launch]:
    """The launches of the deployments that are named (None: all), of those places (none: all)."""
    wanted = tuple(where)
    for name, deployment in held["deployments"].items():
        if names is None or name in names:
            yield from (found for place, found in deployment["launches"].items() if not wanted or place in wanted)


def references(record: Mapping[str, Any]) -> set[str]:
    """The images that a record or an entry of the history names: by digest what was pulled, and what was derived."""
    found = set()
    if record.get("image") and record.get("digest"):
        found.add(f"{record['image'].rpartition(':')[0]}@{record['digest']}")
    if record.get("derived"):
        found.add(record["derived"]["image"])
    return found


def image_of(record: Mapping[str, Any]) -> str:
    """What `docker run` of a record's launch was given."""
    derived: Mapping[str, str] = record.get("derived") or {}
    return derived.get("image") or next(iter(references(record)), "")


def find(held: InstalledState, reference: str) -> Mapping[str, Any] | None:
    """The image of that name, or None."""
    return next((image for image in held["docker"]["images"] if reference in {*image["tags"], *image["digests"]}), None)


def wanted_images(held: InstalledState, kept: Iterable[Launch]) -> set[str]:
    """The names of the images that these launches need. The base of a derived one is among them: Docker does not
    remove it, and the next one is made of it."""
    return with_bases(held, {name for launch in kept for name in references(launch["record"])})


def with_bases(held: InstalledState, named: set[str]) -> set[str]:
    """These names, and those of the images that the derived ones among them are made of."""
    bases = {image["labels"].get(BASE_LABEL, "") for image in held["docker"]["images"] if {*image["tags"]} & named}
    return named | (bases - {""})


def known_images(held: InstalledState) -> set[str]:
    """The names of all images that the toolkit has ever brought here, as far as this box remembers, and the IDs of all
    that it has derived."""
    named = {name for launch in launches(held) for name in references(launch["record"])}
    named |= _history(held) | {*held["pulled"]}
    named |= {image["id"] for image in held["docker"]["images"] if DERIVED_LABEL in image["labels"]}
    return named | {image["labels"].get(BASE_LABEL, "") for image in held["docker"]["images"]} - {""}


def waiting_images(held: InstalledState) -> set[str]:
    """What a pull has brought for a deployment whose turn has not come."""
    return {*held["pulled"]} - _history(held)


def _history(held: InstalledState) -> set[str]:
    return {name for entries in held["history"].values() for entry in entries for name in references(entry)}


def ours(image: Mapping[str, Any], known: Iterable[str]) -> bool:
    """Has the toolkit brought this image?"""
    return bool({image["id"], *image["tags"], *image["digests"]} & {*known})


def names_of_others(image: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Names of an image that the toolkit has not given it."""
    derived = DERIVED_LABEL in image["labels"]
    own = {*known}
    return [
        name
        for name in image["tags"]
        if name not in own and not name.startswith(ON_ITS_WAY) and not (derived and name.startswith(DERIVED_NAME))
    ]


def image_items(
    held: InstalledState, known: set[str], wanted: set[str], going: set[str]
) -> tuple[list[Item], list[str]]:
    """(the images of `known` that nothing of `wanted` names, derived ones first because the others are their bases;
    what is left although it is ours, and why). `going` are names of containers that go as well."""
    items, left = [], []
    for image in held["docker"]["images"]:
        if not ours(image, known) or {*image["tags"], *image["digests"]} & wanted:
            continue
        name = next(iter([*image["tags"], *image["digests"]]), image["id"])
        users = [c["name"] for c in held["docker"]["containers"] if c["image_id"] == image["id"]]
        if others := names_of_others(image, known):
            left.append(f"image {name} stays: it has a name that is not of vllm-spark, {', '.join(others)}")
        elif held_by := [user for user in users if user not in going]:
            left.append(f"image {name} stays: container {', '.join(held_by)} is made of it")
        else:
            derived = DERIVED_LABEL in image["labels"]
            why = f"derived from {image['labels'].get(BASE_LABEL, 'an image')}" if derived else "pulled"
            items.append(Item("image", image["id"], f"{name}, {why}", image["own"], _names(image)))
    return sorted(items, key=lambda item: not item.why.partition(", ")[2].startswith("derived")), left


def _names(image: Mapping[str, Any]) -> tuple[str, ...]:
    """Digests last: Docker forgets them with the last tag of their repository."""
    return (*image["tags"], *image["digests"])


def format_items(items: Sequence[Item], left: Sequence[str], verb: str) -> list[str]:
    """What an operator reads before anything is taken away."""
    told = [item for item in items if item.kind not in QUIET]
    if not told:
        return ["nothing to take away", *left]
    total = sum(item.bytes for item in told)
    end = f"{len(told)} in all, {size(total)}" + (" or more" if any(item.kind == "image" for item in told) else "")
    return [*(f"{verb} {item.line()}" for item in told), f"{verb} {end}", *left]
