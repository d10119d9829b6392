"""State files of a host: a process that is killed at any step leaves the old content or the new one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_io

import child
from vllm_spark.node import state_file
from vllm_spark.node.pull import image_pull
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.oci import BlobError

OLD, NEW = "old", "new " * 5000


def end_at(step: str, call: Callable[..., object], *args: Any) -> None:
    """Call a function in this process, which ends at the first call of a function of os or tempfile."""
    module: Any = tempfile if step == "mkstemp" else os
    setattr(module, step, lambda *_, **__: os._exit(0))
    try:
        call(*args)
    finally:
        os._exit(1)


def killed_at(step: str, call: Callable[..., object], *args: Any) -> None:
    """Run a function in a process that ends at the first call of a function of os or tempfile, without a cleanup."""
    assert child.status_of(end_at, step, call, *args) == 0, f"{step} was not called"


def replace_file(path: Path) -> None:
    state_file.replace_file(path, NEW)


def write_file(path: Path) -> None:
    spark_io.write_file(str(path), NEW, "0644")


def record_pulled(path: Path, image: str) -> None:
    image_pull.PULLED = path
    image_pull.record_pulled(image)


# name -> a function that replaces a file
WRITERS: dict[str, Callable[[Path], object]] = {"replace_file": replace_file, "write_file": write_file}


@pytest.mark.parametrize("step", ["mkstemp", "fdopen", "fsync", "replace"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_write_leaves_the_old_file(tmp_path: Path, name: str, step: str) -> None:
    path = tmp_path / "state"
    path.write_text(OLD)
    killed_at(step, WRITERS[name], path)
    assert path.read_text() == OLD
    WRITERS[name](path)
    assert path.read_text() == NEW


@pytest.mark.parametrize("name", WRITERS)
def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        steps.append(f"fsync {'folder' if os.path.isdir(f'/proc/self/fd/{descriptor}') else 'file'}")
        sync(descriptor)

    def record_replace(*args: Any) -> None:
        steps.append("replace")
        replace(*args)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    WRITERS[name](tmp_path / "state")
    assert steps == ["fsync file", "replace", "fsync folder"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text(OLD)
    (tmp_path / "state").symlink_to("victim")
    state_file.replace_file(tmp_path / "state", NEW)
    assert ((tmp_path / "victim").read_text(), (tmp_path / "state").read_text()) == (OLD, NEW)
    assert not (tmp_path / "state").is_symlink()


def test_the_list_of_pulled_images_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pull, "PULLED", tmp_path / "pulled")
    image_pull.record_pulled("a@sha256:1")
    killed_at("fsync", record_pulled, tmp_path / "pulled", "b@sha256:2")
    assert (tmp_path / "pulled").read_text() == "a@sha256:1\n"


def test_a_manifest_without_upstream_that_was_cut_is_reported(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    digest = f"sha256:{'0' * 64}"
    cache.create()
    cache.blob(digest).write_bytes(b'{"sche')
    with pytest.raises(BlobError, match="6 bytes with another sha256"):
        cache.manifest(digest)
