"""Files of the shared store become a model's own: moved or copied, proven before, and nothing of others is lost."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from threading import Event

import pytest

from fakes.model_copies import COMMIT, FILES, FOLDER, manifest_of, request, snapshot_files, write_model
from vllm_spark.node import shared_blobs
from vllm_spark.node.pull import adoption, hub_cache
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import Source

BIG = "model-00001-of-00002.safetensors"
HASH = "ab" + "1" * 62


@pytest.fixture
def model(tmp_path: Path) -> Source:
    """A model with its manifest, and one of its blobs in the store, as after an `hf download` of a damaged file."""
    model = write_model(tmp_path / "hub")
    blob = (model.snapshot / BIG).resolve()
    file = stored(model)
    file.parent.mkdir(parents=True)
    (file.parents[1] / shared_blobs.MARK).write_text("1\n")
    blob.rename(file)
    blob.symlink_to(f"../../blobs/{HASH[:2]}/{HASH}")
    Path(f"{file}.lock").touch()
    Path(f"{file}.refs").write_text(f"{FOLDER}/blobs/{blob.name}\n")
    return model


def stored(model: Source) -> Path:
    return model.hub / "blobs" / HASH[:2] / HASH


def check(model: Source) -> dict[str, object]:
    return hub_cache.check_models(request(model.hub, 0), JobProgress(), Event())


def test_a_model_that_links_to_the_store_is_read_and_adopted(model: Source) -> None:
    sources = request(model.hub, 0)["sources"]
    assert hub_cache.model_states(str(model.hub), sources)[0]["unread"] > 0, "so a pull runs the check"
    assert check(model)["bad"] == {}
    assert snapshot_files(model.hub) == FILES
    assert not model.blob(entry_of(model)).is_symlink()
    assert not stored(model).exists()
    assert hub_cache.file_state(model, entry_of(model), checksums(model)) == "whole", "it was read once"


def entry_of(model: Source) -> adoption.FileEntry:
    manifest = model.manifest()
    assert manifest is not None
    return next(entry for entry in manifest.files if entry.path == BIG)


def checksums(model: Source) -> adoption.ChecksumCache:
    return adoption.ChecksumCache.load(model.root)


def on_another_disk(model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.name == HASH:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)


def with_a_second_name(model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.hub / "mine").hardlink_to(stored(model))


def without_a_lock(model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{stored(model)}.lock").unlink()


@pytest.mark.parametrize("case", [on_another_disk, with_a_second_name, without_a_lock])
def test_a_file_that_cannot_be_moved_is_copied(model: Source, monkeypatch: pytest.MonkeyPatch, case: object) -> None:
    assert callable(case)
    case(model, monkeypatch)
    assert check(model)["bad"] == {}
    assert snapshot_files(model.hub) == FILES
    assert model.blob(entry_of(model)).stat().st_nlink == 1
    assert stored(model).read_bytes() == FILES[BIG]


def test_a_full_disk_leaves_the_store_as_it_is(model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    without_a_lock(model, monkeypatch)
    monkeypatch.setattr(shutil, "copyfileobj", fail)
    with pytest.raises(JobError, match=BIG) as refused:
        check(model)
    assert refused.value.reason == "disk-full"
    assert stored(model).read_bytes() == FILES[BIG]
    assert [file.name for file in (model.root / "blobs").iterdir() if file.name.endswith(".part")] == []


def test_other_content_is_not_adopted_and_not_deleted(model: Source) -> None:
    content = FILES[BIG][:-1] + b"x"
    stored(model).write_bytes(content)
    # Within one tick of the kernel's clock the file would look unchanged.
    later = stored(model).stat().st_mtime_ns + 1
    os.utime(stored(model), ns=(later, later))
    assert check(model)["bad"] == {FOLDER: [BIG]}
    assert stored(model).read_bytes() == content
    assert not model.blob(entry_of(model)).is_symlink(), "the next pull fetches it"


def test_a_folder_without_the_librarys_mark_is_not_touched(model: Source) -> None:
    (model.hub / "blobs" / shared_blobs.MARK).unlink()
    assert check(model)["bad"] == {FOLDER: [BIG]}
    assert stored(model).read_bytes() == FILES[BIG]


def test_what_a_cache_without_a_manifest_has_is_counted_as_present(model: Source) -> None:
    model.manifest_file.unlink()
    state = hub_cache.model_states(str(model.hub), [{"folder": FOLDER, "commit": COMMIT}])[0]
    assert (state["manifest"], state["partial"]) == (False, manifest_of(FILES).size)
