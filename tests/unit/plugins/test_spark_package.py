"""The installation of a package: what it records for remove.yml, and that no service starts. apt is replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandError, CommandResult

from project_files import load_module

POLICY, RECORD = "usr/sbin/policy-rc.d", "var/lib/vllm-spark/packages"
Host = Callable[..., Any]


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A function that sets what apt brings and how it ends, and returns the module and the commands that it runs.
    `without_lists`: apt knows no package before its lists are fetched."""
    (tmp_path / POLICY).parent.mkdir(parents=True)
    module = load_module("spark_package")
    seen: list[str] = []

    def _apt(*brings: str, error: str = "", without_lists: bool = False) -> tuple[Any, list[str]]:
        present = {"bash"}

        def run(*argv: str, **_: object) -> CommandResult:
            if argv[0] == "dpkg-query":
                return CommandResult(0, "".join(f"ii  {name}\n" for name in present) + "rc  removed-before\n")
            seen.append(" ".join(argv))
            if "install" in argv:
                assert (tmp_path / POLICY).read_text() == "#!/bin/sh\nexit 101\n"
                if without_lists and not any("update" in command for command in seen):
                    return CommandResult(100, "", "E: Package 'haproxy' has no installation candidate")
                present.update(brings)
            return CommandResult(100, "", error) if error else CommandResult(0)

        monkeypatch.setattr(module, "run", run)
        return module, seen

    return _apt


def test_what_came_with_a_package_is_recorded_once(apt: Host, tmp_path: Path) -> None:
    module, seen = apt("haproxy", "liblua5.3-0")
    assert module.install("haproxy", str(tmp_path)) == ["haproxy", "liblua5.3-0"]
    assert ["update" in command for command in seen] == [False]
    assert "--no-install-recommends" in seen[0]
    assert module.install("haproxy", str(tmp_path)) == []
    module, _ = apt("nftables")
    assert module.install("nftables", str(tmp_path)) == ["nftables"]
    assert (tmp_path / RECORD).read_text() == "haproxy\nliblua5.3-0\nnftables\n"
    assert not (tmp_path / POLICY).exists()


def test_lists_that_the_host_lacks_are_fetched(apt: Host, tmp_path: Path) -> None:
    """The folder of a factory image is new and has no lists."""
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    module, seen = apt("haproxy", without_lists=True)
    assert module.install("haproxy", str(tmp_path)) == ["haproxy"]
    assert ["update" in command for command in seen] == [False, True, False]


def test_a_failed_installation_says_why_and_records_what_it_left(apt: Host, tmp_path: Path) -> None:
    module, _ = apt("liblua5.3-0", error="E: Unable to locate package haproxy")
    with pytest.raises(CommandError, match="Unable to locate package haproxy"):
        module.install("haproxy", str(tmp_path))
    assert (tmp_path / RECORD).read_text() == "liblua5.3-0\n"


def test_a_policy_of_the_owner_comes_back(apt: Host, tmp_path: Path) -> None:
    (tmp_path / POLICY).write_text("own")
    module, _ = apt("haproxy")
    module.install("haproxy", str(tmp_path))
    assert (tmp_path / POLICY).read_text() == "own"
    assert [path.name for path in (tmp_path / POLICY).parent.iterdir()] == ["policy-rc.d"]
