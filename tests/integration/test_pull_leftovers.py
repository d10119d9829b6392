"""What a loss of power leaves of an older toolkit's edits for Docker, and its removal by the next pull."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

import fakes
from vllm_spark.node.pull import docker_leftovers
from vllm_spark.node.pull.docker_leftovers import remove_leftovers
from vllm_spark.node.pull.job import JobError, JobProgress

FAKE_DOCKER = Path(fakes.__file__).with_name("fake_docker.py")
MARK = "# vllm-spark: for one pull"
URL = "http://127.0.0.1:25093"
HOSTS = "127.0.0.1 localhost\n10.0.0.7 nas\n"
DAEMON = '{ "runtimes": {"nvidia": {"path": "x"}},\n  "registry-mirrors": ["http://mirror.home"] }'
PLAIN_DAEMON = '{"log-level": "warn"}\n'
TOML = 'server = "https://mirror.home"\n'


@dataclass(frozen=True)
class Edit:
    """An edit of an older toolkit: the file, its text before (None: no file) and after, the journal's name and text."""

    file: str
    before: str | None
    after: str
    journal: str = ""
    journal_text: str = ""


def daemon(before: str | None) -> Edit:
    settings = json.loads(before or "{}")
    after = {**settings, "registry-mirrors": [URL, *settings.get("registry-mirrors", [])]}
    journal = json.dumps({"before": before})
    return Edit("daemon.json", before, json.dumps(after, indent=2) + "\n", "daemon.json.before", journal)


def toml(before: str | None) -> Edit:
    after = f'{MARK}\nserver = "{URL}"\n\n[host."{URL}"]\n  capabilities = ["pull", "resolve"]\n'
    journal = json.dumps({"path": "ROOT/certs.d/nvcr.io/hosts.toml", "before": before, "folders": []})
    return Edit("certs.d/nvcr.io/hosts.toml", before, after, "hosts.toml.before", journal)


EDITS = {
    "a line in /etc/hosts": Edit("hosts", HOSTS, f"127.0.0.1 nvcr.io {MARK}\n{HOSTS}"),
    "a mirror beside the owner's": daemon(DAEMON),
    "a mirror in a file without mirrors": daemon(PLAIN_DAEMON),
    "a mirror in a new file": daemon(None),
    "a hosts.toml of the owner": toml(TOML),
    "a new hosts.toml": toml(None),
}

