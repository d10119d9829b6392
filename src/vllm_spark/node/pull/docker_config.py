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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.node.pull.job import JobError, JobProgress

CERTS = Path("/etc/docker/certs.d")
HOSTS = Path("/etc/hosts")
DAEMON = Path("/etc/docker/daemon.json")
# While a mirror is configured: {"before": text of daemon.json, or null if there was none}.
JOURNAL = Path("/var/lib/vllm-spark/pull/daemon.json.before")
# While a hosts.toml is ours: {"path", "before": its text, or null if there was none, "folders": those made for it}.
TOML_JOURNAL = JOURNAL.with_name("hosts.toml.before")
MARK = "# vllm-spark: for one pull"
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
            restore()


def reads_hosts_toml() -> bool:
    """Return True if this host's Docker reads hosts.toml with each pull."""
    info = _docker_info("{{json .}}") or {}
    types = [value for _, value in info.get("DriverStatus") or []]
    major = str(info.get("ServerVersion", "")).partition(".")[0]
    return CONTAINERD_STORE in types and major.isdigit() and int(major) >= FIRST_WITH_HOSTS_TOML


def add_hosts_toml(host: str, port: int) -> None:
    """Name the loopback device as the only server of a registry. Without `server` Docker also asks the registry."""
    file, url = CERTS / host / "hosts.toml", f"http://127.0.0.1:{port}"
    before = file.read_text(encoding="utf-8") if file.exists() else None
    TOML_JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    folders = [str(folder) for folder in (file.parent, CERTS) if not folder.exists()]
    TOML_JOURNAL.write_text(json.dumps({"path": str(file), "before": before, "folders": folders}), encoding="utf-8")
    file.parent.mkdir(parents=True, exist_ok=True)
    server = f'server = "{url}"\n\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
    file.write_text(f"{MARK}\n{server}", encoding="utf-8")


def _restore_hosts_toml() -> None:
    """Restore the hosts.toml that the journal names."""
    if not TOML_JOURNAL.exists():
        return
    journal = json.loads(TOML_JOURNAL.read_text(encoding="utf-8"))
    file = Path(journal["path"])
    if journal["before"] is None:
        file.unlink(missing_ok=True)
        for folder in journal["folders"]:
            with suppress(OSError):  # another program has written a file there in the meantime
                Path(folder).rmdir()
    else:
        file.write_text(journal["before"], encoding="utf-8")
    TOML_JOURNAL.unlink()


def add_hosts_entry(host: str) -> None:
    # In place: in a container /etc/hosts is a mount, which cannot be replaced.
    HOSTS.write_text(f"127.0.0.1 {host} {MARK}\n{HOSTS.read_text(encoding='utf-8')}", encoding="utf-8")


def add_mirror(port: int) -> None:
    """Add a mirror of docker.io and wait until Docker uses it. Raises JobError."""
    before = DAEMON.read_text(encoding="utf-8") if DAEMON.exists() else None
    try:
        settings = json.loads(before or "{}")
    except ValueError as error:
        raise JobError("docker-mirror", f"{DAEMON} is not valid JSON: {error}") from error
    JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    JOURNAL.write_text(json.dumps({"before": before}), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    _apply({**settings, "registry-mirrors": [url, *settings.get("registry-mirrors", [])]})
    deadline = time.monotonic() + RELOAD_TIMEOUT_S
    while not any(mirror.rstrip("/") == url for mirror in configured_mirrors()):
        if time.monotonic() > deadline:
            restore()
            raise JobError("docker-mirror", f"Docker did not take {url} as a mirror within {RELOAD_TIMEOUT_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)


def restore() -> None:
    """Undo the redirection of this run, or of one that was killed. Raises JobError."""
    _restore_hosts_toml()
    if HOSTS.exists() and MARK in (text := HOSTS.read_text(encoding="utf-8")):
        lines = [line for line in text.splitlines(keepends=True) if MARK not in line]
        HOSTS.write_text("".join(lines), encoding="utf-8")
    if JOURNAL.exists():
        before = json.loads(JOURNAL.read_text(encoding="utf-8"))["before"]
        settings = json.loads(before or "{}")
        # Docker drops a mirror only if a reload names another list, so the list is named before the file is restored.
        _apply({**settings, "registry-mirrors": settings.get("registry-mirrors", [])})
        if before is None:
            DAEMON.unlink()
        else:
            DAEMON.write_text(before, encoding="utf-8")
        JOURNAL.unlink()


def restore_docker_config(_request: Mapping[str, Any], _progress: JobProgress, _stop: Event) -> Mapping[str, object]:
    """Restore the configuration without a pull. The result is empty."""
    restore()
    return {}


def _apply(settings: Mapping[str, Any]) -> None:
    """Write daemon.json in place, which keeps its owner and mode, and reload Docker."""
    DAEMON.parent.mkdir(parents=True, exist_ok=True)
    DAEMON.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
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
