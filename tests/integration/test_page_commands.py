"""Each command of README, the operations and the runbooks, read by the parsers of its programs, and typed at a desk."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import project_files
import typed_commands
from fakes.catalogue import NAMES, planned
from fakes.typing_desk import NEED, PRINTS, TOOLS, Desk
from vllm_spark.core import paths
from vllm_spark.deploy import launch

PAGES = [
    paths.ROOT / "README.md",
    paths.ROOT / "docs" / "reference" / "checklist.md",
    *sorted((paths.ROOT / "docs" / "operations").glob("*.md")),
    *sorted(paths.RUNBOOKS.glob("*.md")),
]
KNOWN = {
    *TOOLS,
    *PRINTS,
    *(name for names in NEED.values() for name in names),
    "docker",
    "ssh",
    "sudo",
    "grep",
    "journalctl",
    "cd",
    "export",
    "source",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^ {4,}(\S.*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
# Pages with lines that a program prints, or with a part of a file, and the first word of each.
PRINTED = {
    *(("how-it-works.md", word) for word in ("recipes/*.yml", "inventory", "facts", "Spark")),
    *(("any-model.md", word) for word in ("args:",)),
    *(("edge.md", word) for word in ("spark1", '{"type":')),
    ("pull.md", "spark2"),
    ("several.md", "spark1"),
    *(("switch.md", word) for word in ("thinker", "in")),
}
# Pages on which a launch without the flag is a finding, and those for a pair.
MAY_BE_ABSENT = {
    "reasoning.md": "a recipe without a reasoning parser",
    "structured-output.md": "a recipe without a reasoning parser",
    "tools.md": "a recipe without a tool parser",
    "vision.md": "a recipe with the defaults of the model",
    "nccl-timeout.md": "a launch of one Spark",
    "drafter.md": "a recipe without a drafter",
}


def begins(line: str) -> bool:
    """Return whether a line of a block begins with a program."""
    word = re.match(r"(?:\w+=\S+ +)*\(?([\w.-]+)(?= |$)", line.strip())
    return bool(word and word[1] in KNOWN) or line.startswith("$EDITOR")


def blocks(page: Path) -> Iterator[str]:
    """Yield the blocks of a page without a language. Those with one are files and prose."""
    yield from (block for language, block in BLOCK.findall(page.read_text()) if not language)


def has_arguments(code: str) -> bool:
    """Return whether an inline text is typed as it is. `docker save` and `cp -p` are names of commands."""
    after_option = False
    for word in code.split()[1:]:
        if word.startswith("-"):
            after_option = True
        elif after_option or re.search(r"[A-Z/=@|:.'\"]", word):
            return True
    return False


def typed(page: Path) -> Iterator[str]:
    """Yield the commands of a page: those of its blocks, of indented lines, and of inline code that has arguments."""
    text = page.read_text()
    yield from (line for block in blocks(page) for line in lines(block) if begins(line))
    rest = BLOCK.sub("", text)
    yield from (line for line in INDENTED.findall(rest) if begins(line))
    yield from (code for code in INLINE.findall(INDENTED.sub("", rest)) if begins(code) and has_arguments(code))


def lines(block: str) -> Iterator[str]:
    """Yield the lines of a block. A quotation and a backslash go on in the next line."""
    command = ""
    for line in block.splitlines():
        command = f"{command}\n{line}" if command else line
        if command.strip() and (not begins(command) or is_complete(command)):
            yield command
            command = ""


def is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")


COMMANDS = [(page, command) for page in PAGES for command in dict.fromkeys(typed(page))]
OF_LAUNCH = [(page, command) for page, command in COMMANDS if "/launch" in command]


def test_commands_of_each_kind_are_found() -> None:
    found = [command for _, command in COMMANDS]
    assert len(found) > 600
    assert sum(command.startswith("ssh ") for command in found) > 130
    assert sum("grep" in command for command in found) > 40
    assert any("\n" in command and "awk" in command for command in found)
    assert len(OF_LAUNCH) > 12


def test_a_block_has_commands_alone_or_none() -> None:
    """No command is left out because its program is unknown."""
    others = [
        (page.name, line) for page in PAGES for block in blocks(page) for line in lines(block) if not begins(line)
    ]
    assert {(page, line.split()[0]) for page, line in others if line.lstrip()[0] != "#"} == PRINTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_accept_each_command(page: Path) -> None:
    faults = {command: typed_commands.wrong(command) for of, command in COMMANDS if of == page}
    assert {command: fault for command, fault in faults.items() if fault} == {}


@cache
def journal() -> str:
    """Return the lines that engines, kernels and units print: the logs of the doctor's tests and its examples."""
    logs = sorted((project_files.DATA / "doctor-logs").rglob("*.log"))
    signatures = yaml.load((paths.ROOT / "src/vllm_spark/doctor/signatures.yml").read_text(), yaml.CSafeLoader)
    entries = signatures["signatures"] if isinstance(signatures, dict) else signatures
    own = ["vllm-spark: launch 0", "server edge/at.SPARK is DOWN", "systemd[1]: Reloading requested from client PID 7"]
    examples = (str(entry["example"]) for entry in entries)
    return "\n".join([*own, *examples, *(log.read_text(errors="replace") for log in logs)])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, journal())


