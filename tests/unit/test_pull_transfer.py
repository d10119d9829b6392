"""Weights from box to box, for real over the loopback device: what is moved, what is not, and what survives a cut."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from pull_boxes import COMMIT, FILES, FOLDER, TOKEN, Cable, giving, model, request, shown, take

from vllm_spark.node.pull import hub_cache, range_copy
from vllm_spark.node.pull.hub_cache import ChecksumCache, Entry, Source
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.range_copy import PartialFile

SIZE = sum(map(len, FILES.values()))
BIG = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of which a test's shards have many, and a short patience."""
    monkeypatch.setattr(range_copy, "CHUNK", 1 << 16)
    monkeypatch.setattr(range_copy, "BLOCK", 1 << 14)
    monkeypatch.setattr(range_copy, "RETRY_S", 0.02)
    monkeypatch.setattr(range_copy, "READ_TIMEOUT_S", 1.0)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    model(tmp_path / "head")
    return tmp_path / "head"


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    return tmp_path / "worker"


def blob(hub: Path, name: str = BIG) -> Path:
    return (Source(hub, FOLDER, COMMIT).snapshot / name).resolve()


def test_everything_arrives_once_and_the_second_run_moves_and_reads_nothing(
    head: Path, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with giving(head) as giver:
        first = take(worker, giver.server_port)
        assert (first["moved"], first["files"]) == (SIZE, len(FILES))
        assert shown(worker) == FILES
        read: list[Path] = []
        monkeypatch.setattr(hub_cache, "sha256_of", lambda path, *_: read.append(path))
        second = take(worker, giver.server_port)
    assert (second["moved"], second["files"], read) == (0, 0, [])


def test_it_is_a_hub_cache(head: Path, worker: Path) -> None:
    """The layout that the engine's own library expects in offline mode."""
    with giving(head) as giver:
        take(worker, giver.server_port)
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
    path.write_bytes(content)


def flip_unseen(path: Path) -> None:
    """As a disk does it: neither size nor time of change tells."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# what happens to a file of the worker -> whether the run has to be told to read everything
DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "truncated": (lambda path: os.truncate(path, 1000), False),
    "longer": (grow, False),
    "one bit": (flip, False),
    "one bit, unseen": (flip_unseen, True),
    "gone": (lambda path: path.unlink(), False),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_found_and_fetched_alone(head: Path, worker: Path, name: str) -> None:
    damage, verify = DAMAGES[name]
    with giving(head) as giver:
        take(worker, giver.server_port)
        damage(blob(worker))
        if verify:
            assert take(worker, giver.server_port)["moved"] == 0, "a stamp vouches for it until it is asked to read"
        again = take(worker, giver.server_port, verify=verify)
    assert (again["files"], again["moved"]) == (1, len(FILES[BIG]))
    assert shown(worker) == FILES


def test_what_is_cut_goes_on_over_new_connections(head: Path, worker: Path) -> None:
    with giving(head) as giver:
        cable = Cable(giver.server_port, after=100_000, cuts=20)
        result = take(worker, cable.port)
        cable.close()
    assert shown(worker) == FILES
    assert result["reconnects"] > 0


def test_a_cable_that_stays_cut_ends_it_and_the_next_run_asks_for_the_rest(head: Path, worker: Path) -> None:
    with giving(head) as giver:
        cable = Cable(giver.server_port, budget=400_000)
        with pytest.raises(JobError) as cut:
            take(worker, cable.port, streams=1, patience_s=0.3)
        cable.close()
        assert cut.value.reason == "link"
        assert "what has arrived is kept" in str(cut.value)
        looked = hub_cache.look(str(worker), request(worker, 0)["sources"])[0]
        assert looked["missing"] > 0
        rest = take(worker, giver.server_port)
    assert 0 < rest["moved"] < SIZE
    assert shown(worker) == FILES


def test_told_to_end_it_keeps_what_has_arrived(head: Path, worker: Path) -> None:
    stop = Event()

    class Interrupted(JobProgress):
        def add(self, size: int) -> None:
            super().add(size)
            if self.phase == "copying" and self.done > 300_000:
                stop.set()

    progress = Interrupted()
    with giving(head) as giver:
        with pytest.raises(JobError) as told:
            range_copy.fetch_from_peer(request(worker, giver.server_port), progress, stop)
        assert told.value.reason == "stopped"
        rest = take(worker, giver.server_port)
    assert rest["moved"] < SIZE
    assert shown(worker) == FILES


def test_a_giver_whose_copy_is_bad_is_named(head: Path, worker: Path) -> None:
    flip_unseen(blob(head))
    with giving(head) as giver, pytest.raises(JobError) as bad:
        take(worker, giver.server_port)
    assert bad.value.reason == "corrupt"
    assert BIG in str(bad.value)
    assert BIG not in shown(worker)
    assert not list((worker / FOLDER / "blobs").glob(f"{blob(head).name}*"))


# what the taker asks with -> what is said
REFUSED = {
    "another token": {"token": "guessed"},
    "another model": {"sources": [{"folder": "models--a--b", "commit": COMMIT}]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_only_this_transfer_is_served(head: Path, worker: Path, name: str) -> None:
    with giving(head) as giver, pytest.raises(JobError) as refused:
        take(worker, giver.server_port, **REFUSED[name])
    assert refused.value.reason == "giver"
    assert not list(worker.rglob("*.safetensors"))


@pytest.mark.parametrize("path", ["../../../etc/passwd", f"{FOLDER}/{COMMIT}/../../secret", "", f"{FOLDER}/{COMMIT}/x"])
def test_no_other_file_is_served(head: Path, path: str) -> None:
    (head / "secret").write_text("x")
    with giving(head) as giver:
        taker = range_copy.RangeClient(("127.0.0.1", giver.server_port), TOKEN, JobProgress(), Event(), patience_s=1)
        assert taker._small(f"/{path}")[0] == 404


def test_two_commits_share_what_they_have_in_common(head: Path, worker: Path) -> None:
    later = "decade" + "0" * 34
    changed = {**FILES, "config.json": b'{"architectures": ["Tiny2"]}\n'}
    with giving(head) as giver:
        take(worker, giver.server_port)
    model(head, changed, later)
    with giving(head, commit=later) as giver:
        moved = take(worker, giver.server_port, sources=[{"folder": FOLDER, "commit": later}])
    assert moved["moved"] == len(changed["config.json"])
    assert shown(worker, later) == changed
    assert shown(worker) == FILES


def test_look_says_what_is_whole_and_what_is_not(head: Path, worker: Path) -> None:
    sources = request(worker, 0)["sources"]
    empty = hub_cache.look(str(worker), sources)[0]
    assert (empty["manifest"], empty["present"]) == (False, False)
    unread = hub_cache.look(str(head), sources)[0]
    assert (unread["whole"], unread["unread"], unread["missing"]) == (0, SIZE, 0)
    source = Source(head, FOLDER, COMMIT)
    manifest = source.manifest()
    assert manifest is not None
    assert hub_cache.check(source, manifest, verify=False) == []
    assert hub_cache.look(str(head), sources)[0]["whole"] == SIZE
    os.truncate(blob(head), 5)
    cut = hub_cache.look(str(head), sources)[0]
    assert (cut["missing"], cut["wrong"]) == (len(FILES[BIG]), [BIG])


def test_a_check_that_is_told_to_end_takes_nothing_away(head: Path) -> None:
    source, stop = Source(head, FOLDER, COMMIT), Event()
    stop.set()
    manifest = source.manifest()
    assert manifest is not None
    with pytest.raises(hub_cache.StoppedError):
        hub_cache.check(source, manifest, verify=True, stop=stop)
    assert shown(head) == FILES


def test_stamps_that_cannot_be_read_cost_a_reading_and_nothing_else(head: Path) -> None:
    source = Source(head, FOLDER, COMMIT)
    manifest = source.manifest()
    assert manifest is not None
    hub_cache.check(source, manifest, verify=False)
    ChecksumCache.of(source.root).file.write_text("{")
    assert hub_cache.look(str(head), request(head, 0)["sources"])[0]["unread"] == SIZE
    assert hub_cache.check(source, manifest, verify=False) == []


BAD_MANIFESTS = {
    "a way out": {"path": "../../etc/passwd"},
    "from the root": {"path": "/etc/passwd"},
    "a blob elsewhere": {"blob": "../x"},
    "no sha256": {"sha256": "abc"},
    "a negative size": {"size": -1},
    "no path": {"path": ""},
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_a_manifest_that_leaves_its_folder_is_refused(name: str) -> None:
    good = {"path": "a", "size": 1, "sha256": "0" * 64, "blob": "0" * 64}
    document = {"repository": "o/m", "commit": COMMIT, "files": [good]}
    assert hub_cache.parse(document).size == 1
    with pytest.raises(hub_cache.ManifestError):
        hub_cache.parse({**document, "files": [{**good, **BAD_MANIFESTS[name]}]})


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs root to mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_before_a_byte_is_moved(head: Path, tiny_disk: Path) -> None:
    with giving(head) as giver:
        with pytest.raises(JobError) as full:
            take(tiny_disk, giver.server_port)
        assert giver.sent == 0
    assert full.value.reason == "disk-full"
    assert "700001 bytes" in str(full.value)


def test_a_disk_that_has_room_again_goes_on(head: Path, tiny_disk: Path) -> None:
    with giving(head) as giver:
        with pytest.raises(JobError):
            take(tiny_disk, giver.server_port)
        subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
        take(tiny_disk, giver.server_port)
    assert shown(tiny_disk) == FILES


def test_a_plain_copy_of_the_files_is_given_too(tmp_path: Path, worker: Path) -> None:
    """A snapshot that holds files and no links, as a download into a folder leaves it."""
    source = model(tmp_path / "plain")
    for link in [file for file in source.snapshot.rglob("*") if file.is_symlink()]:
        content = link.read_bytes()
        link.unlink()
        link.write_bytes(content)
    with giving(tmp_path / "plain") as giver:
        take(worker, giver.server_port)
    assert shown(worker) == FILES


def test_progress_ends_at_its_total(head: Path, worker: Path) -> None:
    progress = JobProgress()
    with giving(head) as giver:
        cable = Cable(giver.server_port, after=100_000, cuts=5)
        range_copy.fetch_from_peer(request(worker, cable.port), progress, Event())
        cable.close()
    assert (progress.phase, progress.done) == ("copying", progress.total)
    assert json.dumps(progress.to_json())


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]], ids=["in order", "backwards", "mixed"])
def test_the_sum_follows_what_arrives_and_ends_once(worker: Path, order: list[int]) -> None:
    content = os.urandom(3 * range_copy.CHUNK + 5)
    digest = hashlib.sha256(content).hexdigest()
    part = PartialFile(Source(worker, FOLDER, COMMIT), Entry(BIG, len(content), digest, digest))
    part.open()
    ended = []
    for number in order:
        begin, end = part.span(number)
        os.pwrite(part.descriptor, content[begin:end], begin)
        part.arrived(number)
        ended.append(part.sum_up(Event()))
    assert ended == [False, False, False, True]
    assert part.digest.hexdigest() == digest
    assert not part.sum_up(Event()), "two threads would both make a blob of it"
    part.drop()
