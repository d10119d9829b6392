"""up.yml on the Spark itself (`ansible_connection: local`): its parts, its one question, and what continues it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fakes import local_spark, terminal
from vllm_spark.core import paths
from vllm_spark.deploy import consent
from vllm_spark.lifecycle import interruption

RUN = Path(sys.executable).with_name("ansible-playbook")
RECIPE = "gemma-4-26b-a4b-nvfp4-mtp"


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Path]:
    with local_spark.running(tmp_path / "spark") as host:
        yield local_spark.write_inventory(tmp_path, host, RECIPE)


def part(verb: str) -> str:
    """Return the name of the play of a verb."""
    name: str = yaml.load((paths.ROOT / "playbooks" / f"{verb}.yml").read_text(), yaml.CSafeLoader)[0]["name"]
    return name


def argv(inventory: Path, playbook: str, *words: str) -> list[str]:
    return [str(RUN), "-i", str(inventory), str(paths.ROOT / playbook), *words]


def environment(**more: str) -> dict[str, str]:
    config = str(paths.ROOT / "ansible.cfg")
    return {**os.environ, "ANSIBLE_CONFIG": config, "ANSIBLE_FORCE_COLOR": "0", "TERM": "dumb", **more}


def run(inventory: Path, playbook: str, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        argv(inventory, playbook, *words), cwd=inventory.parent, env=environment(),
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_check_mode_shows_each_part_and_what_would_come(inventory: Path) -> None:
    status, out, err = run(inventory, "up.yml", "--check")
    assert (status, err) == (0, "")
    headings = [line for line in out.splitlines() if line.startswith("[")]
    assert headings == [
        f"[1/4] {part('lock')}",
        f"[2/4] {part('plan')}",
        f"[3/4] {part('pull')}",
        f"[4/4] {part('deploy')}",
    ]
    assert out.endswith(f"{headings[3]}\n{interruption.LEFT_OUT}\n")
    assert out.count(interruption.LEFT_OUT) == 1
    assert "To download: 17.7 GB for the model of gemma-4-26b-a4b-nvfp4-mtp and the image vllm/vllm-openai." in out
    assert "spark1  image vllm/vllm-openai" in out.partition(headings[2])[2]
    assert not (inventory.parent / "lock.yml").exists()
    assert not (inventory.parent / "hub").exists()


@pytest.mark.parametrize("answer", ["no", "", "\x03"], ids=["no", "nothing", "ctrl-c"])
def test_an_answer_that_is_not_yes_ends_it_before_the_download(inventory: Path, answer: str) -> None:
    status, output = terminal.typed(argv(inventory, "up.yml"), environment(), {consent.QUESTION: answer})
    assert status == 2, output
    assert output.count(consent.QUESTION) == 1
    assert consent.DECLINED.replace("spark up", f"spark up -i {inventory}") in output
    assert "[3/4]" not in output
    assert f"It ended in [2/4] {part('plan')}; the same command again continues." in output


@pytest.mark.parametrize("typed", [True, False])
def test_without_a_question_it_goes_on_to_the_pull(inventory: Path, typed: bool) -> None:
    """A file stands where the lock belongs, so the pull ends before it changes anything."""
    lock = inventory.parent / "no-folder"
    lock.write_text("")
    command = argv(inventory, "up.yml", "-e", f"spark_lock_folder={lock}/x", *["-e", "up_yes=true"] * typed)
    if typed:
        status, output = terminal.typed(command, environment(), {})
    else:
        status, out, err = run(inventory, "up.yml", *command[4:])
        output = out + err
    assert status == 2, output
    assert consent.QUESTION not in output
    assert output.index("To download") < output.index("[3/4] Pull") if not typed else "[3/4] Pull" in output
    if not typed:
        planned = out.partition("[2/4]")[2].partition("[3/4]")[0].splitlines()
        # The change, what it needs and how fast it is, three notes of the forecast, and the download.
        assert len(planned[1:]) <= 6, planned
        assert re.search(r"mine: go, memory \S+ GiB of \S+ GiB, \S+ tok/s on chat, download 17.7 GB", out)
    assert f"It ended in [3/4] {part('pull')}; the same command" in output


@pytest.mark.parametrize(("columns", "widest"), [("", 80), ("100", 100)])
def test_the_table_of_an_action_is_as_wide_as_the_terminal(inventory: Path, columns: str, widest: int) -> None:
    """The processes of actions have no terminal. This one has no size, which a program takes for 80 columns."""
    more = {"COLUMNS": columns} if columns else {}
    status, output = terminal.typed(argv(inventory, "status.yml"), environment(**more), {})
    assert status == 0, output
    rows = [line for line in output.splitlines() if line[:1] in "┏│├└"]
    assert len(rows) > 3, output
    assert widest - 10 < max(map(len, rows)) <= widest