@pytest.fixture
def clone(desk: Desk) -> Path:
    """A folder with the files of a clone that pages name, and files under their placeholders."""
    folder = desk.folder / "clone"
    shutil.copytree(paths.ROOT / "inventories" / "minimal", folder / "inventories" / "minimal")
    shutil.copytree(paths.ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copytree(paths.ROOT / "src" / "vllm_spark" / "bench" / "profiles", folder / "src/vllm_spark/bench/profiles")
    listed = f"{hashlib.sha256(b'').hexdigest()}  bundle.json\n"
    files = {
        "DIR/bundle.json": "", "DIR/files.sha256": listed, "DIR/hub/x": "", "DIR/images/x": "", "DIR/wheels/x": "",
        "FILE": "", "FOLDER/y": "", "KEY.pub": "", "PATH": "", "files.sha256": listed, "bundle.json": "",
        "SHA256SUMS": listed, "SHA256SUMS.sig": "",
        ".venv/bin/activate": "", "inventories/site/lock.yml": "", "lock.yml": "OWNER/NAME:\n",
        "recipes/NAME.yml": "image: {}\n", "reports/bench/x": "", "FINDINGS.txt": "",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with tarfile.open(folder / "reports/collect-spark1-….tar.gz", "w:gz") as bundle:
        bundle.add(folder / "FINDINGS.txt", "FINDINGS.txt")
    return folder


@cache
def launches(recipe: str) -> Sequence[str]:
    """Return the launch of each rank of a recipe."""
    facts: dict[str, Any] = json.loads((project_files.DATA / "facts" / "spark.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        return [launch.script(spec) for spec in planned(recipe, facts, Path(folder))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_reads_what_is_there(page: Path, desk: Desk, clone: Path) -> None:
    typed = [command for of, command in COMMANDS if of == page]
    if absent := [tool for tool in TOOLS if not shutil.which(tool) and any(f"| {tool} " in line for line in typed)]:
        pytest.skip(f"{', '.join(absent)} of {page.name} is not installed")
    desk.place_launch(launches("gemma-4-31b-nvfp4")[0])
    found, folder = {}, clone
    for command in typed:
        if command.startswith("cd "):
            folder = Path(desk.rooted(command).split()[1])
        result = desk.type(command, folder)
        if result.errors or result.launched or (result.unmatched and "/launch" not in command):
            found[command] = result
    assert found == {}


@pytest.mark.parametrize("recipe", NAMES)
def test_what_a_page_reads_in_a_launch_is_in_each(recipe: str, desk: Desk) -> None:
    commands = [command for page, command in OF_LAUNCH if page.name not in MAY_BE_ABSENT]
    for text in launches(recipe):
        desk.place_launch(text)
        results = {command: desk.type(command, desk.folder) for command in commands}
        assert {command: result for command, result in results.items() if result.unmatched or result.launched} == {}


def test_what_a_launch_may_lack_is_in_some(desk: Desk) -> None:
    missing = {command for page, command in OF_LAUNCH if page.name in MAY_BE_ABSENT}
    assert len(missing) >= len(MAY_BE_ABSENT)
    for recipe in ("gemma-4-26b-a4b-nvfp4-mtp", "gemma-4-31b-fp8-tp2"):
        desk.place_launch(launches(recipe)[0])
        missing = {command for command in missing if desk.type(command, desk.folder).unmatched}
    assert missing == set()


RUN = [
    ('ssh -t U@A sudo grep -E "sha256:|source=" /etc/vllm-spark/NAME/previous/launch', "launched"),
    ("ssh U@A grep -n 'src=' /etc/vllm-spark/NAME/launch", "unmatched"),
    ("ssh U@A cat /etc/vllm-spark/NAME/lunch", "errors"),
    ("ssh U@A grep -n source= /etc/vllm-spark/NAME/launch", ""),
]


@pytest.mark.parametrize(("command", "seen"), RUN)
def test_the_desk_sees_each_kind_of_fault(command: str, seen: str, desk: Desk) -> None:
    desk.place_launch(launches("gemma-4-31b-nvfp4")[0])
    result = desk.type(command, desk.folder)
    assert not seen or getattr(result, seen)
    assert bool(seen) == bool(result.errors or result.unmatched or result.launched)
