"""From the hub into a hub cache, by the hub's own library from a stand-in: exact commit, manifest, damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from pull_boxes import COMMIT, FILES, FOLDER, REPOSITORY, shown

import loopback
from stand_in_hub import Hub
from vllm_spark.node.pull import hub_cache, hub_fetch
from vllm_spark.node.pull.hub_cache import Manifest, Source
from vllm_spark.node.pull.job import JobError, JobProgress

BIG = "model-00001-of-00002.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has the model."""
    root = tmp_path / "outside" / REPOSITORY / COMMIT
    for path, content in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    with Hub(tmp_path / "outside", ("127.0.0.1", 0)) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(hub_fetch, "POLL_INTERVAL_S", 0.02)
        yield server
        server.shutdown()


@pytest.fixture
def box(tmp_path: Path) -> Source:
    return Source(tmp_path / "box", FOLDER, COMMIT)


def have(box: Source, *, verify: bool = False) -> tuple[Manifest, bool]:
    return hub_fetch.ensure_model(box, REPOSITORY, JobProgress(), verify=verify)


def fetched(hub: Hub) -> set[str]:
    """The files whose content was sent since the last call."""
    sent = {
        line.split()[1].rpartition(f"{COMMIT}/")[2]
        for line in hub.asked
        if line.startswith("GET") and "/resolve/" in line
    }
    hub.asked.clear()
    return sent


def test_the_model_comes_with_its_manifest_and_the_second_run_asks_nobody(hub: Hub, box: Source) -> None:
    manifest, asked = have(box)
    assert asked
    assert shown(box.hub) == FILES
    assert {entry.path: entry.size for entry in manifest.files} == {
        path: len(content) for path, content in FILES.items()
    }
    assert all((box.root / "blobs" / entry.blob).is_file() for entry in manifest.files)
    assert fetched(hub) == set(FILES) - {"empty.txt"}
    assert have(box) == (manifest, False)
    assert hub.asked == []


def test_what_was_proven_needs_no_hub(hub: Hub, box: Source) -> None:
    have(box)
    hub.shutdown()
    hub.server_close()
    assert have(box, verify=True)[1] is False


@pytest.mark.parametrize("damage", ["truncated", "one bit", "gone"])
def test_a_damaged_file_alone_is_fetched_again(hub: Hub, box: Source, damage: str) -> None:
    have(box)
    fetched(hub)
    path = (box.snapshot / BIG).resolve()
    if damage == "gone":
        path.unlink()
    elif damage == "truncated":
        os.truncate(path, 10)
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert have(box)[1]
    assert fetched(hub) == {BIG}
    assert shown(box.hub) == FILES


def test_what_the_hub_sent_damaged_is_fetched_once_more(hub: Hub, box: Source) -> None:
    hub.damage, hub.damages = BIG, 1
    have(box)
    assert shown(box.hub) == FILES


def test_a_hub_that_sends_it_damaged_again_is_named_and_nothing_of_it_stays(hub: Hub, box: Source) -> None:
    hub.damage, hub.damages = BIG, 9
    with pytest.raises(JobError, match=BIG) as bad:
        have(box)
    assert bad.value.reason == "corrupt"
    assert BIG not in shown(box.hub)


def test_a_small_file_is_held_against_gits_hash(hub: Hub, box: Source) -> None:
    hub.damage, hub.damages = "config.json", 1
    with pytest.raises(JobError, match=r"config\.json"):
        have(box)
    have(box)
    assert shown(box.hub) == FILES


def test_a_download_of_before_is_taken_over_without_fetching_it_again(hub: Hub, box: Source) -> None:
    """As `hf download` leaves it: no manifest, one file cut off."""
    have(box)
    box.manifest_file.unlink()
    os.truncate((box.snapshot / BIG).resolve(), 10)
    fetched(hub)
    have(box)
    assert fetched(hub) == {BIG}
    assert shown(box.hub) == FILES


def test_a_damaged_manifest_is_said(hub: Hub, box: Source) -> None:
    have(box)
    box.manifest_file.write_text(json.dumps({"commit": COMMIT}))
    with pytest.raises(hub_cache.ManifestError):
        have(box)


def test_no_such_model(hub: Hub, box: Source) -> None:
    with pytest.raises(JobError) as refused:
        hub_fetch.ensure_model(box, "owner/nothing", JobProgress())
    assert refused.value.reason == "hub-login"


def test_no_hub(box: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback.nobody() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(JobError) as refused:
            have(box)
    assert refused.value.reason == "hub-down"
