"""An image from a shelf into Docker under its own name: a stand-in for Docker pulls, and the box is as before."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from registry_on_a_shelf import REPOSITORY, Image, digest_of, registry, sent

import loopback
from vllm_spark.node.pull import image_pull
from vllm_spark.node.pull.job import JobError, JobProgress

HOSTS = "127.0.0.1 localhost\n10.0.0.7 nas\n"
# Somebody else's formatting has to survive.
DAEMON = (
    '{ "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},\n  "registry-mirrors": ["http://mirror.home"] }'
)
Pull = Callable[..., Mapping[str, Any]]


@pytest.fixture
def image() -> Image:
    return Image()


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box whose Docker is the stand-in."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "systemctl"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("docker_that_pulls.py")} "$@"\n'
        )
        program.chmod(0o755)
    (tmp_path / "state").mkdir()
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "daemon.json").write_text(DAEMON)
    (tmp_path / "state" / "mirrors").write_text('["http://mirror.home"]')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOSTS", str(tmp_path / "hosts"))
    monkeypatch.setenv("DOCKER_DAEMON", str(tmp_path / "daemon.json"))
    monkeypatch.setattr(image_pull, "HOSTS", tmp_path / "hosts")
    monkeypatch.setattr(image_pull, "DAEMON", tmp_path / "daemon.json")
    monkeypatch.setattr(image_pull, "JOURNAL", tmp_path / "pull" / "daemon.json.before")
    monkeypatch.setattr(image_pull, "PULLED", tmp_path / "pulled")
    monkeypatch.setattr(image_pull, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(image_pull, "RELOAD_S", 0.3)
    # It pins names for its own process, which is this one.
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    return tmp_path


def request(box: Path, image: Image, url: str, host: str = "docker.io") -> dict[str, Any]:
    name = image.name if host == "docker.io" else f"{host}/{image.name}"
    return {
        "image": name,
        "host": host,
        "repository": REPOSITORY,
        "digest": image.digest,
        "platform": "linux/arm64",
        "port": loopback.free_port(),
        "folder": str(box / "shelf"),
        "keep": True,
        "behind": {"url": url, "host": host} if url else None,
    }


def pull(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return image_pull.pull(asked, JobProgress(), Event())


def unchanged(box: Path) -> None:
    assert (box / "hosts").read_text() == HOSTS
    assert (box / "daemon.json").read_text() == DAEMON
    assert json.loads((box / "state" / "mirrors").read_text()) == ["http://mirror.home"]
    assert not (box / "pull" / "daemon.json.before").exists()


@pytest.mark.parametrize("host", ["docker.io", "registry"])
def test_docker_has_it_under_its_own_name_and_the_box_is_as_before(box: Path, image: Image, host: str) -> None:
    host = host if host == "docker.io" else f"registry:{loopback.free_port()}"
    with registry(image) as (url, asked):
        asked_for = request(box, image, url, host)
        first, second = pull(asked_for), pull(asked_for)
        layers = sent(asked)
    assert first["digests"] == [asked_for["image"]]
    assert first["id"] == second["id"]
    assert (first["pulled"], second["pulled"]) == (True, False)
    assert len(layers) == len(set(layers)) == 3
    unchanged(box)


def test_only_layers_that_docker_lacks_are_fetched(box: Path, image: Image) -> None:
    newer = Image(layers=[image.layers[0], b"the one layer that changed"])
    with registry(image) as (url, _):
        pull(request(box, image, url))
    with registry(newer) as (url, asked):
        pull(request(box, newer, url))
    assert digest_of(image.layers[0]) not in sent(asked)
    assert digest_of(newer.layers[1]) in sent(asked)


def test_a_folder_of_a_bundle_is_enough(box: Path, image: Image) -> None:
    with registry(image) as (url, _):
        pull(request(box, image, url))
    (box / "state" / "images").unlink()
    again = pull(request(box, image, ""))
    assert again["pulled"]
    assert (box / "pulled").read_text().splitlines() == [request(box, image, "")["image"]]
    unchanged(box)


def test_what_cannot_be_had_leaves_the_box_as_before(box: Path, image: Image) -> None:
    with registry(image) as (url, _):
        del image.blobs[digest_of(image.layers[0])]
        with pytest.raises(JobError) as refused:
            pull(request(box, image, url))
    assert refused.value.reason == "image"
    unchanged(box)


def test_a_port_that_is_taken_is_said_before_anything_is_changed(box: Path, image: Image) -> None:
    with registry(image) as (url, _), socket.create_server(("127.0.0.1", 0)) as taken:
        asked = {**request(box, image, url), "port": taken.getsockname()[1]}
        with pytest.raises(JobError) as refused:
            pull(asked)
    assert refused.value.reason == "image-port"
    unchanged(box)


def test_a_docker_that_takes_no_mirror_is_said(box: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pull, "_mirrors", lambda: [])
    with registry(image) as (url, _), pytest.raises(JobError) as refused:
        pull(request(box, image, url))
    assert refused.value.reason == "docker-mirror"
    unchanged(box)


def test_the_next_run_repairs_what_a_killed_one_has_left(box: Path) -> None:
    image_pull.add_mirror(25093)
    image_pull.add_hosts_entry("nvcr.io")
    assert "25093" in (box / "daemon.json").read_text()
    assert "nvcr.io" in (box / "hosts").read_text()
    image_pull.repair()
    unchanged(box)


def test_a_box_without_a_daemon_file_has_none_afterwards(box: Path) -> None:
    (box / "daemon.json").unlink()
    (box / "state" / "mirrors").unlink()
    image_pull.add_mirror(25093)
    image_pull.repair()
    assert not (box / "daemon.json").exists()
    assert json.loads((box / "state" / "mirrors").read_text()) == []
