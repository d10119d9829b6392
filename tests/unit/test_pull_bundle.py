"""A bundle: written from stand-ins of a registry and of the hub, gone on with when cut, read whole, damaged."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pull_boxes import COMMIT, FILES, FOLDER, REPOSITORY, TOKEN, shown, take
from registry_on_a_shelf import REPOSITORY as IMAGE_REPOSITORY
from registry_on_a_shelf import Image, digest_of, registry, sent

from stand_in_hub import Hub
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.pull import blob_registry
from vllm_spark.node.pull.blob_registry import BlobCache, BlobCacheError, Upstream
from vllm_spark.node.pull.hub_cache import Source
from vllm_spark.transfer import bundle, bundle_server
from vllm_spark.transfer.bundle import BundledImage, BundleRequest, RemoteSources
from vllm_spark.transfer.site import PulledModel

BIG = "model-00001-of-00002.safetensors"


def quiet(_: str) -> None:
    """What is said is another test's."""


@contextmanager
def hub_of(place: Path) -> Iterator[Hub]:
    """A hub that has the model."""
    root = place / "outside" / REPOSITORY / COMMIT
    for path, content in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    with Hub(place / "outside", ("127.0.0.1", 0)) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def wheel_of(place: Path) -> Path:
    """A package that pip takes without an index."""
    file = place / "index" / "demo-1-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1\n")
        archive.writestr("demo-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("demo-1.dist-info/RECORD", "")
    return file


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with hub_of(tmp_path) as server:
        yield server


@pytest.fixture
def image() -> Image:
    return Image()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return wheel_of(tmp_path)


def wanted(image: Image) -> BundleRequest:
    held = BundledImage(image.name, "docker.io", IMAGE_REPOSITORY, image.digest, ("linux/arm64",))
    return BundleRequest((held,), (PulledModel(REPOSITORY, COMMIT, 1000),))


def write(folder: Path, image: Image, url: str, hub: Hub, wheel: Path) -> None:
    outside = RemoteSources(
        {"docker.io": url},
        {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(folder.parent / "home")},
        ("--no-index", "--find-links", str(wheel.parent), "demo"),
    )
    bundle.write(folder, wanted(image), outside, "test", quiet)


def test_it_is_whole_and_written_once(tmp_path: Path, image: Image, hub: Hub, wheel: Path) -> None:
    folder = tmp_path / "bundle"
    assert not bundle.is_finished(folder)
    with registry(image) as (url, asked):
        write(folder, image, url, hub, wheel)
        assert bundle.is_finished(folder)
        assert bundle.refusals(folder, wanted(image), quiet) == []
        layers, models = len(sent(asked)), len(hub.asked)
        (folder / bundle.CONTENTS).unlink()
        write(folder, image, url, hub, wheel)
        assert (len(sent(asked)), len(hub.asked)) == (layers, models), "what is right is not fetched again"
    assert shown(folder / "hub") == FILES
    entries = json.loads((folder / "images" / "index.json").read_text())["manifests"]
    assert [(entry["digest"], entry["annotations"]["org.opencontainers.image.ref.name"]) for entry in entries] == [
        (image.digest, image.name)
    ]
    assert list(bundle.read_contents(folder)["wheels"]) == ["demo-1-py3-none-any.whl"]


def test_one_that_was_cut_is_not_finished(tmp_path: Path, image: Image, hub: Hub, wheel: Path) -> None:
    folder = tmp_path / "bundle"
    layer = image.blobs.pop(digest_of(image.layers[0]))
    with registry(image) as (url, _):
        with pytest.raises(RefusedError) as refused:
            write(folder, image, url, hub, wheel)
        assert [refusal.id for refusal in refused.value.refusals] == ["bundle-not-written"]
        assert not bundle.is_finished(folder)
        image.blobs[digest_of(layer)] = layer
        write(folder, image, url, hub, wheel)
    assert bundle.refusals(folder, wanted(image), quiet) == []


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def blob_of(folder: Path, name: str) -> Path:
    return (Source(folder / "hub", FOLDER, COMMIT).snapshot / name).resolve()


def layer_of(folder: Path, image: Image) -> Path:
    return folder / "images" / "blobs" / "sha256" / digest_of(image.layers[0])[7:]


# what happens to a finished bundle -> a part of what is said
DAMAGES: dict[str, tuple[Callable[[Path, Image], Any], str]] = {
    "a layer gone": (lambda folder, image: layer_of(folder, image).unlink(), "lacks sha256:"),
    "a layer damaged": (lambda folder, image: flip(layer_of(folder, image)), "has another sha256 than its name"),
    "a shard gone": (lambda folder, _: blob_of(folder, BIG).unlink(), f"lacks {BIG}"),
    "a shard damaged": (lambda folder, _: flip(blob_of(folder, BIG)), f"{BIG} of owner/Model@c0ffee000000 is not"),
    "no manifest": (
        lambda folder, _: Source(folder / "hub", FOLDER, COMMIT).manifest_file.unlink(),
        "it has no owner/Model@c0ffee000000",
    ),
    "a wheel gone": (lambda folder, _: next((folder / "wheels").iterdir()).unlink(), "lacks wheels/demo"),
    "a wheel damaged": (
        lambda folder, _: flip(next((folder / "wheels").iterdir())),
        "wheels/demo-1-py3-none-any.whl has",
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Image]:
    """A whole bundle, to be copied and damaged."""
    place, made = tmp_path_factory.mktemp("finished"), Image()
    with registry(made) as (url, _), hub_of(place) as server:
        write(place / "bundle", made, url, server, wheel_of(place))
    return place / "bundle", made


@pytest.mark.parametrize("name", DAMAGES)
def test_what_it_lacks_is_said(tmp_path: Path, finished: tuple[Path, Image], name: str) -> None:
    damage, said = DAMAGES[name]
    whole, image = finished
    folder = Path(shutil.copytree(whole, tmp_path / "bundle", symlinks=True))
    assert bundle.refusals(folder, wanted(image), quiet) == []
    damage(folder, image)
    found = bundle.refusals(folder, wanted(image), quiet)
    assert [refusal.id for refusal in found] == ["bundle-lacks"]
    assert said in str(found[0])


def test_a_bundle_of_another_recipe_says_what_is_not_in_it(finished: tuple[Path, Image]) -> None:
    other = BundleRequest((), (PulledModel("owner/Other", COMMIT, 1),))
    assert "it has no owner/Other" in str(bundle.refusals(finished[0], other, quiet)[0])


def test_a_finished_bundle_is_given_to_whoever_has_the_token(tmp_path: Path, finished: tuple[Path, Image]) -> None:
    """Both servers in their own process, and a Spark that takes from them."""
    folder, image = finished
    process, ports = bundle_server.start(folder, TOKEN)
    try:
        assert take(tmp_path / "spark", ports["weights"])["moved"] == sum(map(len, FILES.values()))
        behind = Upstream(f"http://127.0.0.1:{ports['shelf']}", "the bundle", TOKEN)
        kept = BlobCache(tmp_path / "images", behind)
        assert (
            len(list(blob_registry.mirror_image(kept, IMAGE_REPOSITORY, image.digest, ("linux/arm64",))))
            == len(image.layers) + 1
        )
        with pytest.raises(BlobCacheError, match="401"):
            BlobCache(tmp_path / "x", Upstream(behind.url, "x", "guessed")).manifest(IMAGE_REPOSITORY, image.digest)
    finally:
        bundle_server.stop(process)
    assert shown(tmp_path / "spark") == FILES
