"""Redirect a registry name of this host's Docker to the loopback device for one pull, and restore it. Runs on the host.

docker.io is redirected by a mirror in daemon.json, which Docker applies on a reload that stops no container. Docker
uses mirrors only for docker.io, so another registry is redirected by a line in /etc/hosts. Both files are restored byte
for byte, after a killed run by the next run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.node.pull.job import JobError, JobProgress

HOSTS = Path("/etc/hosts")
DAEMON = Path("/etc/docker/daemon.json")
# While a mirror is configured: {"before": text of daemon.json, or null if there was none}.
JOURNAL = Path("/var/lib/vllm-spark/pull/daemon.json.before")
MARK = "# vllm-spark: for one pull"
DOCKER_HUB = "docker.io"
RELOAD_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.5


@contextmanager
def redirect_registry(host: str, port: int) -> Iterator[None]:
    """Redirect a registry to a port of the loopback device while the context is open. Raises JobError."""
    if host == DOCKER_HUB:
        add_mirror(port)
    else:
        add_hosts_entry(host)
    try:
        yield
    finally:
        restore()


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
