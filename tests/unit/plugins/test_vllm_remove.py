"""The removal module works in order, ignores objects that are gone, and fails at the first one that stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from project_files import load_module

Run = Callable[..., dict[str, Any]]
# Logs its argv and ends as the first matching line of its answers file: PART=STATUS=TEXT, PART of the command line.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
while IFS== read -r part status text; do
  case "$(basename "$0") $*" in
    *"${{part:-none}}"*) echo "$text" >&2; exit "$status" ;;
  esac
done < {answers}
exit 0
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the module; `answers` are those of the stubs of docker and systemctl."""
    module = load_module("vllm_remove")
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("docker", "systemctl"):
        (stubs / name).write_text(STUB.format(log=tmp_path / "log", answers=tmp_path / "answers"))
        (stubs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stubs}:/usr/bin:/bin")

    def _run(items: list[dict[str, Any]], answers: str = "", check: bool = False) -> dict[str, Any]:
        (tmp_path / "answers").write_text(f"{answers}\n")
        with patch_module_args({"items": items, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return _run


def commands_run(tmp_path: Path) -> list[str]:
    log = tmp_path / "log"
    return log.read_text().splitlines() if log.exists() else []


def item(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, **more}


def test_each_kind_is_removed_in_the_given_order(run: Run, tmp_path: Path) -> None:
    gone = tmp_path / "some" / "folder"
    gone.mkdir(parents=True)
    (gone / "file").touch()
    items = [
        item("unit", "vllm@demo.service"),
        item("container", "vllm-demo"),
        item("image", "sha256:1", names=["a:1", "a@sha256:2"]),
        item("path", str(gone)),
        item("reload", "systemd"),
        item("empty", str(gone.parent)),
    ]
    result = run(items)
    assert commands_run(tmp_path) == [
        "systemctl stop vllm@demo.service",
        "docker rm --force vllm-demo",
        "docker image rm a:1",
        "docker image rm a@sha256:2",
        "docker image rm sha256:1",
        "systemctl daemon-reload",
        "systemctl reset-failed vllm@*.service vllm-liveness@* vllm-gave-up@*",
    ]
    assert not gone.parent.exists()
    assert result["removed"] == [f"{entry['kind']} {entry['name']}" for entry in items[:4]]
    assert result["changed"] is True


def test_check_mode_runs_nothing_and_returns_the_plan(run: Run, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    keep.mkdir()
    result = run([item("path", str(keep)), item("image", "sha256:1"), item("empty", str(keep))], check=True)
    assert (result["changed"], result["removed"]) == (True, [f"path {keep}", "image sha256:1"])
    assert keep.exists()
    assert commands_run(tmp_path) == []


@pytest.mark.parametrize(
    ("entry", "answers"),
    [
        (item("image", "sha256:1", names=["a:1"]), "image rm=1=Error response from daemon: No such image: a:1"),
        (item("container", "vllm-demo"), "rm=1=Error: No such container: vllm-demo"),
        (item("container", "vllm-demo"), "rm=1=removal of container vllm-demo is already in progress"),
        (item("unit", "vllm@demo.service"), "stop=5=Unit vllm@demo.service not loaded."),
        (item("path", "/no/such/path-of-vllm-spark"), ""),
        (item("empty", "/no/such/path-of-vllm-spark"), ""),
        (item("reload", "systemd"), "reset-failed=1=Unit not loaded"),
    ],
)
def test_an_object_that_is_gone_already_is_not_an_error(run: Run, entry: dict[str, Any], answers: str) -> None:
    assert "failed" not in run([entry], answers)


@pytest.mark.parametrize(
    ("entry", "answers", "why"),
    [
        (item("image", "sha256:1"), "image rm=1=image is being used by running container 12", "running container 12"),
        (item("unit", "vllm@demo.service"), "stop=1=Job failed", "Job failed"),
        (item("reload", "systemd"), "daemon-reload=1=no bus", "no bus"),
        (item("path", "/etc"), "", "not a path that vllm-spark removes"),
        (item("path", "/var/lib/../lib/x"), "", "not a path that vllm-spark removes"),
        (item("path", "relative/path"), "", "not a path that vllm-spark removes"),
        (item("path", "/dev/shm"), "", "mounted"),  # noqa: S108  that it is never removed is the point
    ],
)
def test_the_first_object_that_stays_is_an_error(
    run: Run, tmp_path: Path, entry: dict[str, Any], answers: str, why: str
) -> None:
    after = tmp_path / "after"
    after.touch()
    result = run([item("container", "vllm-gone"), entry, item("path", str(after))], answers)
    assert result["failed"]
    assert why in result["msg"]
    assert "docs/runbooks/remove-refused.md" in result["msg"]
    assert (result["changed"], result["removed"]) == (True, ["container vllm-gone"])
    assert after.exists()


def test_a_link_is_removed_without_its_target(run: Run, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    run([item("path", str(link))])
    assert target.exists()
    assert not link.is_symlink()


def test_a_folder_with_a_mounted_file_system_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    (folder / "disk").mkdir(parents=True)
    module = load_module("vllm_remove")
    monkeypatch.setattr(module, "mount_points", lambda: ["/", str(folder / "disk"), f"{folder}-of-another"])
    with pytest.raises(module.RemovalError, match="disk"):
        module.path(item("path", str(folder)))
    assert folder.exists()
    monkeypatch.setattr(module, "mount_points", lambda: ["/", f"{folder}-of-another"])
    module.path(item("path", str(folder)))
    assert not folder.exists()
