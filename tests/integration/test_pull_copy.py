"""Copies of weights over the loopback device: bytes copied, damaged files, lost connections."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from fakes.model_copies import (
    COMMIT,
    FILES,
    FOLDER,
    TOKEN,
    FaultyRelay,
    fetch,
    file_server,
    manifest_of,
    request,
    snapshot_files,
    write_model,
)
from vllm_spark.node.pull import hub_cache, partial_file, range_client
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import StoppedError
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import FileEntry, ManifestError, Source, parse
from vllm_spark.node.pull.partial_file import PartialFile
from vllm_spark.node.pull.peer_server import PeerLogin

SIZE = sum(map(len, FILES.values()))
BIG = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, so that the test's files have many, and a short pause between attempts."""
    monkeypatch.setattr(partial_file, "CHUNK_BYTES", 1 << 16)
    for module in (partial_file, range_client):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(range_client, "RETRY_S", 0.02)


def blob(hub: Path, name: str = BIG) -> Path:
    return (Source(hub, FOLDER, COMMIT).snapshot / name).resolve()


def test_the_second_run_copies_and_reads_nothing(head: Path, worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file_server(head) as server:
        first = fetch(worker, server.server_port)
        assert (first["moved"], first["files"]) == (SIZE, len(FILES))
        assert snapshot_files(worker) == FILES
        read: list[Path] = []
        monkeypatch.setattr(hub_cache, "sha256_of", lambda path, *_: read.append(path))
        second = fetch(worker, server.server_port)
    assert (second["moved"], second["files"], read) == (0, 0, [])


@pytest.mark.parametrize(("asked", "used"), [(3, 3), (0, range_client.STREAMS), (-1, range_client.STREAMS)])
def test_the_cores_decide_how_many_connections_there_are(
    head: Path, worker: Path, monkeypatch: pytest.MonkeyPatch, asked: int, used: int
) -> None:
    seen: list[int] = []
    work = range_client.RangeClient._work

    def count(client: range_client.RangeClient, damaged: list[PartialFile]) -> None:
        seen.append(1)
        work(client, damaged)

    monkeypatch.setattr(range_client.RangeClient, "_work", count)
    with file_server(head) as server:
        fetch(worker, server.server_port, streams=asked)
    assert len(seen) == used
    assert snapshot_files(worker) == FILES


def test_the_layout_is_that_of_a_hub_cache(head: Path, worker: Path) -> None:
    """The layout that the engine's own library expects in offline mode."""
    with file_server(head) as server:
        fetch(worker, server.server_port)
    links = [file for file in Source(worker, FOLDER, COMMIT).snapshot.rglob("*") if not file.is_dir()]
    assert len(links) == len(FILES)
    assert all(link.is_symlink() and not os.path.isabs(link.readlink()) for link in links)
    assert {link.resolve().parent for link in links} == {worker / FOLDER / "blobs"}
    assert not [file for file in (worker / FOLDER / "blobs").iterdir() if "vllm-spark" in file.name]


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    before = path.stat()
    path.write_bytes(content)
    # The clock of the file system moves in steps of some milliseconds, and the file may have been written in this one.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def flip_silently(path: Path) -> None:
    """Change a byte as a failing disk does: size and time of change stay the same."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# name -> (damage to a file of the worker, whether it is only found with `verify`)
DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "truncated": (lambda path: os.truncate(path, 1000), False),
    "longer": (grow, False),
    "one bit": (flip, False),
    "one bit, silently": (flip_silently, True),
    "gone": (lambda path: path.unlink(), False),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_only_the_damaged_file_is_fetched_again(head: Path, worker: Path, name: str) -> None:
    damage, verify = DAMAGES[name]
    with file_server(head) as server:
        fetch(worker, server.server_port)
        damage(blob(worker))
        if verify:
            assert fetch(worker, server.server_port)["moved"] == 0, "a file with a stamp is not read without verify"
        again = fetch(worker, server.server_port, verify=verify)
    assert (again["files"], again["moved"]) == (1, len(FILES[BIG]))
    assert snapshot_files(worker) == FILES


def test_lost_connections_are_reopened(head: Path, worker: Path) -> None:
    with file_server(head) as server:
        relay = FaultyRelay(server.server_port, after=100_000, losses=20)
        result = fetch(worker, relay.port)
        relay.close()
    assert snapshot_files(worker) == FILES
    assert result["reconnects"] > 0
    assert result["moved"] == SIZE, "what has arrived of a chunk is not requested again"


def test_a_permanent_loss_ends_the_copy_and_the_next_run_fetches_the_rest(head: Path, worker: Path) -> None:
    with file_server(head) as server:
        relay = FaultyRelay(server.server_port, budget=400_000)
        with pytest.raises(JobError) as lost:
            fetch(worker, relay.port, streams=1, idle_timeout_s=2)
        relay.close()
        assert lost.value.reason == "link"
        assert "what has arrived is kept" in str(lost.value)
        state = hub_cache.model_states(str(worker), request(worker, 0)["sources"])[0]
        assert state["missing"] > 0
        rest = fetch(worker, server.server_port)
    assert 0 < rest["moved"] < SIZE
    assert snapshot_files(worker) == FILES


def test_a_stopped_copy_keeps_what_has_arrived(head: Path, worker: Path) -> None:
    stop = Event()

    class StoppingProgress(JobProgress):
        def add(self, size: int) -> None:
            super().add(size)
            if self.phase == "copying" and self.done > 300_000:
                stop.set()

    progress = StoppingProgress()
    with file_server(head) as server:
        with pytest.raises(JobError) as stopped:
            range_client.fetch_from_peer(request(worker, server.server_port), progress, stop)
        assert stopped.value.reason == "stopped"
        rest = fetch(worker, server.server_port)
    assert rest["moved"] < SIZE
    assert snapshot_files(worker) == FILES


def test_a_damaged_copy_of_the_sender_is_reported(head: Path, worker: Path) -> None:
    flip_silently(blob(head))
    with file_server(head) as server, pytest.raises(JobError) as bad:
        fetch(worker, server.server_port)
    assert bad.value.reason == "corrupt"
    assert BIG in str(bad.value)
    assert BIG not in snapshot_files(worker)
    assert not list((worker / FOLDER / "blobs").glob(f"{blob(head).name}*"))


# name -> change to the request
REFUSED = {
    "another token": {"token": "guessed"},
    "another model": {"sources": [{"folder": "models--a--b", "commit": COMMIT, "manifest": "0" * 64}]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_token_or_model_is_refused(head: Path, worker: Path, name: str) -> None:
    with file_server(head) as server, pytest.raises(JobError) as refused:
        fetch(worker, server.server_port, **REFUSED[name])
    assert refused.value.reason == "giver"
    assert not list(worker.rglob("*.safetensors"))


@pytest.mark.parametrize("path", ["../../../etc/passwd", f"{FOLDER}/{COMMIT}/../../secret", "", f"{FOLDER}/{COMMIT}/x"])
def test_no_other_file_is_served(head: Path, path: str) -> None:
    (head / "secret").write_text("x")
    with file_server(head) as server:
        login = PeerLogin(("127.0.0.1", server.server_port), TOKEN)
        client = range_client.RangeClient(login, JobProgress(), Event(), idle_timeout_s=60)
        assert client.get(f"/{path}")[0] == 404


def test_two_commits_share_equal_files(head: Path, worker: Path) -> None:
    later = "decade" + "0" * 34
    changed = {**FILES, "config.json": b'{"architectures": ["Tiny2"]}\n'}
    with file_server(head) as server:
        fetch(worker, server.server_port)
    write_model(head, changed, later)
    with file_server(head, commit=later) as server:
        ref = {"folder": FOLDER, "commit": later, "manifest": manifest_of(changed, later).sha256}
        result = fetch(worker, server.server_port, sources=[ref])
    assert result["moved"] == len(changed["config.json"])
    assert snapshot_files(worker, later) == changed
    assert snapshot_files(worker) == FILES


def test_the_state_has_whole_unread_and_missing_bytes(head: Path, worker: Path) -> None:
    sources = request(worker, 0)["sources"]
    empty = hub_cache.model_states(str(worker), sources)[0]
    assert (empty["manifest"], empty["present"]) == (False, False)
    unread = hub_cache.model_states(str(head), sources)[0]
    assert (unread["whole"], unread["unread"], unread["missing"]) == (0, SIZE, 0)
    source = Source(head, FOLDER, COMMIT)
    manifest = source.manifest()
    assert manifest is not None
    assert hub_cache.remove_bad_files(source, manifest, verify=False) == []
    assert hub_cache.model_states(str(head), sources)[0]["whole"] == SIZE
    os.truncate(blob(head), 5)
    truncated = hub_cache.model_states(str(head), sources)[0]
    assert (truncated["missing"], truncated["wrong"]) == (len(FILES[BIG]), [BIG])


def test_a_stopped_check_deletes_nothing(head: Path) -> None:
    source, stop = Source(head, FOLDER, COMMIT), Event()
    stop.set()
    manifest = source.manifest()
    assert manifest is not None
    with pytest.raises(StoppedError):
        hub_cache.remove_bad_files(source, manifest, verify=True, stop=stop)
    assert snapshot_files(head) == FILES


def test_with_unreadable_stamps_every_file_is_read_again(head: Path) -> None:
    source = Source(head, FOLDER, COMMIT)
    manifest = source.manifest()
    assert manifest is not None
    hub_cache.remove_bad_files(source, manifest, verify=False)
    ChecksumCache.load(source.root).file.write_text("{")
    assert hub_cache.model_states(str(head), request(head, 0)["sources"])[0]["unread"] == SIZE
    assert hub_cache.remove_bad_files(source, manifest, verify=False) == []


BAD_MANIFESTS = {
    "a parent folder": {"path": "../../etc/passwd"},
    "an absolute path": {"path": "/etc/passwd"},
    "a blob in another folder": {"blob": "../x"},
    "no sha256": {"sha256": "abc"},
    "a negative size": {"size": -1},
    "no path": {"path": ""},
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_an_invalid_manifest_is_refused(name: str) -> None:
    good = {"path": "a.json", "size": 1, "sha256": "0" * 64, "blob": "0" * 64}
    document = {"repository": "o/m", "commit": COMMIT, "files": [good]}
    assert parse(json.dumps(document)).size == 1
    with pytest.raises(ManifestError):
        parse(json.dumps({**document, "files": [{**good, **BAD_MANIFESTS[name]}]}))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of half a megabyte. Skips without root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs root to mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_before_the_copy(head: Path, tiny_disk: Path) -> None:
    with file_server(head) as server:
        with pytest.raises(JobError) as full:
            fetch(tiny_disk, server.server_port)
        assert server.sent == 0
    assert full.value.reason == "disk-full"
    assert "700001 bytes" in str(full.value)


def test_a_copy_continues_after_the_disk_has_space(head: Path, tiny_disk: Path) -> None:
    with file_server(head) as server:
        with pytest.raises(JobError):
            fetch(tiny_disk, server.server_port)
        subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
        fetch(tiny_disk, server.server_port)
    assert snapshot_files(tiny_disk) == FILES


def test_a_snapshot_without_links_is_served(tmp_path: Path, worker: Path) -> None:
    """A download into a folder leaves files instead of links."""
    source = write_model(tmp_path / "plain")
    for link in [file for file in source.snapshot.rglob("*") if file.is_symlink()]:
        content = link.read_bytes()
        link.unlink()
        link.write_bytes(content)
    with file_server(tmp_path / "plain") as server:
        fetch(worker, server.server_port)
    assert snapshot_files(worker) == FILES


def test_progress_ends_at_its_total(head: Path, worker: Path) -> None:
    progress = JobProgress()
    with file_server(head) as server:
        relay = FaultyRelay(server.server_port, after=100_000, losses=5)
        range_client.fetch_from_peer(request(worker, relay.port), progress, Event())
        relay.close()
    assert (progress.phase, progress.done) == ("copying", progress.total)
    assert json.dumps(progress.to_json())


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]], ids=["in order", "backwards", "mixed"])
def test_the_hash_follows_the_chunks_and_completes_once(
    worker: Path, monkeypatch: pytest.MonkeyPatch, order: list[int]
) -> None:
    to_disk: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, begin, size, __: to_disk.append((begin, begin + size)))
    content = os.urandom(3 * partial_file.CHUNK_BYTES + 5)
    digest = hashlib.sha256(content).hexdigest()
    file = PartialFile(Source(worker, FOLDER, COMMIT), FileEntry(BIG, len(content), digest, digest))
    file.open()
    completed = []
    for number in order:
        begin, end = file.chunk_range(number)
        os.pwrite(file.descriptor, content[begin:end], begin)
        file.mark_chunk(number)
        completed.append(file.update_hash(Event()))
    assert completed == [False, False, False, True]
    assert file.digest.hexdigest() == digest
    assert to_disk == [file.chunk_range(number) for number in range(4)], "the disk must begin to write what is hashed"
    assert not file.update_hash(Event()), "two threads would both finish the file"
    file.delete()
