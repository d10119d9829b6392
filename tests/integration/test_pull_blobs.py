"""Blob caches and blob servers over the loopback device: each blob is downloaded once and verified."""

from __future__ import annotations

import http.client
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import loopback
from fakes.fake_registry import REPOSITORY, Image, digest_of, registry, sent
from fakes.model_copies import FaultyRelay
from vllm_spark.node.pull import blob_cache
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.blob_server import BlobServer
from vllm_spark.node.pull.blob_upload import Uploads
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.upstream import Upstream
from waiting import LIMIT_S

ARM = ("linux/arm64",)
TOKEN = "one-time"


@pytest.fixture
def image() -> Image:
    return Image()


@contextmanager
def served(cache: BlobCache, token: str = "") -> Iterator[str]:
    with loopback.running(BlobServer(("127.0.0.1", 0), {"": cache}, token)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def get(url: str, token: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  a test's own loopback address
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:  # noqa: S310
        return bytes(response.read())


def mirror(folder: Path, url: str, image: Image) -> BlobCache:
    cache = BlobCache(folder, Upstream(url, REPOSITORY, "here"))
    for _ in blob_cache.mirror_image(cache, image.digest, ARM):
        pass
    return cache


def test_an_image_is_mirrored_for_one_platform(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, requests):
        mirror(tmp_path, url, image)
        first = len(sent(requests))
        mirror(tmp_path, url, image)
        assert len(sent(requests)) == first, "the second run downloads nothing"
    blobs = tmp_path / "blobs" / "sha256"
    assert {f"sha256:{file.name}" for file in blobs.iterdir()} == image.arm_digests
    assert all(digest_of(file.read_bytes()) == f"sha256:{file.name}" for file in blobs.iterdir())
    assert list(blob_cache.missing_blobs(tmp_path, image.digest, ARM)) == []


def test_a_worker_gets_its_layers_from_the_head(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    with registry(image) as (url, requests):
        head = BlobCache(tmp_path / "head", Upstream(url, REPOSITORY, "here"))
        with served(head, TOKEN) as at_head:
            worker = BlobCache(tmp_path / "worker", Upstream(at_head, REPOSITORY, "head", TOKEN), keep=False)
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
    assert sent(requests) == [layer]
    assert not list((tmp_path / "worker").rglob("*.part"))
    assert not (tmp_path / "worker" / "blobs" / "sha256" / layer[7:]).exists()


def test_without_a_registry_the_server_has_the_cached_blobs(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        mirror(tmp_path, url, image)
    with served(BlobCache(tmp_path)) as url:
        assert get(f"{url}/v2/{REPOSITORY}/blobs/{digest_of(image.layers[0])}") == image.layers[0]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/v2/{REPOSITORY}/blobs/sha256:{'0' * 64}")


def test_a_lost_connection_continues_at_the_same_byte(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        mirror(tmp_path / "head", url, image)
    with served(BlobCache(tmp_path / "head")) as at_head:
        relay = FaultyRelay(int(at_head.rpartition(":")[2]), after=150_000, losses=2)
        worker = BlobCache(tmp_path / "worker", Upstream(f"http://127.0.0.1:{relay.port}", REPOSITORY, "head"))
        worker.create()
        content = b"".join(worker.read(digest_of(image.layers[0])))
        relay.close()
    assert content == image.layers[0]


@pytest.mark.parametrize(("byte_range", "status", "begin"), [("", 200, 0), ("bytes=7-", 206, 7), ("bytes=90-", 416, 0)])
def test_a_stored_blob_is_served_from_any_byte(tmp_path: Path, byte_range: str, status: int, begin: int) -> None:
    cache, content = BlobCache(tmp_path), bytes(range(90))
    cache.create()
    digest = cache.store(content)
    with served(cache) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_S)
        connection.request("GET", f"/v2/a/blobs/{digest}", headers={"Range": byte_range} if byte_range else {})
        response = connection.getresponse()
        body = response.read()
        connection.close()
    assert response.status == status
    if status != 416:
        assert (body, response.headers["Docker-Content-Digest"]) == (content[begin:], digest)
        assert response.headers["Content-Range"] == (f"bytes {begin}-89/90" if byte_range else None)


def test_the_part_of_a_killed_run_is_continued(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    cache = BlobCache(tmp_path)
    cache.create()
    cache.blob(layer).with_suffix(".part").write_bytes(image.layers[0][:100_000])
    with registry(image) as (url, requests):
        cache.upstream = Upstream(url, REPOSITORY, "here")
        cache.ensure_blob(layer)
        ranges = [headers.get("Range") for path, headers in requests if path.startswith("/store/")]
    assert cache.blob(layer).read_bytes() == image.layers[0]
    assert ranges == ["bytes=100000-"]
    assert cache.fetched == len(image.layers[0]) - 100_000


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("known", [True, False], ids=["size known", "size unknown"])
@pytest.mark.parametrize("kept", [100_000, 300_000], ids=["a part", "the whole"])
def test_a_part_is_completed_whatever_the_store_serves(
    tmp_path: Path, image: Image, kept: int, known: bool, ranges: bool
) -> None:
    layer, image.ranges = image.layers[0], ranges
    cache = BlobCache(tmp_path)
    cache.create()
    cache.blob(digest_of(layer)).with_suffix(".part").write_bytes(layer[:kept])
    with registry(image) as (url, _):
        cache.upstream = Upstream(url, REPOSITORY, "here")
        content = b"".join(cache.read(digest_of(layer), len(layer) if known else 0))
    assert content == cache.blob(digest_of(layer)).read_bytes() == layer
    assert cache.fetched == len(layer) - kept


def test_a_damaged_part_is_deleted(tmp_path: Path, image: Image) -> None:
    layer = digest_of(image.layers[0])
    cache = BlobCache(tmp_path)
    cache.create()
    cache.blob(layer).with_suffix(".part").write_bytes(os.urandom(100_000))
    with registry(image) as (url, _):
        cache.upstream = Upstream(url, REPOSITORY, "here")
        with pytest.raises(BlobError, match="arrived with sha256"):
            cache.ensure_blob(layer)
        cache.ensure_blob(layer)
    assert cache.blob(layer).read_bytes() == image.layers[0]


FAULTS = {
    "a layer missing": (lambda file: file.unlink(), " is missing"),
    "a layer truncated": (lambda file: os.truncate(file, 10), "has 10 bytes, not 300000"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_or_truncated_layer_is_described(tmp_path: Path, image: Image, name: str) -> None:
    damage, text = FAULTS[name]
    with registry(image) as (url, _):
        cache = mirror(tmp_path, url, image)
    damage(cache.blob(digest_of(image.layers[0])))
    faults = list(blob_cache.missing_blobs(tmp_path, image.digest, ARM))
    assert len(faults) == 1
    assert text in faults[0]


def test_a_missing_platform_is_described(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        mirror(tmp_path, url, image)
    assert list(blob_cache.missing_blobs(tmp_path, image.digest, ("linux/riscv64",))) == [
        f"image {image.digest} has no platform of linux/riscv64"
    ]


def test_a_registry_that_sends_another_manifest_is_refused(tmp_path: Path, image: Image) -> None:
    image.blobs[image.digest] = b"{}"
    with registry(image) as (url, _), pytest.raises(BlobError, match="another sha256"):
        mirror(tmp_path, url, image)
    assert not list((tmp_path / "blobs" / "sha256").iterdir())


@pytest.mark.parametrize(
    "path", ["/v2/a/blobs/../../x", "/etc/passwd", "/v2/a/manifests/latest", f"/v2/A B/blobs/{'0' * 64}"]
)
def test_nothing_but_digests_is_served(tmp_path: Path, path: str) -> None:
    with served(BlobCache(tmp_path)) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        get(url + path.replace(" ", "%20"))


def test_a_server_has_only_the_repositories_of_its_run(tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, requests):
        cache = BlobCache(tmp_path, Upstream(url, REPOSITORY, "here"))
        with loopback.running(BlobServer(("127.0.0.1", 0), {REPOSITORY: cache})) as server:
            at = f"http://127.0.0.1:{server.server_port}/v2"
            assert get(f"{at}/{REPOSITORY}/manifests/{image.digest}") == image.blobs[image.digest]
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(f"{at}/library/other/manifests/{image.manifest}")
    assert len(requests) == 3, "a challenge, a token and the index"


def call(url: str, method: str, body: bytes = b"") -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(url, body, method=method)  # noqa: S310  a test's own loopback address
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:  # noqa: S310
            return response.status, dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


@contextmanager
def accepting(cache: BlobCache, secret: str = "") -> Iterator[str]:
    cache.create()
    with loopback.running(BlobServer(("127.0.0.1", 0), {"derived/x": cache}, secret, uploads=Uploads(cache))) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_an_upload_with_another_content_is_refused(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    with accepting(cache) as url:
        location = call(f"{url}/v2/derived/x/blobs/uploads/", "POST")[1]["Location"]
        assert call(f"{url}{location}", "PATCH", b"abc")[0] == 202
        assert call(f"{url}{location}?digest={digest_of(b'other')}", "PUT")[0] == 400
        assert call(f"{url}{location}?digest={digest_of(b'abc')}", "PUT")[0] == 400
        assert call(f"{url}/v2/derived/x/manifests/{digest_of(b'{}')}", "PUT", b"[]")[0] == 400
        assert call(f"{url}/v2/derived/x/blobs/uploads/{'0' * 32}", "PATCH", b"abc")[0] == 400
    assert [*(tmp_path / "blobs" / "sha256").iterdir()] == []


def test_uploads_of_an_interrupted_push_are_removed(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    cache.create()
    left = cache.blob("0" * 32).with_suffix(".upload")
    left.write_bytes(b"half")
    Uploads(cache)
    assert not left.exists()


@pytest.mark.parametrize("secret", ["", TOKEN])
def test_only_the_job_of_a_push_accepts_one(tmp_path: Path, secret: str) -> None:
    cache = BlobCache(tmp_path)
    cache.create()
    with accepting(cache, secret) if secret else served(cache) as url:
        assert call(f"{url}/v2/derived/x/blobs/uploads/", "POST")[0] == 405
        assert call(f"{url}/v2/derived/x/manifests/a", "PUT", b"{}")[0] == 405


def test_a_tls_handshake_gets_a_reply_that_begins_with_http(tmp_path: Path) -> None:
    """The containerd store repeats a request in plain HTTP only after such a reply."""
    with (
        served(BlobCache(tmp_path)) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as tls,
    ):
        tls.settimeout(LIMIT_S)
        tls.sendall(b"\x16\x03\x01\x02\x00\x01" + os.urandom(500))
        assert tls.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_layer_of_the_base_is_mounted(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    cache.create()
    digest = cache.store(b"base")
    with accepting(cache) as url:
        status, headers = call(f"{url}/v2/derived/x/blobs/uploads/?mount={digest}&from=docker.io/a/b", "POST")
    assert (status, headers["Docker-Content-Digest"]) == (201, digest)
