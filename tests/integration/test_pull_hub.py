"""Downloads with huggingface_hub from a fake hub: the commit, the manifest, damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopback
from fakes.fake_hub import Hub
from fakes.model_copies import COMMIT, FILES, FOLDER, REPOSITORY, manifest_of, serving_hub, snapshot_files
from vllm_spark.node.pull import hub_fetch
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import Manifest, ManifestError, OtherManifestError, Source

BIG = "model-00001-of-00002.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub that has the model."""
    with serving_hub(tmp_path / "outside") as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        # The library of this process has read its variables: test_pull_libraries has processes of their own.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SHARED_BLOBS", True)
        monkeypatch.setattr(hub_fetch, "POLL_INTERVAL_S", 0.02)
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Source:
    return Source(tmp_path / "model", FOLDER, COMMIT)


def ensure(model: Source, *, verify: bool = False) -> tuple[Manifest, bool]:
    return hub_fetch.ensure_model(model, REPOSITORY, JobProgress(), verify=verify)


def test_the_second_run_sends_no_request(hub: Hub, model: Source) -> None:
    manifest, contacted = ensure(model)
    assert contacted
    assert snapshot_files(model.hub) == FILES
    assert {entry.path: entry.size for entry in manifest.files} == {
        path: len(content) for path, content in FILES.items()
    }
    assert all((model.root / "blobs" / entry.blob).is_file() for entry in manifest.files)
    assert set(hub.sent()) == set(FILES) - {"empty.txt"}
    assert ensure(model) == (manifest, False)
    assert hub.requests == []


def test_a_verified_model_needs_no_hub(hub: Hub, model: Source) -> None:
    ensure(model)
    hub.shutdown()
    hub.server_close()
    assert ensure(model, verify=True)[1] is False


@pytest.mark.parametrize("damage", ["truncated", "one bit", "gone"])
def test_only_a_damaged_file_is_fetched_again(hub: Hub, model: Source, damage: str) -> None:
    ensure(model)
    hub.sent()
    path = (model.snapshot / BIG).resolve()
    if damage == "gone":
        path.unlink()
    elif damage == "truncated":
        os.truncate(path, 10)
    else:
        content, before = path.read_bytes(), path.stat()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        # The clock of the file system moves in steps of some milliseconds, and the file may have been written in this.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert ensure(model)[1]
    assert set(hub.sent()) == {BIG}
    assert snapshot_files(model.hub) == FILES


def test_a_file_that_arrived_damaged_is_fetched_once_more(hub: Hub, model: Source) -> None:
    hub.damage, hub.damages = BIG, 1
    ensure(model)
    assert snapshot_files(model.hub) == FILES


def test_a_file_that_arrives_damaged_twice_is_reported_and_deleted(hub: Hub, model: Source) -> None:
    hub.damage, hub.damages = BIG, 9
    with pytest.raises(JobError, match=BIG) as bad:
        ensure(model)
    assert bad.value.reason == "corrupt"
    assert BIG not in snapshot_files(model.hub)


def test_a_small_file_is_verified_by_gits_hash(hub: Hub, model: Source) -> None:
    hub.damage, hub.damages = "config.json", 1
    with pytest.raises(JobError, match=r"config\.json"):
        ensure(model)
    ensure(model)
    assert snapshot_files(model.hub) == FILES


def test_an_earlier_download_is_adopted(hub: Hub, model: Source) -> None:
    """The state that an interrupted `hf download` leaves: no manifest, one truncated file."""
    ensure(model)
    model.manifest_file.unlink()
    os.truncate((model.snapshot / BIG).resolve(), 10)
    hub.sent()
    ensure(model)
    assert set(hub.sent()) == {BIG}
    assert snapshot_files(model.hub) == FILES


def test_a_damaged_manifest_is_reported(hub: Hub, model: Source) -> None:
    ensure(model)
    model.manifest_file.write_text(json.dumps({"commit": COMMIT}))
    with pytest.raises(ManifestError):
        ensure(model)


def test_an_unknown_model_is_a_login_error(hub: Hub, model: Source) -> None:
    with pytest.raises(JobError) as refused:
        hub_fetch.ensure_model(model, "owner/nothing", JobProgress())
    assert refused.value.reason == "hub-login"


def test_an_unreachable_hub_is_reported(model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback.refusing_port() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(JobError) as refused:
            ensure(model)
    assert refused.value.reason == "hub-down"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a tenth of the real time between attempts."""
    monkeypatch.setattr(hub_fetch, "RETRY_DELAYS_S", (0.1, 0.1))
    monkeypatch.setattr(hub_fetch, "MAX_RETRY_AFTER_S", 0.3)


def test_large_files_come_from_a_redirect(hub: Hub, model: Source) -> None:
    hub.redirects, hub.xet = True, False
    ensure(model)
    assert snapshot_files(model.hub) == FILES
    assert any(line.startswith("GET /cdn/") for line in hub.requests)


def test_a_lost_connection_is_resumed_by_a_range(hub: Hub, model: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library resumes at a multiple of this.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.cuts, hub.xet = [100_000], False
    ensure(model)
    assert snapshot_files(model.hub) == FILES
    assert any("bytes=" in line for line in hub.requests), "the rest is requested, not the whole file"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again(hub: Hub, model: Source, status: int) -> None:
    hub.answers = [(status, {"Retry-After": "1"})]
    ensure(model)
    assert hub.answers == []
    assert snapshot_files(model.hub) == FILES


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_stays_busy_is_reported(
    hub: Hub, model: Source, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library itself has asked several times by then.
    monkeypatch.setattr(hub_fetch, "RETRY_DELAYS_S", ())
    hub.answers = [(status, {"Retry-After": "1"})] * 200
    with pytest.raises(JobError, match=str(status)) as refused:
        ensure(model)
    assert refused.value.reason == "hub-down"
    assert not model.manifest_file.exists()


def test_a_refused_token_is_a_login_error(hub: Hub, model: Source) -> None:
    hub.token = "hf_right"
    with pytest.raises(JobError) as refused:
        ensure(model)
    assert refused.value.reason == "hub-login"


def test_a_file_that_changes_its_size_is_reported(hub: Hub, model: Source) -> None:
    hub.longer, hub.xet = BIG, False
    with pytest.raises(JobError) as refused:
        ensure(model)
    assert refused.value.reason in {"corrupt", "hub-down"}
    assert not model.manifest_file.exists() or BIG not in snapshot_files(model.hub)


def test_only_files_that_an_engine_reads_are_downloaded(hub: Hub, model: Source, tmp_path: Path) -> None:
    root = tmp_path / "outside" / REPOSITORY / COMMIT
    (root / "evil.py").write_text("import os")
    (root / "pytorch_model.bin").write_bytes(b"pickle" * 1000)
    manifest, _ = ensure(model)
    assert manifest.sha256 == manifest_of(FILES).sha256
    assert snapshot_files(model.hub) == FILES


def test_a_hub_with_another_list_than_the_lock_file_is_refused(hub: Hub, model: Source) -> None:
    other = Source(model.hub, FOLDER, COMMIT, accepted="0" * 64)
    with pytest.raises(OtherManifestError, match=manifest_of(FILES).sha256):
        ensure(other)
    assert not model.manifest_file.exists()
