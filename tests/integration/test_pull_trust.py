"""Proofs that a pull believes neither a sender nor a folder: impostors, other manifests, links, half requests."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import loopback
from fakes.fake_http import QuietServer
from fakes.model_copies import (
    COMMIT,
    FILES,
    FOLDER,
    REPOSITORY,
    TOKEN,
    fetch,
    file_server,
    manifest_of,
    request,
    snapshot_files,
    write_model,
)
from vllm_spark.node.pull import hub_cache, hub_fetch, peer_server, range_client, range_server
from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import ManifestError, Source, is_taken, parse
from vllm_spark.node.pull.peer_server import PeerLogin
from vllm_spark.transfer import bundle, bundle_check
from vllm_spark.transfer.bundle_check import Trust
from vllm_spark.transfer.site import PulledModel
from waiting import LIMIT_S, until

UNSIGNED = Trust(Path("no signers"), unsigned=True)
EVIL = {**FILES, "model-00002-of-00002.safetensors": b"EVIL" * 1000}
BIG = "model-00001-of-00002.safetensors"


class _Impostor(BaseHTTPRequestHandler):
    """Answers every request with status 200 and the same body, and records what it receives."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self.server.received.append(f"{self.path}\n{self.headers}")
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def impostor(body: bytes) -> Iterator[Any]:
    server: Any = QuietServer(("127.0.0.1", 0), _Impostor)
    server.body, server.received = body, []
    with loopback.running(server):
        yield server


