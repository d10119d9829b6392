"""Pulls of an image into a fake Docker under its own name. The configuration of the host is restored."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from threading import Event

import pytest

import fakes
import loopback
from fakes.fake_registry import REPOSITORY, Image, digest_of, registry, sent
from vllm_spark.node.pull import docker_config, docker_leftovers, image_pull
from vllm_spark.node.pull.image_pull import ImageRequest, ImageResult
from vllm_spark.node.pull.job import JobError, JobProgress

HOSTS = "127.0.0.1 localhost\n10.0.0.7 nas\n"
# The formatting of the owner must survive.
DAEMON = (
    '{ "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},\n  "registry-mirrors": ["http://mirror.home"] }'
)
FAKE_DOCKER = Path(fakes.__file__).with_name("fake_docker.py")


@pytest.fixture
def image() -> Image:
    return Image()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose Docker is the fake."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "systemctl"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_DOCKER} "$@"\n')
        program.chmod(0o755)
    (tmp_path / "state").mkdir()
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "daemon.json").write_text(DAEMON)
    (tmp_path / "state" / "mirrors").write_text('["http://mirror.home"]')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOSTS", str(tmp_path / "hosts"))
    monkeypatch.setenv("DOCKER_DAEMON", str(tmp_path / "daemon.json"))
    monkeypatch.setenv("DOCKER_CERTS", str(tmp_path / "certs.d"))
    monkeypatch.setattr(docker_leftovers, "CERTS", tmp_path / "certs.d")
    monkeypatch.setattr(docker_leftovers, "TOML_JOURNAL", tmp_path / "pull" / "hosts.toml.before")
    monkeypatch.setattr(docker_leftovers, "HOSTS", tmp_path / "hosts")
    monkeypatch.setattr(docker_leftovers, "DAEMON", tmp_path / "daemon.json")
    monkeypatch.setattr(docker_leftovers, "JOURNAL", tmp_path / "pull" / "daemon.json.before")
    monkeypatch.setattr(image_pull, "PULLED", tmp_path / "pulled")
    monkeypatch.setattr(image_pull, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(docker_config, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(docker_config, "RELOAD_TIMEOUT_S", 0.3)
    # The pull replaces this function in its process, which is the one of the test.
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    return tmp_path


def request(node: Path, image: Image, url: str, host: str = "docker.io") -> ImageRequest:
    name = image.name if host == "docker.io" else f"{host}/{image.name}"
    return {
        "image": name,
        "host": host,
        "repository": REPOSITORY,
        "digest": image.digest,
        "platform": "linux/arm64",
        "port": loopback.free_port(),
        "folder": str(node / "cache"),
        "keep": True,
        "upstream": {"url": url, "host": host} if url else None,
    }


def pull(image_request: ImageRequest) -> ImageResult:
    return image_pull.pull_image(image_request, JobProgress(), Event())


def assert_restored(node: Path) -> None:
    assert (node / "hosts").read_text() == HOSTS
    assert (node / "daemon.json").read_text() == DAEMON
    assert json.loads((node / "state" / "mirrors").read_text()) == ["http://mirror.home"]
    assert not (node / "pull" / "daemon.json.before").exists()
    assert not (node / "pull" / "hosts.toml.before").exists()


def use_containerd_store(node: Path, version: str = "29.2.1") -> None:
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    (node / "state" / "info").write_text(json.dumps({"ServerVersion": version, "DriverStatus": status}))


@pytest.mark.parametrize("host", ["docker.io", "registry"])
def test_docker_has_the_image_under_its_own_name(node: Path, image: Image, host: str) -> None:
    host = host if host == "docker.io" else f"registry:{loopback.free_port()}"
    with registry(image) as (url, requests):
        image_request = request(node, image, url, host)
        first, second = pull(image_request), pull(image_request)
        layers = sent(requests)
    assert first["digests"] == [image_request["image"]]
    assert first["digest"] == second["digest"] == image.digest
    assert (first["pulled"], second["pulled"]) == (True, False)
    assert len(layers) == len(set(layers)) == 3
    assert_restored(node)


@pytest.mark.parametrize("host", ["docker.io", "nvcr.io", "registry.home:5000"])
def test_the_containerd_store_pulls_from_any_registry(node: Path, image: Image, host: str) -> None:
    use_containerd_store(node)
    with registry(image) as (url, _):
        image_request = request(node, image, url, host)
        result = pull(image_request)
    assert result["pulled"]
    assert result["digests"] == [image_request["image"]]
    assert not (node / "certs.d").exists()
    assert_restored(node)


def test_the_hosts_toml_of_the_owner_is_restored(node: Path, image: Image) -> None:
    use_containerd_store(node)
    owners = node / "certs.d" / "nvcr.io" / "hosts.toml"
    owners.parent.mkdir(parents=True)
    owners.write_text('server = "https://mirror.home"\n')
    with registry(image) as (url, _):
        pull(request(node, image, url, "nvcr.io"))
    assert owners.read_text() == 'server = "https://mirror.home"\n'
    docker_config.add_hosts_toml("nvcr.io", 25093)
    docker_config.undo()
    assert owners.read_text() == 'server = "https://mirror.home"\n'


@pytest.mark.parametrize(("version", "reads"), [("29.2.1", True), ("28.0.0", True), ("27.5.1", False), ("", False)])
def test_docker_reads_hosts_toml_from_28_on(node: Path, version: str, reads: bool) -> None:
    use_containerd_store(node, version)
    assert docker_config.reads_hosts_toml() is reads


def test_overlay2_does_not_read_hosts_toml(node: Path) -> None:
    (node / "state" / "info").write_text(json.dumps({"ServerVersion": "29.2.1", "DriverStatus": [["Backing", "x"]]}))
    assert docker_config.reads_hosts_toml() is False


def test_only_missing_layers_are_fetched(node: Path, image: Image) -> None:
    newer = Image(layers=[image.layers[0], b"the one layer that changed"])
    with registry(image) as (url, _):
        pull(request(node, image, url))
    with registry(newer) as (url, requests):
        pull(request(node, newer, url))
    assert digest_of(image.layers[0]) not in sent(requests)
    assert digest_of(newer.layers[1]) in sent(requests)


def test_a_filled_cache_needs_no_registry(node: Path, image: Image) -> None:
    with registry(image) as (url, _):
        pull(request(node, image, url))
    (node / "state" / "images").unlink()
    again = pull(request(node, image, ""))
    assert again["pulled"]
    assert (node / "pulled").read_text().splitlines() == [request(node, image, "")["image"]]
    assert_restored(node)


def test_a_missing_layer_fails_and_the_host_is_restored(node: Path, image: Image) -> None:
    with registry(image) as (url, _):
        del image.blobs[digest_of(image.layers[0])]
        with pytest.raises(JobError) as refused:
            pull(request(node, image, url))
    assert refused.value.reason == "image"
    assert_restored(node)


def test_a_port_in_use_is_reported_before_a_change(node: Path, image: Image) -> None:
    with registry(image) as (url, _), socket.create_server(("127.0.0.1", 0)) as listener:
        image_request = request(node, image, url)
        image_request["port"] = listener.getsockname()[1]
        with pytest.raises(JobError) as refused:
            pull(image_request)
    assert refused.value.reason == "image-port"
    assert_restored(node)


def test_a_docker_without_the_mirror_is_reported(node: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_config, "configured_mirrors", lambda: [])
    with registry(image) as (url, _), pytest.raises(JobError) as refused:
        pull(request(node, image, url))
    assert refused.value.reason == "docker-mirror"
    assert_restored(node)


def test_the_next_run_restores_what_a_killed_one_left(node: Path) -> None:
    docker_config.add_mirror(25093)
    docker_config.add_hosts_entry("nvcr.io")
    docker_config.add_hosts_toml("ghcr.io", 25093)
    assert "25093" in (node / "daemon.json").read_text()
    assert "nvcr.io" in (node / "hosts").read_text()
    assert "25093" in (node / "certs.d" / "ghcr.io" / "hosts.toml").read_text()
    docker_config.undo()
    assert_restored(node)
    assert not (node / "certs.d").exists()


def test_a_created_daemon_file_is_deleted(node: Path) -> None:
    (node / "daemon.json").unlink()
    (node / "state" / "mirrors").unlink()
    docker_config.add_mirror(25093)
    docker_config.undo()
    assert not (node / "daemon.json").exists()
    assert json.loads((node / "state" / "mirrors").read_text()) == []


def test_blobs_that_a_cut_has_truncated_are_fetched_again(node: Path, image: Image) -> None:
    """An older toolkit renamed a blob before its content was on the disk."""
    with registry(image) as (url, _):
        pull(request(node, image, url))
        blobs = sorted((node / "cache" / "blobs" / "sha256").iterdir())
        whole = {blob: blob.read_bytes() for blob in blobs}
        for number, blob in enumerate(blobs):
            blob.write_bytes(whole[blob][: 0 if number % 2 else len(whole[blob]) // 2])
        (node / "state" / "images").unlink()
        shutil.rmtree(node / "state" / "layers")
        assert pull(request(node, image, url))["pulled"]
    assert {blob: blob.read_bytes() for blob in blobs} == whole
