"""up.yml on the Spark itself (`ansible_connection: local`): its parts, its one question, and what continues it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fakes import local_spark
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
    name: str = yaml.safe_load((paths.ROOT / "playbooks" / f"{verb}.yml").read_text())[0]["name"]
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


def at_a_terminal(argv: list[str], answer: bytes) -> tuple[int, str]:
    """Run a command at a terminal and type the answer to its question. Returns its exit status and its output."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(argv[0], argv, environment())  # noqa: S606  no shell
    output, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.5)[0]:
            # Ansible drops what was typed before it reads.
            if output.rstrip().endswith(consent.QUESTION.encode()):
                os.write(terminal, answer)
            continue
        try:
            output += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    else:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode()


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


@pytest.mark.parametrize("answer", [b"no\r", b"\r", b"\x03"], ids=["no", "nothing", "ctrl-c"])
def test_an_answer_that_is_not_yes_ends_it_before_the_download(inventory: Path, answer: bytes) -> None:
    status, output = at_a_terminal(argv(inventory, "up.yml"), answer)
    assert status == 2, output
    assert output.count(consent.QUESTION) == 1
    assert consent.DECLINED in output
    assert "[3/4]" not in output
    assert f"It ended in [2/4] {part('plan')}; the same command again continues." in output


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_question_it_goes_on_to_the_pull(inventory: Path, terminal: bool) -> None:
    """A file stands where the lock belongs, so the pull ends before it changes anything."""
    lock = inventory.parent / "no-folder"
    lock.write_text("")
    command = argv(inventory, "up.yml", "-e", f"spark_lock_folder={lock}/x", *["-e", "up_yes=true"] * terminal)
    if terminal:
        status, output = at_a_terminal(command, b"")
    else:
        status, out, err = run(inventory, "up.yml", *command[4:])
        output = out + err
    assert status == 2, output
    assert consent.QUESTION not in output
    assert output.index("To download") < output.index("[3/4] Pull") if not terminal else "[3/4] Pull" in output
    assert f"It ended in [3/4] {part('pull')}; the same command" in output