# name -> what the impostor answers
ANSWERS = {
    "a manifest of its own": manifest_of(EVIL).to_json().encode(),
    "a guessed proof": json.dumps({"nonce": "0" * 32, "proof": "0" * 64}).encode(),
    "numbers": b'{"nonce": 1, "proof": 2}',
    "deep nesting": b"[" * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_impostor_gets_no_secret_and_is_not_believed(worker: Path, name: str) -> None:
    with impostor(ANSWERS[name]) as server, pytest.raises(JobError, match="does not prove that it belongs") as refused:
        fetch(worker, server.server_port)
    assert refused.value.reason == "giver"
    assert server.received
    assert not any(TOKEN in text for text in server.received)
    assert not worker.exists()


def test_a_sender_with_another_manifest_is_refused_before_anything_is_written(tmp_path: Path, worker: Path) -> None:
    """The sender has the secret, and changed its files together with its own list."""
    write_model(tmp_path / "evil", EVIL)
    with file_server(tmp_path / "evil") as server:
        with pytest.raises(JobError, match=manifest_of(EVIL).sha256) as refused:
            fetch(worker, server.server_port)
        assert server.sent == 0
    assert refused.value.reason == "other-manifest"
    assert manifest_of(FILES).sha256 in str(refused.value)
    assert not worker.exists()


def test_a_request_without_a_manifest_is_refused(head: Path, worker: Path) -> None:
    with file_server(head) as server, pytest.raises(JobError, match="does not name the sha256") as refused:
        fetch(worker, server.server_port, sources=[{"folder": FOLDER, "commit": COMMIT}])
    assert refused.value.reason == "other-manifest"
    assert not worker.exists()


def test_the_state_of_a_copy_is_compared_with_the_lock_file(tmp_path: Path) -> None:
    write_model(tmp_path / "head", EVIL)
    sources = request(tmp_path / "head", 0)["sources"]
    state = hub_cache.model_states(str(tmp_path / "head"), sources)[0]
    assert (state["manifest"], state["whole"], state["unread"]) == (False, 0, 0)
    assert manifest_of(EVIL).sha256 in state["error"]
    with pytest.raises(ManifestError, match="expected"):
        range_server.serve_files(request(tmp_path / "head", loopback.held_port()), JobProgress(), Event())


@pytest.mark.parametrize("listen", ["same address", "every address"])
def test_a_port_that_is_taken_is_reported_at_once(head: Path, listen: str) -> None:
    with socket.create_server(("127.0.0.1" if listen == "same address" else "", 0)) as taken:
        started_at = time.monotonic()
        with pytest.raises(JobError) as refused:
            range_server.serve_files(request(head, taken.getsockname()[1]), JobProgress(), Event())
    assert refused.value.reason == "port-taken"
    assert time.monotonic() - started_at < LIMIT_S


def test_a_server_reports_its_manifests_when_its_port_is_open(head: Path) -> None:
    progress, stop, port = JobProgress(), Event(), loopback.held_port()
    thread = Thread(target=range_server.serve_files, args=(request(head, port), progress, stop))
    thread.start()
    until(lambda: progress.to_json()["phase"] == "serving" or not thread.is_alive())
    assert thread.is_alive()
    assert progress.to_json()["manifests"] == {f"{FOLDER}/{COMMIT}": manifest_of(FILES).sha256}
    socket.create_connection(("127.0.0.1", port)).close()
    stop.set()
    thread.join()


def raw(port: int, text: bytes) -> bytes:
    """Send bytes, and return the beginning of the server's answer, empty if it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        connection.sendall(text)
        with suppress(ConnectionError):
            return connection.recv(65536)
    return b""


def test_a_recorded_request_is_worth_nothing_for_another_path_or_server(head: Path) -> None:
    path = f"/{FOLDER}/{COMMIT}"
    with file_server(head) as server:
        headers = PeerLogin(("127.0.0.1", server.server_port), TOKEN).headers(path)
        text = f"Host: x\r\nAuthorization: {headers['Authorization']}\r\n\r\n".encode()
        assert b" 200 " in raw(server.server_port, f"GET {path} HTTP/1.1\r\n".encode() + text)
        for changed in (f"GET {path}/config.json", f"HEAD {path}", f"GET {path}?x"):
            assert b" 200 " not in raw(server.server_port, f"{changed} HTTP/1.1\r\n".encode() + text)
        other = f"GET {path} HTTP/1.1\r\nRange: bytes=0-1\r\n".encode()
        assert b" 401 " in raw(server.server_port, other + text)
    with file_server(head) as later:
        assert b" 401 " in raw(later.server_port, f"GET {path} HTTP/1.1\r\n".encode() + text)


def test_requests_without_proof_do_not_keep_a_server_alive(head: Path) -> None:
    port, ended = loopback.held_port(), Event()

    def serve() -> None:
        range_server.serve_files({**request(head, port), "idle_timeout_s": 1.0}, JobProgress(), Event())
        ended.set()

    Thread(target=serve, daemon=True).start()
    deadline = time.monotonic() + LIMIT_S
    while not ended.wait(0.05) and time.monotonic() < deadline:
        with suppress(OSError):
            raw_once(port)
    assert ended.is_set()


def raw_once(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"GET /x HTTP/1.1\r\nAuthorization: Bearer guessed\r\n\r\n")
        connection.recv(1000)


def count_calls(target: object, name: str) -> list[None]:
    """Return a list that gets an entry for each call of a method from now on."""
    calls: list[None] = []
    method = getattr(target, name)
    setattr(target, name, lambda *args: (calls.append(None), method(*args))[1])
    return calls


def test_half_requests_take_a_bounded_number_of_threads(head: Path, worker: Path) -> None:
    with file_server(head) as server, ExitStack() as stack:
        before, accepted = threading.active_count(), count_calls(server, "process_request")
        for _ in range(200):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            half.sendall(b"GET /x HTTP/1.1\r\nHost:")
        until(lambda: len(accepted) >= 200)
        # The threads of those that the server has closed end.
        until(lambda: threading.active_count() - before <= peer_server.MAX_UNPROVEN + 2)
        assert fetch(worker, server.server_port)["files"] == len(FILES)
    assert snapshot_files(worker) == FILES


# a Range -> the status for a proven client
RANGES = {
    f"bytes=0-{'9' * 5000}": b" 416 ",
    f"bytes={'9' * 5000}-": b" 416 ",
    "bytes=5-1": b" 416 ",
    "bytes=0-0,1-1": b" 416 ",
    "bytes=0-3": b" 206 ",
}


@pytest.mark.parametrize("byte_range", RANGES, ids=lambda text: text[:20])
def test_an_odd_range_is_refused_without_a_traceback(
    head: Path, byte_range: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = f"/{FOLDER}/{COMMIT}/{BIG}"
    with file_server(head) as server:
        headers = PeerLogin(("127.0.0.1", server.server_port), TOKEN).headers(path, byte_range)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        assert RANGES[byte_range] in raw(server.server_port, f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    assert "Traceback" not in capfd.readouterr().err


def entry(**changes: Any) -> dict[str, Any]:
    return {"path": "a.json", "size": 1, "sha256": "0" * 64, "blob": "0" * 64, **changes}


# name -> the list of files of a manifest, as text
HOSTILE = {
    "a size of Infinity": json.dumps([entry(size=float("inf"))]),
    "a size of NaN": json.dumps([entry(size=float("nan"))]),
    "a size of 10^30": json.dumps([entry(size=10**30)]),
    "a size of 5000 digits": json.dumps([entry()]).replace('"size": 1', f'"size": {"9" * 5000}'),
    "a size that is true": json.dumps([entry(size=True)]),
    "a size as text": json.dumps([entry(size="1")]),
    "deep nesting": "[" * 100_000,
    "a lone surrogate": json.dumps([entry(path="\ud800.json")]),
    "a newline in a name": json.dumps([entry(path="a\n.json")]),
    "an escape in a name": json.dumps([entry(path="a\x1b[2J.json")]),
    "a C1 control in a name": json.dumps([entry(path="a\x9b.json")]),
    "a right-to-left override": json.dumps([entry(path="a\u202egnp.json")]),
    "a name of 300 bytes": json.dumps([entry(path=f"{'a' * 300}.json")]),
    "a parent folder": json.dumps([entry(path="a/../../b.json")]),
    "an absolute path": json.dumps([entry(path="/etc/x.json")]),
    "a path that is a number": json.dumps([entry(path=1)]),
    "a file twice": json.dumps([entry(), entry(sha256="1" * 64, blob="1" * 64)]),
    "a file that is a folder": json.dumps([entry(), entry(path="a.json/b.json")]),
    "one blob for two contents": json.dumps([entry(), entry(path="b.json", sha256="1" * 64)]),
    "no list": "{}",
    "a list of numbers": "[1, 2]",
    "only files of other kinds": json.dumps([entry(path="evil.py"), entry(path="pytorch_model.bin")]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    text = f'{{"repository": "{REPOSITORY}", "commit": "{COMMIT}", "files": {HOSTILE[name]}}}'
    with pytest.raises(ManifestError, match="invalid manifest") as refused:
        parse(text)
    assert str(refused.value).isprintable()
    file = Source(tmp_path, FOLDER, COMMIT).manifest_file
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert (
        "invalid manifest" in hub_cache.model_states(str(tmp_path), [{"folder": FOLDER, "commit": COMMIT}])[0]["error"]
    )


# path -> taken without a recipe that names it
KINDS = {
    "model-1.safetensors": True,
    "tokenizer.model.v11m1": True,
    "original/params.json": True,
    "chat_template.jinja": True,
    "LICENSE": True,
    "modeling_x.py": False,
    "pytorch_model.bin": False,
    "model.safetensors.py": False,
    "consolidated.pth": False,
    "run.sh": False,
    ".json": False,
}


@pytest.mark.parametrize("path", KINDS)
def test_the_kinds_of_files_that_are_taken(path: str) -> None:
    assert is_taken(path) is KINDS[path]
    assert is_taken(path, {path})


def test_only_files_that_an_engine_reads_are_taken_and_those_that_a_recipe_names(tmp_path: Path, worker: Path) -> None:
    files = {**FILES, "evil.py": b"import os\n", "weights.pth": b"pickle", "plugin.py": b"# named\n"}
    write_model(tmp_path / "head", files)
    named = {entry.path: entry.sha256 for entry in manifest_of(files).files if entry.path == "plugin.py"}
    model = Source(tmp_path / "head", FOLDER, COMMIT, more=named)
    manifest = model.manifest()
    assert manifest is not None
    assert manifest.sha256 == manifest_of(FILES).sha256, "files of other kinds are not part of the identity"
    models = {f"{FOLDER}/{COMMIT}": (model, manifest)}
    with loopback.running(range_server.RangeServer(("127.0.0.1", 0), TOKEN, models)) as server:
        ref = {"folder": FOLDER, "commit": COMMIT, "manifest": manifest.sha256}
        fetch(worker, server.server_port, sources=[ref])
        assert set(snapshot_files(worker)) == set(FILES)
        fetch(worker, server.server_port, sources=[{**ref, "more": named}])
        with pytest.raises(JobError, match=r"plugin\.py has sha256"):
            fetch(worker, server.server_port, sources=[{**ref, "more": {"plugin.py": "0" * 64}}])
    assert snapshot_files(worker) == {**FILES, "plugin.py": b"# named\n"}


def replace_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def hard_link(path: Path, target: Path) -> None:
    path.unlink()
    os.link(target, path)


def move_folder(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


# name -> damage (model, a file outside with the content of the model's file)
LINKS: dict[str, Callable[[Source, Path], None]] = {
    "a file of the snapshot leads out": lambda model, out: replace_by_link(model.snapshot / BIG, out),
    "a blob leads out": lambda model, out: replace_by_link((model.snapshot / BIG).resolve(), out),
    "a blob has a second name": lambda model, out: hard_link((model.snapshot / BIG).resolve(), out),
    "blobs leads out": lambda model, out: move_folder(model.root / "blobs", out.parent / "blobs"),
    "the snapshot leads out": lambda model, out: move_folder(model.snapshot, out.parent / "snapshot"),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_sender_and_a_bundle_with_a_link_that_leads_out_are_refused(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "bundle" / "hub")
    outside = tmp_path / "outside"
    outside.write_bytes(FILES[BIG])
    bundle_check.seal(tmp_path / "bundle", {"models": []}, None, lambda _: None)
    LINKS[name](model, outside)
    with pytest.raises(LinkError):
        range_server.serve_files(request(model.hub, loopback.held_port()), JobProgress(), Event())
    wanted = bundle.BundleRequest((), (PulledModel(REPOSITORY, COMMIT, 1, manifest_of(FILES).sha256),))
    refusals = bundle.refusals(tmp_path / "bundle", wanted, UNSIGNED, lambda _: None)
    assert any("link" in str(refusal) or "leads to" in str(refusal) for refusal in refusals)


def test_a_link_that_appears_while_serving_is_not_sent(head: Path, worker: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"S" * len(FILES[BIG]))
    with file_server(head) as server:
        replace_by_link((Source(head, FOLDER, COMMIT).snapshot / BIG).resolve(), secret)
        with pytest.raises(JobError, match="answers 410"):
            fetch(worker, server.server_port, streams=1)
    assert not any(b"SSSS" in file.read_bytes() for file in worker.rglob("*") if file.is_file())


def test_a_bundle_with_its_own_list_is_compared_with_the_lock_file(tmp_path: Path) -> None:
    write_model(tmp_path / "hub", EVIL)
    bundle_check.seal(tmp_path, {"models": []}, None, lambda _: None)
    lines: list[str] = []

    def refused(sha256: str) -> str:
        wanted = bundle.BundleRequest((), (PulledModel(REPOSITORY, COMMIT, 1, sha256),))
        return " ".join(map(str, bundle.refusals(tmp_path, wanted, UNSIGNED, lines.append)))

    assert f"expected {manifest_of(FILES).sha256}" in refused(manifest_of(FILES).sha256)
    assert refused(manifest_of(EVIL).sha256) == ""
    assert refused("") == ""
    assert "the lock file has no manifest of owner/Model@c0ffee000000" in lines[-1]


VICTIM = b"root:x:0:0:root:/root:/bin/bash\n" * 16


# name -> what a user who may write in the hub cache prepares: (model folder, victim file)
TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "a part is a link": lambda root, victim: part_of(root).symlink_to(victim),
    "a part has a second name": lambda root, victim: os.link(victim, part_of(root)),
    "a part is a pipe": lambda root, victim: os.mkfifo(part_of(root)),
    "blobs is a link": lambda root, victim: (root / "blobs").symlink_to(victim.parent),
    "the notes are a link": lambda root, victim: (root / ".vllm-spark").symlink_to(victim.parent),
    "snapshots is a link": lambda root, victim: (root / "snapshots").symlink_to(victim.parent),
    "the model is a link": lambda root, victim: (shutil.rmtree(root), root.symlink_to(victim.parent))[1],
}


def part_of(root: Path) -> Path:
    (root / "blobs").mkdir()
    blob = next(entry.blob for entry in manifest_of(FILES).files if entry.path == BIG)
    return root / "blobs" / f"{blob}.vllm-spark.part"


@pytest.mark.parametrize("name", TRAPS)
def test_root_follows_no_link_in_the_hub_cache(head: Path, worker: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "etc").mkdir()
    victim = tmp_path / "etc" / "victim"
    victim.write_bytes(VICTIM)
    (worker / FOLDER).mkdir(parents=True)
    TRAPS[name](worker / FOLDER, victim)
    with file_server(head) as server, pytest.raises((LinkError, JobError)) as refused:
        fetch(worker, server.server_port)
    assert getattr(refused.value, "reason", "link-in-hub") == "link-in-hub"
    assert victim.read_bytes() == VICTIM
    assert [file.name for file in (tmp_path / "etc").iterdir()] == ["victim"]


@pytest.mark.parametrize("folder", ["blobs", "snapshots"])
def test_the_hubs_library_gets_no_folder_with_a_link(worker: Path, tmp_path: Path, folder: str) -> None:
    (worker / FOLDER).mkdir(parents=True)
    (worker / FOLDER / folder).symlink_to(tmp_path)
    with pytest.raises(LinkError):
        hub_fetch.refuse_links(Source(worker, FOLDER, COMMIT))


def test_a_partial_blob_of_the_hub_that_is_a_link_is_refused(worker: Path, tmp_path: Path) -> None:
    (worker / FOLDER / "blobs").mkdir(parents=True)
    (worker / FOLDER / "blobs" / f"{'0' * 64}.incomplete").symlink_to(tmp_path / "victim")
    with pytest.raises(LinkError, match="incomplete is a link"):
        hub_fetch.refuse_links(Source(worker, FOLDER, COMMIT))


def test_the_client_bounds_what_it_reads(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender with the secret whose manifest does not end."""
    monkeypatch.setattr(range_client, "MAX_MANIFEST_BYTES", 1000)
    model = write_model(worker.parent / "head", {f"{number}.json": b"{}" for number in range(100)})
    with file_server(model.hub) as server, pytest.raises(JobError, match="invalid manifest") as refused:
        fetch(worker, server.server_port)
    assert refused.value.reason == "giver"