WHOLE: Callable[[str], str | None] = lambda text: text  # noqa: E731
HALF: Callable[[str], str | None] = lambda text: text[: len(text) // 2]  # noqa: E731
EMPTY: Callable[[str], str | None] = lambda _: ""  # noqa: E731
NOTHING: Callable[[str], str | None] = lambda _: None  # noqa: E731

# cut -> (what is left of the journal, what is left of the edit; NOTHING: the text before). The last three are of a disk
# that wrote the edit before the journal, because neither was written with fsync.
CUTS = {
    "before the write": (NOTHING, NOTHING),
    "after an empty create": (EMPTY, NOTHING),
    "journal half written": (HALF, NOTHING),
    "after the journal, without the edit": (WHOLE, NOTHING),
    "edit half written": (WHOLE, HALF),
    "after the edit": (WHOLE, WHOLE),
    "after the edit, journal empty": (EMPTY, WHOLE),
    "after the edit, journal half written": (HALF, WHOLE),
    "after the edit, journal missing": (NOTHING, WHOLE),
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "systemctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_DOCKER} "$@"\n')
    program.chmod(0o755)
    for folder in ("state", "pull"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name, path in (("STATE", "state"), ("HOSTS", "hosts"), ("DAEMON", "daemon.json"), ("CERTS", "certs.d")):
        monkeypatch.setenv(f"DOCKER_{name}", str(tmp_path / path))
    monkeypatch.setattr(docker_leftovers, "CERTS", tmp_path / "certs.d")
    monkeypatch.setattr(docker_leftovers, "HOSTS", tmp_path / "hosts")
    monkeypatch.setattr(docker_leftovers, "DAEMON", tmp_path / "daemon.json")
    monkeypatch.setattr(docker_leftovers, "JOURNAL", tmp_path / "pull" / "daemon.json.before")
    monkeypatch.setattr(docker_leftovers, "TOML_JOURNAL", tmp_path / "pull" / "hosts.toml.before")
    return tmp_path


def write(file: Path, text: str | None) -> None:
    if text is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def leave(node: Path, edit: Edit, cut: str) -> None:
    """Leave on the host what a loss of power leaves. Docker has read daemon.json at the boot after it."""
    journal, edited = CUTS[cut]
    text = edited(edit.after)
    write(node / edit.file, edit.before if text is None else text)
    if edit.journal:
        write(node / "pull" / edit.journal, journal(edit.journal_text.replace("ROOT", str(node))))
    try:
        mirrors = json.loads((node / "daemon.json").read_text())["registry-mirrors"]
    except (OSError, ValueError, KeyError):
        mirrors = []
    write(node / "state" / "mirrors", json.dumps(mirrors))


def undo() -> list[str]:
    return list(remove_leftovers({}, JobProgress(), Event())["undone"])


def meaning(file: Path) -> object:
    """Return the settings of a daemon.json, or the text of another file. A missing file has no settings."""
    if file.name != "daemon.json":
        return file.read_text() if file.exists() else None
    return json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", EDITS)
def test_the_next_pull_removes_what_a_cut_has_left(node: Path, name: str, cut: str) -> None:
    edit = EDITS[name]
    leave(node, edit, cut)
    lines = undo()
    assert list((node / "pull").iterdir()) == []
    left = meaning(node / edit.file)
    journal_is_whole = CUTS[cut][0] is WHOLE
    if edit.file == "hosts" and cut == "edit half written":
        assert left == "", "the owner's lines were lost in the cut"
        assert any(f"{node / 'hosts'} is empty" in line for line in lines)
    elif name == "a hosts.toml of the owner" and CUTS[cut][1] is WHOLE and not journal_is_whole:
        assert left is None, "the owner's text was only in the journal"
        assert any("hosts.toml" in line and "the text before is lost" in line for line in lines)
    elif journal_is_whole or CUTS[cut][1] is NOTHING or edit.file == "hosts":
        assert ((node / edit.file).read_text() if (node / edit.file).exists() else None) == edit.before
    else:
        before = json.loads(edit.before or "{}") if edit.file == "daemon.json" else edit.before
        assert left == before
    mirrors = json.loads((node / "state" / "mirrors").read_text())
    assert mirrors == (json.loads(edit.before or "{}").get("registry-mirrors", []) if "daemon" in edit.file else [])
    assert undo() == [], "a second run finds nothing"


@pytest.mark.parametrize("cut", ["after an empty create", "journal half written"])
@pytest.mark.parametrize("name", [name for name, edit in EDITS.items() if edit.journal])
def test_a_broken_journal_is_reported_with_its_path(node: Path, name: str, cut: str) -> None:
    leave(node, EDITS[name], cut)
    [line] = undo()
    assert f"{node / 'pull' / EDITS[name].journal} is not a complete journal" in line


def test_a_broken_daemon_file_without_a_journal_is_refused(node: Path) -> None:
    """The owner's settings are lost, which only the owner can repair. The journal stays until then."""
    edit = daemon(DAEMON)
    (node / "daemon.json").write_text(edit.after[:30])
    (node / "pull" / edit.journal).write_text("")
    for _ in range(2):
        with pytest.raises(JobError) as refused:
            undo()
        assert refused.value.reason == "docker-config"
        assert str(node / "daemon.json") in str(refused.value)
        assert str(node / "pull" / edit.journal) in str(refused.value)
    (node / "daemon.json").write_text(DAEMON)
    assert len(undo()) == 1
    assert (node / "daemon.json").read_text() == DAEMON


def test_a_daemon_file_of_the_owner_is_not_touched(node: Path) -> None:
    """Neither a mirror of the owner on the loopback device nor a file that Docker does not accept is ours."""
    for text in ('{"registry-mirrors": ["http://127.0.0.1:5000"]}', '{"registry-mirrors": "x"}', "[1]", "{broken"):
        (node / "daemon.json").write_text(text)
        (node / "hosts").write_text("127.0.0.1 nvcr.io # mine\n127.0.0.1 x")
        assert undo() == []
        assert (node / "daemon.json").read_text() == text
        assert (node / "hosts").read_text() == "127.0.0.1 nvcr.io # mine\n127.0.0.1 x"


def test_owner_and_mode_of_a_file_stay(node: Path) -> None:
    leave(node, EDITS["a mirror beside the owner's"], "after the edit, journal missing")
    (node / "daemon.json").chmod(0o600)
    leave(node, EDITS["a line in /etc/hosts"], "after the edit")
    (node / "hosts").chmod(0o664)
    assert len(undo()) == 2
    assert [(node / name).stat().st_mode & 0o777 for name in ("daemon.json", "hosts")] == [0o600, 0o664]


def test_a_docker_that_does_not_reload_is_reported_and_the_journal_stays(node: Path) -> None:
    leave(node, EDITS["a mirror beside the owner's"], "after the edit")
    (node / "bin" / "systemctl").write_text("#!/bin/sh\necho not running >&2\nexit 1\n")
    with pytest.raises(JobError, match="not running") as refused:
        undo()
    assert refused.value.reason == "docker-config"
    assert (node / "pull" / "daemon.json.before").exists()


def test_a_file_that_is_a_mount_is_written_in_place(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/hosts of a container cannot be replaced."""

    def busy(file: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))

    monkeypatch.setattr(docker_leftovers, "replace_file", busy)
    leave(node, EDITS["a line in /etc/hosts"], "after the edit")
    inode = (node / "hosts").stat().st_ino
    assert len(undo()) == 1
    assert ((node / "hosts").read_text(), (node / "hosts").stat().st_ino) == (HOSTS, inode)
