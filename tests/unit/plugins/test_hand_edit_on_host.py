"""A launch that is edited on its Spark: what its folder keeps, what the facts say of it, and what the history tells."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_files, spark_launches, spark_status

from project_files import load_module
from vllm_spark.lifecycle import history
from vllm_spark.node import launch_difference

SCRIPT = "#!/bin/sh\necho 'vllm-spark: launch {mark}'\nexec docker run \\\n  --init \\\n  --max-num-seqs {value}\n"


def script(value: int, mark: str = "a") -> str:
    return SCRIPT.format(mark=mark, value=value)


def files(folder: Path, text: str, mark: str) -> list[dict[str, Any]]:
    """Return the files of a launch as a deploy places them."""
    record = {"deployment": "demo", "launch": mark * 64, "launch_sha256": hashlib.sha256(text.encode()).hexdigest()}
    return [
        {"path": str(folder / "launch"), "content": text, "mode": "0755"},
        {"path": str(folder / "deployed.json"), "content": json.dumps(record), "mode": "0644"},
    ]


def place(folder: Path, value: int, mark: str = "a", keep_as: str = "", *, unedit: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stale = [
        file
        for file in files(folder, script(value, mark), mark)
        if not Path(file["path"]).is_file() or Path(file["path"]).read_text() != file["content"]
    ]
    spark_files.install(str(folder), stale, keep_as, unedit=unedit)


def through_the_link(path: Path) -> None:
    path.write_text(path.read_text().replace("seqs 4", "seqs 3"))


def in_place_of_the_link(path: Path) -> None:
    """As `sed -i` does."""
    text = path.read_text().replace("seqs 4", "seqs 3")
    path.unlink()
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / spark_status.CONFIG / "demo"
    place(made, 4)
    return made


def present(folder: Path) -> dict[str, Any]:
    """Return the facts of the launch in the folder of the deployment."""
    found = spark_status.present("demo", str(folder.parents[2]))
    assert found is not None
    return dict(found)


EDITORS = pytest.mark.parametrize("edit", [through_the_link, in_place_of_the_link])


def value_of(path: Path) -> str:
    return path.read_text().split()[-1]


@EDITORS
def test_the_facts_of_an_edit(folder: Path, edit: Callable[[Path], None]) -> None:
    before = present(folder)
    assert (before["edited_at"], before["found"]) == (None, before["deployed"])
    edit(folder / "launch")
    os.utime(folder / "launch", (5, 5))
    found = present(folder)
    assert found == {
        "deployed": before["deployed"],
        "found": launch_difference.standing(script(3)),
        "of_start": [],
        "command": ["docker run", "--init", "--max-num-seqs 3"],
        "edited_at": 5.0,
    }
    assert spark_status.present("other", str(folder)) is None


def test_the_first_release_kept_no_copy(folder: Path) -> None:
    """What was deployed is then known only if the editor has replaced the link."""
    (folder / "current" / spark_files.ORIGINAL).unlink()
    through_the_link(folder / "launch")
    found = present(folder)
    assert (found["deployed"], found["edited_at"] is not None) == ("", True)
    place(folder, 2, "b", "previous", unedit=True)
    assert value_of(folder / "previous/launch") == "3"
    place(folder, 4, "c", "previous")
    (folder / "current" / spark_files.ORIGINAL).unlink()
    in_place_of_the_link(folder / "launch")
    assert present(folder)["deployed"] == launch_difference.standing(script(4, "c"))
    place(folder, 2, "b", "previous", unedit=True)
    assert value_of(folder / "previous/launch") == "4"


@EDITORS
def test_what_never_ran_is_not_kept(folder: Path, edit: Callable[[Path], None]) -> None:
    edit(folder / "launch")
    place(folder, 2, "b", "previous", unedit=True)
    assert (value_of(folder / "launch"), value_of(folder / "previous/launch")) == ("2", "4")
    assert spark_launches.edited(str(folder / "previous")) is False
    assert (folder / "previous/launch").stat().st_mode & 0o777 == 0o755


@EDITORS
def test_what_ran_is_kept_as_it_ran(folder: Path, edit: Callable[[Path], None]) -> None:
    edit(folder / "launch")
    place(folder, 2, "b", "previous")
    assert (value_of(folder / "launch"), value_of(folder / "previous/launch")) == ("2", "3")
    assert spark_launches.edited(str(folder / "previous")) is True
    # A rollback returns to the edit, and its deployed launch is known even then.
    spark_files.swap(str(folder), "")
    found = present(folder)
    assert (found["deployed"], found["found"]) == tuple(launch_difference.standing(script(each)) for each in (4, 3))


@EDITORS
def test_the_same_launch_puts_it_back(folder: Path, edit: Callable[[Path], None]) -> None:
    edit(folder / "launch")
    place(folder, 4)
    assert value_of(folder / "launch") == "4"
    assert not (folder / "previous").exists()
    assert spark_launches.edited(str(folder)) is False


def test_the_module_hands_the_wish_on(folder: Path) -> None:
    in_place_of_the_link(folder / "launch")
    args = {"files": files(folder, script(2, "b"), "b"), "env_path": str(folder / "env"), "keep_as": "previous"}
    with patch_module_args({**args, "unedit": True}), pytest.raises(SystemExit):
        load_module("vllm_files").main()
    assert value_of(folder / "previous/launch") == "4"


JUDGED = {"holds": True, "gates": {"held": ["ready"], "missed": []}}


@pytest.fixture
def record(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Record a judged launch. Returns what the table says of its change."""
    module = load_module("vllm_history_file")
    monkeypatch.setattr(module, "HISTORY", str(tmp_path / "history"))

    def _record(verb: str, **on_host: Any) -> str:
        entry = history.entry(verb, "me@here", JUDGED, {"on_host": on_host} if on_host else {})
        args = {"entry": entry, "folder": str(folder), "deployment": "demo"}
        with patch_module_args(args), pytest.raises(SystemExit):
            module.main()
        (*_, last) = (tmp_path / "history" / "demo.jsonl").read_text().splitlines()
        return history.changed(json.loads(last))

    return _record


def test_the_history_tells_what_ran(folder: Path, record: Callable[..., str]) -> None:
    assert record("deploy") == "first launch"
    # Never ran: the deploy went from 4 to 2.
    in_place_of_the_link(folder / "launch")
    place(folder, 2, "b", "previous", unedit=True)
    assert record("deploy", edited=True, ran=False, changes="--max-num-seqs 3 → 2") == "--max-num-seqs 4 → 2"


def test_the_history_marks_an_edit_that_ran(folder: Path, record: Callable[..., str]) -> None:
    record("deploy")
    in_place_of_the_link(folder / "launch")
    place(folder, 4)
    put_back = record("deploy", edited=True, ran=True, changes="--max-num-seqs 3 → 4")
    assert put_back == "an edit by hand is put back: --max-num-seqs 3 → 4"
    through_the_link(folder / "launch")
    place(folder, 2, "b", "previous")
    said = record("deploy", edited=True, ran=True, changes="--max-num-seqs 3 → 2")
    assert said == "--max-num-seqs 3 → 2; the launch before was edited by hand"
    spark_files.swap(str(folder), "")
    assert record("rollback", edited=True, ran=True, changes="of the deploy") == "--max-num-seqs 2 → 3; edited by hand"


def test_an_entry_of_the_first_release_is_read() -> None:
    """It has neither field."""
    assert history.changed({"before": "a", "launch": "b", "changes": ["--x 1 → 2"]}) == "--x 1 → 2"
