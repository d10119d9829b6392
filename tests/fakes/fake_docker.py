"""A fake of `docker` and `systemctl reload docker` for a pull. It runs as a program of its own.

It resolves a registry as Docker does, fetches missing layers, and verifies digests. With overlay2 it follows mirrors
and /etc/hosts, with the containerd store hosts.toml alone.

    STATE/images      name -> id        STATE/layers/DIGEST      STATE/mirrors     mirrors of the last reload
    STATE/info        the result of `docker info`, which names the store
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

STATE = Path(os.environ["DOCKER_STATE"])
HOSTS = Path(os.environ["DOCKER_HOSTS"])
DAEMON = Path(os.environ["DOCKER_DAEMON"])
CERTS = Path(os.environ["DOCKER_CERTS"])


def images() -> dict[str, str]:
    file = STATE / "images"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def mirrors() -> list[str]:
    file = STATE / "mirrors"
    return list(json.loads(file.read_text())) if file.exists() else []


def reload() -> int:
    # As in Docker, a missing key keeps the earlier value.
    settings = json.loads(DAEMON.read_text())
    if "registry-mirrors" in settings:
        (STATE / "mirrors").write_text(json.dumps(settings["registry-mirrors"]))
    return 0


def info() -> dict[str, Any]:
    file = STATE / "info"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def base_of(host: str) -> str:
    if info().get("DriverStatus"):
        settings = tomllib.loads((CERTS / host / "hosts.toml").read_text())
        (url,) = settings["host"]
        if settings["server"] != url:
            sys.exit(f"{settings['server']} is asked as well as {url}")
        return str(url)
    if host == "docker.io":
        return mirrors()[0]
    name, _, port = host.partition(":")
    addresses = {fields[1]: fields[0] for line in HOSTS.read_text().splitlines() if len(fields := line.split()) > 1}
    return f"http://{addresses[name]}:{port or 80}"


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310  its own loopback address
        return bytes(response.read())


def verified(content: bytes, digest: str) -> bytes:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        sys.exit(f"filesystem layer verification failed for digest {digest}")
    return content


def pull(platform: str, name: str) -> int:
    repository, _, digest = name.partition("@")
    first = repository.split("/")[0]
    named = re.search(r"[.:]", first)
    host, repository = (first, repository.removeprefix(f"{first}/")) if named else ("docker.io", repository)
    at = f"{base_of(host)}/v2/{repository}"
    document: dict[str, Any] = json.loads(verified(get(f"{at}/manifests/{digest}"), digest))
    for entry in document.get("manifests", []):
        if f"{entry['platform']['os']}/{entry['platform']['architecture']}" == platform:
            digest = entry["digest"]
            document = json.loads(verified(get(f"{at}/manifests/{digest}"), digest))
    for layer in [document["config"], *document["layers"]]:
        file = STATE / "layers" / layer["digest"]
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(verified(get(f"{at}/blobs/{layer['digest']}"), layer["digest"]))
    (STATE / "images").write_text(json.dumps({**images(), name: document["config"]["digest"]}))
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["reload", "docker"]:
            return reload()
        case ["info", "--format", template]:
            print(json.dumps(mirrors() if "Mirrors" in template else info() if template == "{{json .}}" else {}))
            return 0
        case ["image", "inspect", name] if name in images():
            print(json.dumps([{"Id": images()[name], "RepoDigests": [name]}]))
            return 0
        case ["image", "inspect", _]:
            return 1
        case ["pull", "--platform", platform, name]:
            return pull(platform, name)
    return 2


if __name__ == "__main__":
    sys.exit(main())
