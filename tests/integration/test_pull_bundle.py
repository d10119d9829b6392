"""Bundles from a fake registry and a fake hub: written, interrupted, damaged, served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_hub import Hub
from fakes.fake_registry import REPOSITORY as IMAGE_REPOSITORY
from fakes.fake_registry import Image, digest_of, registry, sent
from fakes.model_copies import COMMIT, FILES, FOLDER, REPOSITORY, TOKEN, fetch, serving_hub, snapshot_files
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.pull import blob_cache
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.job import JobError
from vllm_spark.node.pull.model_files import Source
from vllm_spark.node.pull.upstream import Upstream
from vllm_spark.transfer import bundle, bundle_check, bundle_server
from vllm_spark.transfer.bundle import BundledImage, BundleRequest, RemoteSources
from vllm_spark.transfer.bundle_check import Trust
from vllm_spark.transfer.site import PulledModel

BIG = "model-00001-of-00002.safetensors"
# test_bundle_signature has the signed ones.
UNSIGNED = Trust(Path("no signers"), unsigned=True)


def quiet(_: str) -> None:
    """Print nothing."""


def write_wheel(folder: Path) -> Path:
    """Write a package that pip installs without an index."""
    file = folder / "index" / "demo-1-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("demo-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1\n")
        archive.writestr("demo-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("demo-1.dist-info/RECORD", "")
    return file


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving_hub(tmp_path / "outside") as server:
        yield server


@pytest.fixture
def image() -> Image:
    return Image()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path)


def request_of(image: Image) -> BundleRequest:
    bundled = BundledImage(image.name, "docker.io", IMAGE_REPOSITORY, image.digest, ("linux/arm64",))
    return BundleRequest((bundled,), (PulledModel(REPOSITORY, COMMIT, 1000),))


def write(folder: Path, image: Image, url: str, hub: Hub, wheel: Path) -> None:
    sources = RemoteSources(
        {"docker.io": url},
        {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(folder.parent / "home")},
        ("--no-index", "--find-links", str(wheel.parent), "demo"),
    )
    with pytest.MonkeyPatch.context() as restored:
        for name in sources.environment:
            restored.setenv(name, "")
        bundle.write(folder, request_of(image), sources, UNSIGNED, quiet)


def test_a_bundle_is_complete_and_downloaded_once(tmp_path: Path, image: Image, hub: Hub, wheel: Path) -> None:
    folder = tmp_path / "bundle"
    assert not bundle.is_finished(folder)
    with registry(image) as (url, requests):
        write(folder, image, url, hub, wheel)
        assert bundle.is_finished(folder)
        assert bundle.refusals(folder, request_of(image), UNSIGNED, quiet) == []
        layers, models = len(sent(requests)), len(hub.requests)
        (folder / bundle.CONTENTS).unlink()
        write(folder, image, url, hub, wheel)
        assert (len(sent(requests)), len(hub.requests)) == (layers, models), "valid parts are not downloaded again"
    assert snapshot_files(folder / "hub") == FILES
    entries = json.loads((folder / "images" / "index.json").read_text())["manifests"]
    assert [(entry["digest"], entry["annotations"]["org.opencontainers.image.ref.name"]) for entry in entries] == [
        (image.digest, image.name)
    ]
    listed = bundle_check.parse(folder).files
    present = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
    assert set(listed) == present - bundle_check.UNLISTED
    assert {"bundle.json", "wheels/demo-1-py3-none-any.whl", "images/index.json"} <= set(listed)
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", bundle_check.LIST],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_bundle_is_written_without_the_store(hub: Hub, wheel: Path, tmp_path: Path) -> None:
    """In a process of its own with the library of requirements.lock, as the controller writes it."""
    code = """if True:
        import sys
        from pathlib import Path
        from vllm_spark.transfer import bundle
        from vllm_spark.transfer.site import PulledModel
        folder, endpoint, wheels, repository, commit = sys.argv[1:]
        sources = bundle.RemoteSources({}, {"HF_ENDPOINT": endpoint}, ("--no-index", "--find-links", wheels, "demo"))
        request = bundle.BundleRequest((), (PulledModel(repository, commit, 1),))
        bundle.write(Path(folder), request, sources, bundle.Trust(Path("none"), unsigned=True), print)
        """
    (tmp_path / "bundle" / "images").mkdir(parents=True)
    words = [str(tmp_path / "bundle"), f"http://127.0.0.1:{hub.server_port}", str(wheel.parent), REPOSITORY, COMMIT]
    environment = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True, timeout=120)
    model = Source(tmp_path / "bundle" / "hub", FOLDER, COMMIT)
    assert snapshot_files(model.hub) == FILES
    assert all(not blob.is_symlink() for blob in (model.root / "blobs").iterdir())
    # Each file once, through xet.
    assert len([line for line in hub.requests if "/cas/chunks/" in line]) == len(
        [c for c in FILES.values() if len(c) > 1000]
    )
    assert not (tmp_path / "bundle" / "hub" / "blobs").exists()


def test_an_interrupted_bundle_is_not_finished(tmp_path: Path, image: Image, hub: Hub, wheel: Path) -> None:
    folder = tmp_path / "bundle"
    layer = image.blobs.pop(digest_of(image.layers[0]))
    with registry(image) as (url, _):
        with pytest.raises(RefusedError) as refused:
            write(folder, image, url, hub, wheel)
        assert [refusal.id for refusal in refused.value.refusals] == ["bundle-not-written"]
        assert not bundle.is_finished(folder)
        image.blobs[digest_of(layer)] = layer
        write(folder, image, url, hub, wheel)
    assert bundle.refusals(folder, request_of(image), UNSIGNED, quiet) == []


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def blob_of(folder: Path, name: str) -> Path:
    return (Source(folder / "hub", FOLDER, COMMIT).snapshot / name).resolve()


def layer_of(folder: Path, image: Image) -> Path:
    return folder / "images" / "blobs" / "sha256" / digest_of(image.layers[0])[7:]


CHANGED, MISSING = "bundle-file-changed", "bundle-file-missing"

# name -> (damage to a finished bundle, id of the refusal, part of the message)
DAMAGES: dict[str, tuple[Callable[[Path, Image], Any], str, str]] = {
    "a layer missing": (lambda folder, image: layer_of(folder, image).unlink(), MISSING, "images/blobs/sha256/"),
    "a layer damaged": (lambda folder, image: flip(layer_of(folder, image)), CHANGED, "images/blobs/sha256/"),
    # A link that leads nowhere is not a file.
    "a shard missing": (lambda folder, _: blob_of(folder, BIG).unlink(), "bundle-file-link", BIG),
    "a shard damaged": (lambda folder, _: flip(blob_of(folder, BIG)), CHANGED, BIG),
    "no manifest": (
        lambda folder, _: Source(folder / "hub", FOLDER, COMMIT).manifest_file.unlink(),
        MISSING,
        f"hub/{FOLDER}/.vllm-spark/{COMMIT}.json",
    ),
    "a wheel missing": (lambda folder, _: next((folder / "wheels").iterdir()).unlink(), MISSING, "wheels/demo-1-py3"),
    "a wheel damaged": (lambda folder, _: flip(next((folder / "wheels").iterdir())), CHANGED, "wheels/demo-1-py3"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Image]:
    """Write a complete bundle, which the tests copy and damage."""
    folder, image = tmp_path_factory.mktemp("finished"), Image()
    with registry(image) as (url, _), serving_hub(folder / "outside") as server:
        write(folder / "bundle", image, url, server, write_wheel(folder))
    return folder / "bundle", image


@pytest.mark.parametrize("name", DAMAGES)
def test_a_missing_or_damaged_part_is_refused(tmp_path: Path, finished: tuple[Path, Image], name: str) -> None:
    damage, refusal_id, text = DAMAGES[name]
    complete, image = finished
    folder = Path(shutil.copytree(complete, tmp_path / "bundle", symlinks=True))
    assert bundle.refusals(folder, request_of(image), UNSIGNED, quiet) == []
    damage(folder, image)
    refusals = bundle.refusals(folder, request_of(image), UNSIGNED, quiet)
    found = {refusal.id: str(refusal) for refusal in refusals}
    assert text in found[refusal_id]
    assert "docs/runbooks/bundle-signature.md" in found[refusal_id]


# name -> (damage to a part before the list is written, part of the message): the signer's own parts are compared too
DAMAGED_EARLIER: dict[str, tuple[Callable[[Path, Image], Any], str]] = {
    "a layer": (lambda folder, image: flip(layer_of(folder, image)), "has another sha256 than its name"),
    "a shard": (lambda folder, _: flip(blob_of(folder, BIG)), f"{BIG} of owner/Model@c0ffee000000 differs"),
    "a manifest": (
        lambda folder, _: Source(folder / "hub", FOLDER, COMMIT).manifest_file.unlink(),
        "owner/Model@c0ffee000000 is missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGED_EARLIER)
def test_a_list_of_damaged_parts_is_refused(tmp_path: Path, finished: tuple[Path, Image], name: str) -> None:
    damage, text = DAMAGED_EARLIER[name]
    complete, image = finished
    folder = Path(shutil.copytree(complete, tmp_path / "bundle", symlinks=True))
    damage(folder, image)
    bundle_check.seal(folder, json.loads((folder / bundle.CONTENTS).read_text()), None, quiet)
    refusals = bundle.refusals(folder, request_of(image), UNSIGNED, quiet)
    assert {refusal.id for refusal in refusals} == {"bundle-lacks"}
    assert text in str(refusals[0])


def test_a_bundle_without_the_model_of_a_recipe_is_refused(finished: tuple[Path, Image]) -> None:
    other = BundleRequest((), (PulledModel("owner/Other", COMMIT, 1),))
    assert "owner/Other@c0ffee000000 is missing" in str(bundle.refusals(finished[0], other, UNSIGNED, quiet)[0])


def test_a_client_with_the_token_can_read_a_finished_bundle(tmp_path: Path, finished: tuple[Path, Image]) -> None:
    """The server runs in its own process, and a Spark copies files and images from it."""
    folder, image = finished
    process, opened = bundle_server.start(folder, TOKEN)
    try:
        assert fetch(tmp_path / "spark", opened["port"])["moved"] == sum(map(len, FILES.values()))
        upstream = Upstream(f"http://127.0.0.1:{opened['port']}", f"docker.io/{IMAGE_REPOSITORY}", "the bundle", TOKEN)
        cache = BlobCache(tmp_path / "images", upstream)
        assert len(list(blob_cache.mirror_image(cache, image.digest, ("linux/arm64",)))) == len(image.layers) + 1
        with pytest.raises(JobError, match="does not prove that it belongs to this run"):
            BlobCache(tmp_path / "x", Upstream(upstream.url, "x", "x", "guessed")).manifest(image.digest)
    finally:
        bundle_server.stop(process)
    assert snapshot_files(tmp_path / "spark") == FILES
