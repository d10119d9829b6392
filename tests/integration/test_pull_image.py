"""Pulls and pushes of images through the loopback registry, with a fake Docker engine on a UNIX socket."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event, Thread

import pytest

import loopback
from fakes import fake_docker
from fakes.fake_docker import Engine
from fakes.fake_http import Reply, serving
from fakes.fake_registry import REPOSITORY, Image, digest_of, registry, sent
from vllm_spark.node.pull import docker_engine, image_pull, upstream
from vllm_spark.node.pull.image_pull import ImageRequest, ImageResult
from vllm_spark.node.pull.job import SERVING, JobError, JobProgress
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.transfer.jobs import JOBS
from waiting import LIMIT_S, until

SECRET = "one-time"


@pytest.fixture
def image() -> Image:
    return Image()


@pytest.fixture(params=["overlay2", "containerd"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A Docker with one of the two image stores."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(docker_engine, "SOCKET", str(path))
    monkeypatch.setattr(image_pull, "PULLED", tmp_path / "pulled")
    with fake_docker.running(Engine(containerd=request.param == "containerd"), path) as running:
        yield running


def request(folder: Path, image: Image, url: str, host: str = "docker.io") -> ImageRequest:
    repository = f"{host.replace(':', '_')}/{REPOSITORY}"
    return {
        "image": f"127.0.0.1:{loopback.held_port()}/{repository}@{image.digest}",
        "digest": image.digest,
        "platform": "linux/arm64",
        "folder": str(folder / "cache"),
        "keep": True,
        "upstream": {"url": url, "host": host, "repository": REPOSITORY} if url else None,
    }


def pull(image_request: ImageRequest, progress: JobProgress | None = None) -> ImageResult:
    return image_pull.pull_image(image_request, progress or JobProgress(), Event())


@pytest.mark.parametrize("host", ["docker.io", "nvcr.io", "registry.home:5000"])
def test_docker_has_the_image_by_its_digest(engine: Engine, tmp_path: Path, image: Image, host: str) -> None:
    progress = JobProgress()
    with registry(image) as (url, requests):
        image_request = request(tmp_path, image, url, host)
        first, second = pull(image_request, progress), pull(image_request)
        layers = sent(requests)
    assert [*engine.images] == [image_request["image"]]
    assert (first["pulled"], second["pulled"]) == (True, False)
    assert len(layers) == len(set(layers)) == 3
    assert (tmp_path / "pulled").read_text().splitlines() == [image_request["image"]]
    assert progress.phase == "unpacking"
    assert len(engine.requests) == 1


def test_only_missing_layers_are_fetched(engine: Engine, tmp_path: Path, image: Image) -> None:
    newer = Image(layers=[image.layers[0], b"the one layer that changed"])
    with registry(image) as (url, _):
        pull(request(tmp_path, image, url))
    with registry(newer) as (url, requests):
        pull(request(tmp_path, newer, url))
    assert digest_of(image.layers[0]) not in sent(requests)
    assert digest_of(newer.layers[1]) in sent(requests)


def test_an_image_under_the_owners_name_moves_no_layer(engine: Engine, tmp_path: Path, image: Image) -> None:
    engine.blobs |= {digest_of(layer): layer for layer in image.layers}
    engine.images[image.name] = {"id": "sha256:1", "digests": [image.name], "layers": [*map(digest_of, image.layers)]}
    with registry(image) as (url, requests):
        assert pull(request(tmp_path, image, url))["pulled"]
    assert not {*map(digest_of, image.layers)} & {*sent(requests)}
    assert image.name in engine.images


def test_a_filled_cache_needs_no_registry(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        pull({**request(tmp_path, image, url), "all_layers": True})
    engine.images.clear()
    engine.blobs.clear()
    assert pull(request(tmp_path, image, ""))["fetched"] == 0


def test_a_missing_layer_is_named(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        del image.blobs[digest_of(image.layers[0])]
        with pytest.raises(JobError, match=digest_of(image.layers[0])) as refused:
            pull(request(tmp_path, image, url))
    assert refused.value.reason == "image"


def test_an_image_that_the_registry_lacks_leaves_no_file(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        del image.blobs[image.digest]
        with pytest.raises(JobError, match="answers 404"):
            pull(request(tmp_path, image, url))
    assert not (tmp_path / "cache").exists()
    assert not engine.images


def test_a_blob_with_another_content_does_not_reach_docker(engine: Engine, tmp_path: Path, image: Image) -> None:
    image.blobs[digest_of(image.layers[0])] = os.urandom(300_000)
    with registry(image) as (url, _), pytest.raises(JobError, match="arrived with sha256"):
        pull(request(tmp_path, image, url))
    assert not engine.images


@pytest.mark.parametrize(
    ("fault", "says"),
    [("no space left on device", "no space left on device"), ("cut", "Docker's answer ended")],
)
def test_an_error_in_the_stream_fails_the_job(
    engine: Engine, tmp_path: Path, image: Image, fault: str, says: str
) -> None:
    engine.fault = fault
    with registry(image) as (url, _):
        image_request = request(tmp_path, image, url)
        with pytest.raises(JobError, match=says) as refused:
            pull(image_request)
        engine.fault = ""
        assert pull(image_request)["pulled"]
    assert refused.value.reason == "image"


def test_an_engine_that_is_down_is_named(tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "SOCKET", str(tmp_path / "none.sock"))
    with pytest.raises(JobError, match="No such file or directory") as refused:
        pull(request(tmp_path, image, ""))
    assert refused.value.reason == "image"


def test_a_port_in_use_is_reported(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _), socket.create_server(("127.0.0.1", 0)) as listener:
        image_request = request(tmp_path, image, url)
        image_request["image"] = f"127.0.0.1:{listener.getsockname()[1]}/docker.io/{image.name}"
        with pytest.raises(JobError) as refused:
            pull(image_request)
    assert refused.value.reason == "image-port"
    assert not engine.requests


@pytest.mark.parametrize("closes", [False, True])
def test_a_stopped_pull_ends(engine: Engine, tmp_path: Path, image: Image, closes: bool) -> None:
    engine.fault, engine.closes, stop = "silent", closes, Event()
    stop.set()
    with registry(image) as (url, _), pytest.raises(JobError) as refused:
        image_pull.pull_image(request(tmp_path, image, url), JobProgress(), stop)
    assert refused.value.reason == "stopped"


@pytest.mark.parametrize(
    ("host", "insecure", "url"),
    [
        ("docker.io", (), "https://registry-1.docker.io"),
        ("nvcr.io", ("registry:5000",), "https://nvcr.io"),
        ("registry:5000", ("registry:5000",), "http://registry:5000"),
    ],
)
def test_plain_http_follows_dockers_own_setting(engine: Engine, host: str, insecure: tuple[str, ...], url: str) -> None:
    engine.insecure = insecure
    found = image_pull.upstream_of({"host": host, "repository": "x"}, SECRET)
    assert found
    assert (found.url, found.token) == (url, "")


def test_docker_hub_is_asked_through_dockers_own_mirror(engine: Engine, image: Image) -> None:
    with registry(image) as (url, _), loopback.refusing_port() as port:
        engine.mirrors = (f"http://127.0.0.1:{port}/", f"{url}/")
        found = image_pull.upstream_of({"host": "docker.io", "repository": "x"})
    assert found
    assert found.url == url


@pytest.mark.parametrize("challenge", ['Basic realm="home"', 'Bearer realm="http://HOST/token",service="hub"'])
def test_a_mirror_gets_its_own_login_and_not_that_of_docker_hub(
    engine: Engine, tmp_path: Path, challenge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        seen.append(headers.get("Authorization"))
        login = {"WWW-Authenticate": challenge.replace("HOST", headers["Host"])}
        return Reply({}) if path.startswith("/token") else Reply(status=401, headers=login)

    seen: list[str | None] = []
    monkeypatch.setattr(upstream, "DOCKER_CONFIG", tmp_path / "config.json")
    hub, own = (base64.b64encode(word).decode() for word in (b"me:hub", b"me:mirror"))
    for mirror_login in ("", own):
        with serving(respond) as (url, _):
            engine.mirrors = (url,)
            logins = {"https://index.docker.io/v1/": {"auth": hub}, url.removeprefix("http://"): {"auth": mirror_login}}
            (tmp_path / "config.json").write_text(json.dumps({"auths": logins}))
            mirror = image_pull.upstream_of({"host": "docker.io", "repository": "x"})
            assert mirror
            with pytest.raises(BlobError):
                mirror.open("manifests", "v1")
    assert {*seen} == {None, f"Basic {own}"}


CONFIGS = {
    "one for this registry": (
        {"credHelpers": {"127.0.0.1:PORT": "pass"}},
        "credential helper 'pass' is configured for",
    ),
    "one for all": ({"credsStore": "secretservice", "auths": {"127.0.0.1:PORT": {}}}, "helper 'secretservice' is"),
    "one for another registry": ({"credHelpers": {"nvcr.io": "pass"}}, ""),
    "none": ({}, ""),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_unused_credential_helper_is_named(
    engine: Engine, tmp_path: Path, image: Image, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the summary of a pull, and in the error of one that fails."""
    config, text = CONFIGS[name]
    monkeypatch.setattr(upstream, "DOCKER_CONFIG", tmp_path / "config.json")
    with registry(image) as (url, _):
        host = url.removeprefix("http://")
        engine.insecure = (host,)
        port = host.rpartition(":")[2]
        (tmp_path / "config.json").write_text(json.dumps(config).replace("PORT", port))
        image_request = request(tmp_path, image, "")
        image_request["upstream"] = {"host": host, "repository": REPOSITORY}
        result = pull(image_request)
        assert text in result["note"]
        assert bool(text) == bool(result["note"])
        assert result["note"] in JOBS["image"].summary(result)
        image_request["digest"] = f"sha256:{'0' * 64}"
        with pytest.raises(JobError) as refused:
            pull(image_request)
    assert text in str(refused.value)
    assert ("credential helper" in str(refused.value)) == bool(text)


