"""A fake Docker engine on a UNIX socket, with the replies and the order of requests of the real one.

It resolves a name at its registry, fetches missing layers and verifies digests. A push asks for every layer first and
uploads those that the registry lacks: in pieces as overlay2 does, or whole as the containerd store does.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import loopback

VERSION = {"Version": "28.3.3", "Os": "linux", "Arch": "arm64"}
CONTAINERD = [["driver-type", "io.containerd.snapshotter.v1"]]
ACCEPT = {"Accept": "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"}


class PullError(Exception):
    """An error that the engine reports in its stream."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Engine:
    """State of a Docker. `images`: name -> digests by which it is known and layers; `blobs`: packed layers.

    `unpacked` are layers that the containerd store has without their packed bytes; `packed_file` repairs that.
    `fault` is the message of the next stream's error event, "cut" for a stream that
    ends early, or "silent" for one that waits. `closes`: the connection ends with the stream.
    """

    containerd: bool = False
    insecure: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    unpacked: set[str] = field(default_factory=set)
    packed_file: Path | None = None
    fault: str = ""
    closes: bool = False
    requests: list[str] = field(default_factory=list)

    def info(self) -> dict[str, Any]:
        configs = {name: {"Secure": False} for name in self.insecure}
        status = CONTAINERD if self.containerd else [["Backing Filesystem", "extfs"]]
        containerd = {"Containerd": {"Address": "/run/containerd/containerd.sock"}} if self.containerd else {}
        registries = {"IndexConfigs": configs, "Mirrors": [*self.mirrors]}
        return {"DriverStatus": status, "RegistryConfig": registries, **containerd}

    def inspect(self, name: str) -> dict[str, Any] | None:
        image = self.images.get(name)
        if image is None:
            return None
        packed = self.packed_file is not None and self.packed_file.exists()
        incomplete = self.unpacked & {*image["layers"]} and not packed
        return {
            "Id": image["id"],
            "RepoDigests": image["digests"],
            "RootFS": {"Type": "layers", "Layers": None if incomplete else image["layers"]},
        }

    def pull(self, name: str, reference: str, platform: str) -> Iterator[dict[str, Any]]:
        """Pull and yield events as overlay2 or the containerd store writes them."""
        host, _, repository = name.partition("/")
        connection = http.client.HTTPConnection(host, timeout=10)

        def get(kind: str, what: str) -> bytes:
            connection.request("GET", f"/v2/{repository}/{kind}/{what}", headers=ACCEPT)
            response = connection.getresponse()
            content = response.read()
            if response.status != http.client.OK:
                raise PullError(f"manifest for {name} not found: {content.decode()[:200]}")
            if what.startswith("sha256:") and digest_of(content) != what:
                raise PullError(f"filesystem layer verification failed for digest {what}")
            return content

        if self.fault == "silent":
            threading.Event().wait(2)
        elif self.fault not in {"", "cut", "other manifest"}:
            raise PullError(self.fault)
        yield {"status": f"Pulling from {repository}", "id": reference}
        content = get("manifests", reference)
        digest, document = digest_of(content), json.loads(content)
        for entry in document.get("manifests", []):
            if f"{entry['platform']['os']}/{entry['platform']['architecture']}" == platform:
                document = json.loads(get("manifests", entry["digest"]))
        get("blobs", document["config"]["digest"])
        for layer in document["layers"]:
            yield from self._layer(layer, get)
        full = f"{name}{'@' if ':' in reference else ':'}{reference}"
        layers = [layer["digest"] for layer in document["layers"]]
        identity = digest if self.containerd else document["config"]["digest"]
        self.images[full] = {"id": identity, "digests": [f"{name}@{digest}"], "layers": layers}
        yield {"status": f"Digest: {digest}"}

    def _layer(self, layer: Mapping[str, Any], get: Any) -> Iterator[dict[str, Any]]:
        digest, size = layer["digest"], int(layer["size"])
        known = {"id": digest[7:19]}
        if digest in self.blobs or digest in self.unpacked:
            yield {"status": "Already exists", "progressDetail": {}, **known}
            return
        yield {"status": "Pulling fs layer", "progressDetail": {}, **known}
        yield {"status": "Downloading", "progressDetail": {"current": size // 2}, **known}
        if self.fault == "cut":
            raise ConnectionResetError
        self.blobs[digest] = get("blobs", digest)
        if not self.containerd:
            yield {"status": "Verifying Checksum", "progressDetail": {}, **known}
        yield {"status": "Download complete", "progressDetail": {}, **known}
        if not self.containerd:
            yield {"status": "Extracting", "progressDetail": {"current": size}, **known}
        yield {"status": "Pull complete", "progressDetail": {}, **known}

    def build(self, name: str, layers: list[bytes]) -> str:
        """Add an image as `docker build` does. Returns its id."""
        self.blobs |= {digest_of(content): content for content in layers}
        config = json.dumps({"built": name}).encode()
        self.blobs[digest_of(config)] = config
        digests = [digest_of(content) for content in layers]
        self.images[name] = {"id": digest_of(config), "digests": [], "layers": digests}
        return digest_of(config)

    def push(self, name: str, tag: str) -> Iterator[dict[str, Any]]:
        host, _, repository = name.partition("/")
        image = self.images[f"{name}:{tag}"]
        connection = http.client.HTTPConnection(host, timeout=10)

        def call(method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
            connection.request(method, path, body or None, headers=headers)
            response = connection.getresponse()
            response.body = response.read()  # type: ignore[attr-defined]
            return response

        yield {"status": f"The push refers to repository [{name}]"}
        entries = []
        for digest in [image["id"], *image["layers"]]:
            # It tries to mount a layer from where it pulled the layer, and starts anew if that fails.
            call("POST", f"/v2/{repository}/blobs/uploads/?mount={digest}&from=docker.io/vllm/vllm-openai")
            head = call("HEAD", f"/v2/{repository}/blobs/{digest}")
            if head.status == http.client.OK:
                yield {"status": "Layer already exists", "id": digest[7:19]}
                entries.append({"digest": digest, "size": int(head.headers["Content-Length"])})
                continue
            content = self.blobs[digest]
            location = call("POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
            if self.containerd:
                done = call("PUT", f"{location}?digest={digest}", content)
            else:
                moved = call("PATCH", location, content)
                assert moved.status == http.client.ACCEPTED
                done = call("PUT", f"{moved.headers['Location']}?digest={digest}")
            if done.status != http.client.CREATED:
                raise PullError(f"blob upload unknown: {done.status}")
            yield {"status": "Pushed", "id": digest[7:19]}
            entries.append({"digest": digest, "size": len(content)})
        assert call("HEAD", f"/v2/{repository}/manifests/{tag}").status == http.client.NOT_FOUND
        content = json.dumps({"schemaVersion": 2, "config": entries[0], "layers": entries[1:]}).encode()
        if self.fault == "cut":
            raise ConnectionResetError
        call("PUT", f"/v2/{repository}/manifests/{tag}", content)
        if self.fault == "other manifest":
            call("PUT", f"/v2/{repository}/manifests/{tag}", content + b" ")
        yield {"progressDetail": {}, "aux": {"Tag": tag, "Digest": digest_of(content), "Size": len(content)}}


@contextmanager
def running(engine: Engine, socket: Path) -> Iterator[Engine]:
    """Serve an engine on a socket while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            name = path.removeprefix("/images/").removesuffix("/json")
            answers = {"/info": engine.info(), "/version": VERSION, "/containers/json": []}
            found = answers[path] if path in answers else engine.inspect(name)
            self._reply(404 if found is None else 200, {"message": f"No such: {name}"} if found is None else found)

        def do_POST(self) -> None:
            split = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(split.query))
            engine.requests.append(self.path)
            if "X-Registry-Auth" not in self.headers:
                return self._reply(400, {"message": "Bad parameters and missing X-Registry-Auth: EOF"})
            if split.path == "/images/create":
                return self._stream(engine.pull(query["fromImage"], query["tag"], query["platform"]))
            name = urllib.parse.unquote(split.path).removeprefix("/images/").removesuffix("/push")
            return self._stream(engine.push(name, query["tag"]))

        def _reply(self, status: int, document: Any) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            if engine.closes:
                self.send_header("Connection", "close")
            self.end_headers()
            try:
                for event in events:
                    self._chunk(event)
            except (PullError, http.client.HTTPException, OSError) as error:
                if isinstance(error, ConnectionResetError):
                    self.close_connection = True
                    return
                self._chunk({"errorDetail": {"message": str(error)}, "error": str(error)})
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, event: Mapping[str, Any]) -> None:
            line = json.dumps(event).encode() + b"\r\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The client went away."""

    with loopback.running(Server(str(socket), Handler)):
        yield engine
    socket.unlink()
