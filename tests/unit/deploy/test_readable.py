"""The part of a model folder that an engine which is not root cannot read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_readable import first_outside, first_unreadable

from vllm_spark.deploy import checks
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Spec


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot with a file in a folder, which is a link to a blob."""
    repository = tmp_path / "models--owner--Model"
    folder = repository / "snapshots" / "c0"
    (folder / "sub").mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "1f").write_text("weights")
    (folder / "sub" / "model.safetensors").symlink_to("../../../blobs/1f")
    for path in (repository, *repository.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.mark.parametrize(
    ("part", "mode"),
    [("", 0o750), ("snapshots", 0o700), ("snapshots/c0/sub", 0o754), ("blobs/1f", 0o640), ("blobs", 0o700)],
)
def test_the_first_part_that_not_all_may_read(part: str, mode: int, snapshot: Path) -> None:
    assert first_unreadable(str(snapshot)) is None
    changed = snapshot.parents[1] / part
    changed.chmod(mode)
    try:
        assert first_unreadable(str(snapshot)) == str(changed)
    finally:
        changed.chmod(0o755)


def test_a_missing_snapshot_is_not_this_fault(tmp_path: Path) -> None:
    assert first_unreadable(str(tmp_path / "models--a" / "snapshots" / "c0")) is None


def test_weights_that_lead_out_of_the_models_folder(snapshot: Path, tmp_path: Path) -> None:
    assert first_outside(str(snapshot)) is None
    blob = snapshot.parents[1] / "blobs" / "1f"
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    blob.rename(tmp_path / "blobs" / "ab" / "abcd")
    blob.symlink_to("../../blobs/ab/abcd")
    assert first_outside(str(snapshot)) == str(snapshot / "sub" / "model.safetensors")


def test_a_model_folder_on_another_disk_is_no_fault(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").symlink_to(tmp_path)
    (tmp_path / "models--link").symlink_to(snapshot.parents[1])
    for name in ("hub/models--owner--Model", "models--link"):
        assert first_outside(str(tmp_path / name / "snapshots" / "c0")) is None


def test_only_a_closed_engine_is_asked_about(resolve: Callable[..., Spec]) -> None:
    closed = replace(resolve(), edge=Edge("spark1", EdgeSettings(open=False)))
    assert checks.questions(resolve())["unreadable"] == []
    assert checks.questions(closed)["unreadable"] == checks.model_folders(closed)