def test_omitted_packed_layers_are_fetched(tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """The containerd store skips a layer that it has unpacked, and then reports the image as incomplete."""
    monkeypatch.setattr(docker_engine, "SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setattr(image_pull, "PULLED", tmp_path / "pulled")
    program = tmp_path / "ctr"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/fetched\n')
    program.chmod(0o755)
    engine = Engine(containerd=True, unpacked={digest_of(image.layers[0])}, packed_file=tmp_path / "fetched")
    with fake_docker.running(engine, tmp_path / "docker.sock"), registry(image) as (url, _):
        image_request = request(tmp_path, image, url)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert pull(image_request)["pulled"]
        assert (tmp_path / "fetched").read_text().split()[-1] == image_request["image"]
        program.write_text("#!/bin/sh\necho no such image >&2\nexit 1\n")
        (tmp_path / "fetched").unlink()
        with pytest.raises(JobError, match="ctr content fetch: no such image"):
            pull(image_request)


def push_request(folder: Path, url: str) -> image_pull.PushRequest:
    return {
        "image": f"127.0.0.1:{loopback.held_port()}/derived/demo:abc",
        "folder": str(folder),
        "upstream": {"url": url, "host": "docker.io", "repository": REPOSITORY} if url else None,
    }


def push(engine: Engine, image: Image, folder: Path, url: str) -> dict[str, str]:
    request = push_request(folder, url)
    engine.build(request["image"], [*image.layers, b"the built layer"])
    return image_pull.push_image(request, JobProgress(), Event())


def test_a_push_uploads_the_built_layers_alone(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, _):
        result = push(engine, image, tmp_path / "cache", url)
    blobs = tmp_path / "cache" / "blobs" / "sha256"
    names = {f"sha256:{file.name}" for file in blobs.iterdir()}
    assert not names & {*map(digest_of, image.layers)}
    assert not any(name.endswith(".upload") for name in names)
    assert {result["digest"], digest_of(b"the built layer")} < names
    manifest = json.loads((blobs / result["digest"][7:]).read_text())
    assert [layer["size"] for layer in manifest["layers"]] == [300_000, 50, 15]


def test_a_push_without_a_registry_uploads_everything(engine: Engine, tmp_path: Path, image: Image) -> None:
    push(engine, image, tmp_path / "cache", "")
    names = {f"sha256:{file.name}" for file in (tmp_path / "cache" / "blobs" / "sha256").iterdir()}
    assert {*map(digest_of, image.layers)} < names


def test_a_push_asks_a_registry_that_is_down_once(engine: Engine, tmp_path: Path, image: Image) -> None:
    with loopback.refusing_port() as port:
        push(engine, image, tmp_path / "cache", f"http://127.0.0.1:{port}")
    names = {f"sha256:{file.name}" for file in (tmp_path / "cache" / "blobs" / "sha256").iterdir()}
    assert {*map(digest_of, image.layers)} < names


@pytest.mark.parametrize(
    ("fault", "message"),
    [("cut", "Docker pushed no manifest, and none arrived"), ("other manifest", "Docker pushed sha256:.* arrived")],
)
def test_a_push_that_is_not_dockers_fails(
    engine: Engine, tmp_path: Path, image: Image, fault: str, message: str
) -> None:
    engine.fault = fault
    with pytest.raises(JobError, match=message):
        push(engine, image, tmp_path / "cache", "")


def test_a_derived_image_has_one_digest_on_both_sparks(engine: Engine, tmp_path: Path, image: Image) -> None:
    with registry(image) as (url, requests):
        pushed = push(engine, image, tmp_path / "head", url)
        port, stop, progress = loopback.held_port(), Event(), JobProgress()
        serve: image_pull.ImageServerRequest = {
            "address": "127.0.0.1",
            "port": port,
            "folder": str(tmp_path / "head"),
            "repositories": {"derived/demo": {"url": url, "host": "docker.io", "repository": REPOSITORY}},
            "token": SECRET,
        }
        server = Thread(target=image_pull.serve_images, args=(serve, progress, stop))
        server.start()
        until(lambda: progress.phase == SERVING)
        head = engine.images.copy()
        engine.images.clear()
        engine.blobs.clear()
        name = f"127.0.0.1:{loopback.held_port()}/derived/demo:abc"
        result = pull(
            {
                "image": name,
                "digest": pushed["digest"],
                "platform": "linux/arm64",
                "folder": str(tmp_path / "worker"),
                "keep": False,
                "upstream": {"host": "spark1", "repository": "derived/demo", "url": f"http://127.0.0.1:{port}"},
                "token": SECRET,
            }
        )
        stop.set()
        server.join()
        assert {*sent(requests)} >= {*map(digest_of, image.layers)}
    assert result["pulled"]
    assert engine.images[name]["layers"] == next(iter(head.values()))["layers"]
    assert not list((tmp_path / "worker" / "blobs" / "sha256").iterdir())


JOB = """
import sys
from pathlib import Path
from vllm_spark.node.pull import image_pull, run
image_pull.PULLED = Path(sys.argv.pop(1))
sys.exit(run.main())
"""


@pytest.mark.parametrize("job", ["image", "push-image"])
def test_a_job_that_is_killed_at_any_point_is_repeated_by_the_next(
    engine: Engine, tmp_path: Path, image: Image, job: str
) -> None:
    """Ten kills at random points; the next run ends right, and leaves no upload and no damaged blob."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)  # noqa: S311  a failure names the seed
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    environment = {
        **os.environ,
        "VLLM_SPARK_JOBS": str(jobs),
        "VLLM_SPARK_DOCKER_SOCKET": docker_engine.SOCKET,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    function = "pull_image" if job == "image" else "push_image"
    argv = [sys.executable, "-c", JOB, str(tmp_path / "pulled"), job, "image_pull", function]
    with registry(image) as (url, _):
        pulled = request(tmp_path, image, url)
        pushed = push_request(tmp_path / "cache", "")
        if job == "push-image":
            engine.build(pushed["image"], [*image.layers, b"the built layer"])
        for kill in [True] * 10 + [False]:
            (jobs / f"{job}.request").write_text(json.dumps(pulled if job == "image" else pushed))
            process = subprocess.Popen(argv, env=environment)
            if kill:
                time.sleep(chance.uniform(0.05, 0.6))
                process.send_signal(signal.SIGKILL)
            assert process.wait(2 * LIMIT_S) in ({0, -signal.SIGKILL} if kill else {0}), f"seed {seed}"
            if kill and job == "image" and chance.random() < 0.5:
                engine.images.clear()
    result = json.loads((jobs / f"{job}.result").read_text())
    assert result["ok"], f"seed {seed}"
    assert (pulled if job == "image" else pushed)["image"] in engine.images, f"seed {seed}"
    files = (tmp_path / "cache" / "blobs" / "sha256").iterdir()
    blobs = [file for file in files if file.suffix != ".part" and file.name[0] != "."]
    assert {file.name for file in blobs} >= {result["digest"][7:]}, f"seed {seed}"
    assert all(digest_of(file.read_bytes()) == f"sha256:{file.name}" for file in blobs), f"seed {seed}"
