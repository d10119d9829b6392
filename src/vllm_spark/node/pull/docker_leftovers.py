"""Remove what an interrupted pull has left in the configuration of this host's Docker. Runs on the host.

A pull redirected a registry to the loopback device: by a mirror in daemon.json, a line in /etc/hosts or a hosts.toml.
A journal has the text before. After a loss of power the journal may be empty, half written or missing, because older
toolkits did not write it durably. The edit is then removed by its content, and a journal that is not complete counts
as absent.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, TypedDict

from vllm_spark.node.pull.files import replace_file
from vllm_spark.node.pull.job import JobError, JobProgress

CERTS = Path("/etc/docker/certs.d")
HOSTS = Path("/etc/hosts")
DAEMON = Path("/etc/docker/daemon.json")
# While a mirror is configured: {"before": text of daemon.json, or null if there was none}.
JOURNAL = Path("/var/lib/vllm-spark/pull/daemon.json.before")
# While a hosts.toml is ours: {"path", "before": its text, or null if there was none, "folders": those made for it}.
TOML_JOURNAL = JOURNAL.with_name("hosts.toml.before")
MARK = "# vllm-spark: for one pull"
MIRROR_URL = "http://127.0.0.1:25093"
# Characters of MARK by which a line that was cut is recognised.
LEAST_MARK = len("# vllm-spark")

Journal = Mapping[str, Any]


class Leftovers(TypedDict):
    """Result of the job: a line for each thing that was removed or is broken."""

    undone: list[str]


def remove_leftovers(_request: Mapping[str, Any], _progress: JobProgress, _stop: Event) -> Leftovers:
    """Remove every leftover. Raises JobError if Docker's own settings are broken or Docker does not reload."""
    return {"undone": list(restore())}


def restore() -> Iterator[str]:
    """Remove every leftover, and yield a line for each. Raises JobError."""
    yield from _restore_hosts_toml()
    yield from _restore_hosts()
    yield from _restore_daemon()


def _read_journal(file: Path, *keys: str) -> tuple[Journal | None, str]:
    """Return (the journal, or None if it is not complete; the fault of one that exists)."""
    try:
        journal = json.loads(file.read_text(encoding="utf-8"))
        if all(key in journal for key in keys) and isinstance(journal["before"], str | None):
            return journal, ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return None, f"{file} is not a complete journal ({file.stat().st_size} bytes) and counts as absent"


def _restore_hosts_toml() -> Iterator[str]:
    journal, fault = _read_journal(TOML_JOURNAL, "path", "before", "folders")
    if journal:
        file = Path(journal["path"])
        if journal["before"] is None:
            file.unlink(missing_ok=True)
        elif file.parent.is_dir():
            replace_file(file, journal["before"], keep_owner=True)
        _remove_empty(*map(Path, journal["folders"]))
        yield f"{file} is as before the interrupted pull"
    for file in [file for file in sorted(CERTS.glob("*/hosts.toml")) if _is_ours(file)]:
        file.unlink()
        _remove_empty(file.parent)
        yield f"{file} of an interrupted pull is removed; if it was a file of yours, the text before is lost"
    yield from _forget(TOML_JOURNAL, fault)


def _is_ours(file: Path) -> bool:
    """Return True if a file begins with the mark, or was cut within it."""
    with suppress(OSError):
        start = file.read_text(encoding="utf-8", errors="replace")[: len(MARK)]
        return len(start) >= LEAST_MARK and MARK.startswith(start)
    return False


def _restore_hosts() -> Iterator[str]:
    with suppress(FileNotFoundError):
        lines = HOSTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
        kept = [line for line in lines if not _is_our_line(line)]
        if kept == lines:
            return
        _replace(HOSTS, "".join(kept))
        yield f"{HOSTS}: the line of an interrupted pull is removed"
        if not kept:
            yield f"{HOSTS} is empty: its lines were lost when the pull was interrupted. Restore them from a backup"


def _is_our_line(line: str) -> bool:
    """Return True for a line with the mark, or for a last line that was cut within it."""
    if MARK in line:
        return True
    start = line[max(line.find("#"), 0) :]
    return len(start) >= LEAST_MARK and MARK.startswith(start)


def _restore_daemon() -> Iterator[str]:
    journal, fault = _read_journal(JOURNAL, "before")
    if journal:
        before = journal["before"]
        _reload_with(_settings(before or "{}", JOURNAL))
        _write_daemon(before)
        yield f"{DAEMON} is as before the interrupted pull"
    elif (text := _read(DAEMON)) is not None and (fault or MIRROR_URL in text):
        settings = _settings(text, DAEMON, fault)
        mirrors = settings.get("registry-mirrors")
        if isinstance(mirrors, list) and MIRROR_URL in mirrors:
            rest = {**settings, "registry-mirrors": [url for url in mirrors if url != MIRROR_URL]}
            _reload_with(rest)
            _write_daemon(
                _text({key: value for key, value in rest.items() if value != [] or key != "registry-mirrors"})
            )
            yield f"{DAEMON}: the mirror {MIRROR_URL} of an interrupted pull is removed"
    yield from _forget(JOURNAL, fault)


def _settings(text: str, file: Path, fault: str = "") -> dict[str, Any]:
    """Return the settings in a daemon.json. Raises JobError."""
    try:
        settings = json.loads(text)
        if isinstance(settings, dict):
            return settings
        detail = f"it has a {type(settings).__name__}, not an object"
    except (ValueError, RecursionError) as error:
        detail = str(error)
    if not fault and file == DAEMON:
        return {}  # not broken by a pull, and Docker itself reports it
    because = f"; {fault}" if fault else ""
    raise JobError("docker-config", f"{file} is broken ({len(text)} bytes): {detail}{because}")


def _text(settings: Mapping[str, Any]) -> str | None:
    """Return the text of a daemon.json, or None for one without settings."""
    return json.dumps(settings, indent=2) + "\n" if settings else None


def _reload_with(settings: Mapping[str, Any]) -> None:
    """Have Docker apply settings with a list of mirrors: it drops a mirror only if a reload names another list."""
    _write_daemon(_text({**settings, "registry-mirrors": settings.get("registry-mirrors", [])}))
    done = subprocess.run(["systemctl", "reload", "docker"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError("docker-config", f"systemctl reload docker: {done.stderr.strip()[:300]}")


def _write_daemon(text: str | None) -> None:
    if text is None:
        DAEMON.unlink(missing_ok=True)
    else:
        DAEMON.parent.mkdir(parents=True, exist_ok=True)
        _replace(DAEMON, text)


def _read(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8", errors="replace")
    return None


def _replace(file: Path, text: str) -> None:
    """Replace a file. One that is a mount of a container cannot be replaced, and is written in place."""
    target = file.resolve()
    try:
        replace_file(target, text, keep_owner=True)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    else:
        return
    with target.open("w", encoding="utf-8", errors="surrogateescape") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):  # another program has written a file there in the meantime, or it is gone
            folder.rmdir()


def _forget(journal: Path, fault: str) -> Iterator[str]:
    journal.unlink(missing_ok=True)
    if fault:
        yield fault
