"""Images by digest through shelves: from a registry once, then from Spark to Spark, over the loopback device."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from pull_boxes import Cable
from registry_on_a_shelf import REPOSITORY, Image, digest_of, registry, sent

from vllm_spark.node.pull import blob_registry
from vllm_spark.node.pull.blob_registry import BlobCache, BlobCacheError, Server, Upstream

ARM = ("linux/arm64",)
TOKEN = "one-time"


@pytest.fixture
def image() -> Image:
    return Image()


@contextmanager
def served(kept: BlobCache, token: str = "") -> Iterator[str]:
    with Server(("127.0.0.1", 0), kept, token) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def get(url: str, token: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  a test's own loopback address
    with urllib.request.urlopen(request, timeout=5) as reply:  # noqa: S310
        return bytes(reply.read())


def fill(folder: Path, url: str, image: Image) -> BlobCache:
    kept = BlobCache(folder, Upstream(url, "here"))
    for _ in blob_registry.mirror_image(kept, REPOSITORY, image.digest, ARM):
        pass
    return kept


def test_an_image_comes_whole_for_its_platform_alone(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, asked):
        fill(tmp_path, url, image)
        first = len(sent(asked))
        fill(tmp_path, url, image)
        assert len(sent(asked)) == first, "the second time nothing is fetched"
    blobs = tmp_path / "blobs" / "sha256"
    assert {f"sha256:{file.name}" for file in blobs.iterdir()} == image.wanted
    assert all(digest_of(file.read_bytes()) == f"sha256:{file.name}" for file in blobs.iterdir())
    assert list(blob_registry.missing_blobs(tmp_path, image.digest, ARM)) == []


def test_a_worker_gets_its_layers_from_the_heads_shelf_and_outside_is_asked_once(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    with registry(image) as (url, asked):
        head = BlobCache(tmp_path / "head", Upstream(url, "here"))
        with served(head, TOKEN) as at_head:
            worker = BlobCache(tmp_path / "worker", Upstream(at_head, "head", TOKEN), keep=False)
            with served(worker) as at_worker:
                blob = f"/v2/{REPOSITORY}/blobs/{layer}"
                assert get(f"{at_worker}/v2/") == b"{}"
                assert (
                    get(f"{at_worker}/v2/{REPOSITORY}/manifests/{image.digest}?ns=docker.io")
                    == image.blobs[image.digest]
                )
                assert get(at_worker + blob) == image.layers[0]
                assert get(at_worker + blob) == image.layers[0]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(at_head + blob)
    assert sent(asked) == [layer]
    assert not list((tmp_path / "worker").rglob("*.part"))
    assert not (tmp_path / "worker" / "blobs" / "sha256" / layer[7:]).exists()


def test_without_outside_the_shelf_gives_what_it_has(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        fill(tmp_path, url, image)
    with served(BlobCache(tmp_path)) as url:
        assert get(f"{url}/v2/{REPOSITORY}/blobs/{digest_of(image.layers[0])}") == image.layers[0]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/v2/{REPOSITORY}/blobs/sha256:{'0' * 64}")


def test_a_cut_layer_goes_on_where_it_was(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        fill(tmp_path / "head", url, image)
    with served(BlobCache(tmp_path / "head")) as at_head:
        cable = Cable(int(at_head.rpartition(":")[2]), after=150_000, cuts=2)
        worker = BlobCache(tmp_path / "worker", Upstream(f"http://127.0.0.1:{cable.port}", "head"))
        worker.make()
        found = b"".join(worker.read(REPOSITORY, digest_of(image.layers[0])))
        cable.close()
    assert found == image.layers[0]


def test_a_run_that_was_killed_leaves_a_part_and_the_next_asks_for_the_rest(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    kept = BlobCache(tmp_path)
    kept.make()
    kept.blob(layer).with_suffix(".part").write_bytes(image.layers[0][:100_000])
    with registry(image) as (url, asked):
        kept.behind = Upstream(url, "here")
        kept.have(REPOSITORY, layer)
        ranges = [headers.get("Range") for path, headers in asked if path.startswith("/store/")]
    assert kept.blob(layer).read_bytes() == image.layers[0]
    assert ranges == ["bytes=100000-"]
    assert kept.fetched == len(image.layers[0]) - 100_000


def test_a_part_that_is_damaged_is_given_up(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    kept = BlobCache(tmp_path)
    kept.make()
    kept.blob(layer).with_suffix(".part").write_bytes(os.urandom(100_000))
    with registry(image) as (url, _):
        kept.behind = Upstream(url, "here")
        with pytest.raises(BlobCacheError, match="arrived with sha256"):
            kept.have(REPOSITORY, layer)
        kept.have(REPOSITORY, layer)
    assert kept.blob(layer).read_bytes() == image.layers[0]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


LACKS = {
    "a layer gone": (lambda file: file.unlink(), "lacks sha256:"),
    "a layer cut": (lambda file: os.truncate(file, 10), "has 10 bytes, not 300000"),
    "a layer damaged": (flip, "has another sha256 than its name"),
}


@pytest.mark.parametrize("name", LACKS)
def test_a_folder_says_what_it_lacks(tmp_path: Path, image: Image, name: str) -> None:
    damage, said = LACKS[name]
    with registry(image) as (url, _):
        kept = fill(tmp_path, url, image)
    damage(kept.blob(digest_of(image.layers[0])))
    found = list(blob_registry.missing_blobs(tmp_path, image.digest, ARM))
    assert len(found) == 1
    assert said in found[0]


def test_a_folder_without_the_platform_says_so(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        fill(tmp_path, url, image)
    assert list(blob_registry.missing_blobs(tmp_path, image.digest, ("linux/riscv64",))) == [
        f"image {image.digest} has no platform of linux/riscv64"
    ]


def test_a_registry_that_sends_another_manifest_is_refused(tmp_path: Path, image: Image) -> None:
    image.blobs[image.digest] = b"{}"
    with registry(image) as (url, _), pytest.raises(BlobCacheError, match="another sha256"):
        fill(tmp_path, url, image)
    assert not list((tmp_path / "blobs" / "sha256").iterdir())


@pytest.mark.parametrize(
    "path", ["/v2/a/blobs/../../x", "/etc/passwd", "/v2/a/manifests/latest", f"/v2/A B/blobs/{'0' * 64}"]
)
def test_nothing_but_digests_is_served(tmp_path: Path, path: str) -> None:
    with served(BlobCache(tmp_path)) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        get(url + path.replace(" ", "%20"))
