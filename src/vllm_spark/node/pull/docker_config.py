"""Redirect a registry name of this host's Docker to the loopback device for one pull, and restore it. Runs on the host.

The means depends on Docker's image store:
- The containerd store of Docker 28 and later reads /etc/docker/certs.d/HOST/hosts.toml with each pull (moby
  daemon/hosts.go). It connects to other registries by HTTPS alone, so the other means do not work there.
- With overlay2, docker.io is redirected by a mirror in daemon.json, which Docker applies on a reload that stops no
  container. Docker uses mirrors only for docker.io, so another registry is redirected by a line in /etc/hosts.
Every file is restored byte for byte, after a killed run by the next run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.node.pull import docker_leftovers as left
from vllm_spark.node.pull.files import write_json
from vllm_spark.node.pull.job import JobError

DOCKER_HUB = "docker.io"
HTTP_PORT = 80
CONTAINERD_STORE = "io.containerd.snapshotter.v1"
FIRST_WITH_HOSTS_TOML = 28
RELOAD_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Redirection:
    """The redirection of a registry to a port of the loopback device. `host` is the registry as images name it."""

    host: str
    port: int
    by_toml: bool

    @classmethod
    def of(cls, host: str, free_port: int) -> Redirection:
        """Return the redirection that this host's Docker follows. A line in /etc/hosts cannot name another port."""
        by_toml = reads_hosts_toml()
        named_port = int(host.partition(":")[2] or HTTP_PORT)
        return cls(host, free_port if by_toml or host == DOCKER_HUB else named_port, by_toml)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Redirect the registry while the context is open. Raises JobError."""
        if self.by_toml:
            add_hosts_toml(self.host, self.port)
        elif self.host == DOCKER_HUB:
            add_mirror(self.port)
        else:
            add_hosts_entry(self.host.partition(":")[0])
        try:
            yield
        finally:
            undo()


def reads_hosts_toml() -> bool:
    """Return True if this host's Docker reads hosts.toml with each pull."""
    info = _docker_info("{{json .}}") or {}
    types = [value for _, value in info.get("DriverStatus") or []]
    major = str(info.get("ServerVersion", "")).partition(".")[0]
    return CONTAINERD_STORE in types and major.isdigit() and int(major) >= FIRST_WITH_HOSTS_TOML


def add_hosts_toml(host: str, port: int) -> None:
    """Name the loopback device as the only server of a registry. Without `server` Docker also asks the registry."""
    file, url = left.CERTS / host / "hosts.toml", f"http://127.0.0.1:{port}"
    before = file.read_text(encoding="utf-8") if file.exists() else None
    left.TOML_JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    folders = [str(folder) for folder in (file.parent, left.CERTS) if not folder.exists()]
    write_json(left.TOML_JOURNAL, {"path": str(file), "before": before, "folders": folders})
    file.parent.mkdir(parents=True, exist_ok=True)
    server = f'server = "{url}"\n\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
    file.write_text(f"{left.MARK}\n{server}", encoding="utf-8")


def add_hosts_entry(host: str) -> None:
    # In place: in a container /etc/hosts is a mount, which cannot be replaced.
    left.HOSTS.write_text(f"127.0.0.1 {host} {left.MARK}\n{left.HOSTS.read_text(encoding='utf-8')}", encoding="utf-8")


def add_mirror(port: int) -> None:
    """Add a mirror of docker.io and wait until Docker uses it. Raises JobError."""
    before = left.DAEMON.read_text(encoding="utf-8") if left.DAEMON.exists() else None
    try:
        settings = json.loads(before or "{}")
    except ValueError as error:
        raise JobError("docker-mirror", f"{left.DAEMON} is not valid JSON: {error}") from error
    left.JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    write_json(left.JOURNAL, {"before": before})
    url = f"http://127.0.0.1:{port}"
    _apply({**settings, "registry-mirrors": [url, *settings.get("registry-mirrors", [])]})
    deadline = time.monotonic() + RELOAD_TIMEOUT_S
    while not any(mirror.rstrip("/") == url for mirror in configured_mirrors()):
        if time.monotonic() > deadline:
            undo()
            raise JobError("docker-mirror", f"Docker did not take {url} as a mirror within {RELOAD_TIMEOUT_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)


def undo() -> None:
    """Undo the redirection of this run, or of one that was killed. Raises JobError."""
    for line in left.restore():
        print(line, flush=True)


def _apply(settings: Mapping[str, Any]) -> None:
    """Write daemon.json in place, which keeps its owner and mode, and reload Docker."""
    left.DAEMON.parent.mkdir(parents=True, exist_ok=True)
    left.DAEMON.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    done = subprocess.run(["systemctl", "reload", "docker"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError("docker-mirror", f"systemctl reload docker: {done.stderr.strip()[:300]}")


def configured_mirrors() -> list[str]:
    return list(_docker_info("{{json .RegistryConfig.Mirrors}}") or [])


def registry_url(host: str) -> str:
    """Return the URL of a registry: plain HTTP if this host's Docker is configured for it."""
    if host == DOCKER_HUB:
        return "https://registry-1.docker.io"
    registries = _docker_info("{{json .RegistryConfig.IndexConfigs}}") or {}
    secure = registries.get(host, {}).get("Secure", True)
    return f"{'https' if secure else 'http'}://{host}"


def _docker_info(template: str) -> Any:
    done = subprocess.run(["docker", "info", "--format", template], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def freeze_dns(url: str) -> None:
    """Resolve the registry before /etc/hosts is edited; otherwise this proxy would connect to itself."""
    name = urlsplit(url).hostname or ""
    resolve = socket.getaddrinfo
    try:
        addresses = sorted({str(result[4][0]) for result in resolve(name, None)})
    except OSError:
        return  # the first request reports it

    def resolve_frozen(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != name:
            return resolve(host, *args, **kwargs)
        return [result for address in addresses for result in resolve(address, *args, **kwargs)]

    socket.getaddrinfo = resolve_frozen
