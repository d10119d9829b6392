"""The shared store of a hub cache: who links to it, and what may be removed.

tests/integration/test_pull_libraries.py has stores that the hub's own library has written.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from project_files import load_module
from vllm_spark.node import shared_blobs

HASH = "ab" + "1" * 62
OTHER = "cd" + "2" * 62


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A cache with two files in its store: a model links to the first, and that of the second is gone."""
    hub = tmp_path / "var" / "lib" / "vllm-spark" / "hub"
    for name, user in ((HASH, "models--o--kept"), (OTHER, "models--o--gone")):
        file = hub / "blobs" / name[:2] / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"weights")
        Path(f"{file}.lock").touch()
        Path(f"{file}.refs").write_text(f"{user}/blobs/{'e' * 64}\n")
    (hub / "blobs" / shared_blobs.MARK).write_text("1\n")
    link_to(hub, "models--o--kept", f"../../blobs/{HASH[:2]}/{HASH}")
    return hub


def link_to(hub: Path, model: str, target: str) -> Path:
    link = hub / model / "blobs" / ("e" * 64)
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    return link


def stored(hub: Path) -> list[str]:
    return [file.name for file in shared_blobs.files(hub)]


def test_a_file_to_which_nothing_links_is_removed_with_its_references(hub: Path) -> None:
    assert [file.name for file in shared_blobs.unlinked(hub)] == [OTHER]
    assert shared_blobs.remove(shared_blobs.unlinked(hub)[0]) == ""
    assert stored(hub) == [HASH]
    assert not list(hub.rglob(f"{OTHER}.refs"))
    assert shared_blobs.unlinked(hub) == []


# name -> (the model or data set that uses it, its link)
USERS = {
    "a data set": ("datasets--o--d", "../../blobs/{0}/{1}"),
    "a link of an absolute path": ("models--o--m", "{2}/blobs/{0}/{1}"),
    "a link of a broken model": ("models--o--m", "../../blobs/{0}/{1}"),
}


@pytest.mark.parametrize("name", USERS)
def test_what_anything_in_the_cache_links_to_stays(hub: Path, name: str) -> None:
    user, target = USERS[name]
    file = shared_blobs.unlinked(hub)[0]
    link_to(hub, user, target.format(OTHER[:2], OTHER, hub))
    assert shared_blobs.unlinked(hub) == []
    assert shared_blobs.remove(file) == f"{user}/blobs/{'e' * 64} links to it"
    assert stored(hub) == [HASH, OTHER]


@pytest.mark.parametrize("lock", ["held", "absent"])
def test_what_another_process_may_use_stays(hub: Path, lock: str) -> None:
    file = shared_blobs.unlinked(hub)[0]
    with Path(f"{file}.lock").open("w") as held:
        if lock == "held":
            fcntl.flock(held, fcntl.LOCK_EX)
        else:
            Path(held.name).unlink()
        assert shared_blobs.remove(file) == "another process uses it"
    assert stored(hub) == [HASH, OTHER]


def unmark(hub: Path) -> None:
    (hub / "blobs" / shared_blobs.MARK).unlink()


def lead_away(hub: Path) -> None:
    (hub / "blobs").rename(hub / "elsewhere")
    (hub / "blobs").symlink_to(hub / "elsewhere")


@pytest.mark.parametrize("change", [unmark, lead_away])
def test_a_folder_of_somebody_else_is_no_store(hub: Path, change: Callable[[Path], None]) -> None:
    change(hub)
    assert shared_blobs.unlinked(hub) == []
    assert shared_blobs.references(hub) == {}


def test_the_holdings_of_a_host_have_what_nothing_links_to(hub: Path, tmp_path: Path) -> None:
    load_module("vllm_holdings")
    module = sys.modules["ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_holdings"]
    file = hub / "blobs" / OTHER[:2] / OTHER
    assert [entry["path"] for entry in module.holdings(str(tmp_path))["shared_blobs"]] == [str(file)]


def test_a_removal_that_came_too_late_is_an_error(hub: Path) -> None:
    module = load_module("vllm_remove")
    file = hub / "blobs" / OTHER[:2] / OTHER
    link_to(hub, "models--o--m", f"../../blobs/{OTHER[:2]}/{OTHER}")
    with pytest.raises(module.RemovalError, match="models--o--m"):
        module.shared({"name": str(file)})
    assert file.exists()
