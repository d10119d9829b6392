"""Commands that pages and messages print, judged as a shell, ssh and the programs' own parsers read them."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import yaml
from ansible.cli import playbook

from vllm_spark.cli import main, verbs
from vllm_spark.core import paths
from vllm_spark_ansible import json_mode

# Programs whose name begins a command in a text. A text that has one of them with arguments outside of backticks mixes
# words of a sentence with those of the command.
PROGRAMS = (
    "ansible-playbook|vllm-spark|sudo|ssh|ssh-add|ssh-keygen|ssh-copy-id|journalctl|systemctl|apt-get|modprobe|netplan"
    "|nvidia-ctk|nvidia-smi|fwupdmgr|sysctl|docker|ansible-vault|ansible-inventory|rsync|curl|timedatectl|nmcli"
)
IN_TEXT = re.compile(
    rf"(?<![\w./@-])(?:(?:{PROGRAMS}) +(?:-|\w*[./=:{{]|[a-z-]+ +-)\S*|(?:sudo|ssh -t) +(?!and |or |for )[\w-]\S*"
    r"|docker +(?:exec|run|image|ps|stop|rm|save|load|login|logout|inspect|kill) +\S+)"
)
BACKTICKS = re.compile(r"`([^`]+)`")
BEGINS = re.compile(rf"(?:{PROGRAMS}|ping|ps|ss|make|echo|cp|git|ansible|ibdev2netdev)(?: |$)")
# A word in <angle brackets> is a redirection for a shell, and so is a <.
ANGLE = re.compile(r"<[a-z]+>")
# Options of ssh that take a value.
SSH_VALUES = "bcDEeFIiJLlmOopQRSWw"
# Programs of a Spark that only root may use.
OF_ROOT = {"docker", "modprobe", "nvidia-ctk", "fwupdmgr", "ufw", "nft", "dmesg"}
# Placeholders of numbers.
NUMBERS = {"TOKENS": "1000", "N": "1"}
CHANGES = {"start", "stop", "restart", "reload", "enable", "disable", "reboot", "isolate"}


class WrongError(Exception):
    """A command that does not do what its author meant. The text says why."""


@cache
def wrong(command: str) -> str:
    """Return why a command does not run as it is printed, or an empty text."""
    try:
        _judge(command)
    except WrongError as error:
        return str(error)
    return ""


def _judge(command: str) -> None:
    if placeholder := ANGLE.search(command):
        raise WrongError(f"{placeholder[0]} is a redirection for the shell")
    read = subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True, check=False)
    if read.returncode or read.stderr:
        raise WrongError(read.stderr.strip())
    for words, leaves in parts(command):
        if leaves and words[0] == "ssh" and "-t" in words and "sudo" in words:
            raise WrongError("ssh -t sends the question of sudo where the output goes, and nobody sees it")
        _judge_words(words)


def parts(command: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each simple command of a line as a shell splits it, and whether its output goes elsewhere."""
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    leaves = False
    for word in itertools.chain(reader, ";"):
        if word in {"|", "||", "&&", ";", "&", "(", ")", ")|", ");"}:
            if words:
                yield words, leaves or word == "|"
            words, leaves = [], False
        elif set(word) <= set("<>&"):
            leaves = leaves or ">" in word
            next(reader, None)
        else:
            words.append(word)


def _judge_words(words: Sequence[str]) -> None:
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    if words and (judge := JUDGES.get(words[0].rpartition("/")[2])):
        judge(words)


@cache
def _parser() -> argparse.ArgumentParser:
    command = playbook.PlaybookCLI(["ansible-playbook"])
    command.init_parser()
    return command.parser


def _playbook(words: Sequence[str]) -> None:
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            options = _parser().parse_args(list(words[1:]))
    except SystemExit:
        raise WrongError(output.getvalue().strip().splitlines()[-1]) from None
    for name in options.args:
        if not (paths.ROOT / name).is_file():
            raise WrongError(f"there is no playbook {name}")
    for pair in options.extra_vars:
        if (name := pair.partition("=")[0].lstrip("{ '\"")) not in variables():
            raise WrongError(f"nothing reads the variable {name}")


@cache
def variables() -> frozenset[str]:
    """Return the variables that a role, a playbook or a scenario reads: names in Jinja, and defaults."""
    names = {json_mode.VARIABLE}
    for folder in ("roles", "playbooks", "sandbox/roles", "inventories", "molecule"):
        for file in (paths.ROOT / folder).rglob("*.yml"):
            text = file.read_text()
            names |= set(re.findall(r"\b([a-z]\w+) \| default\(", text))
            if file.parent.name == "defaults" or "group_vars" in file.parts:
                names |= set(yaml.load(text, yaml.CSafeLoader) or {})
    return frozenset(names)


def _vllm_spark(words: Sequence[str]) -> None:
    words = [NUMBERS.get(word, word) for word in words]
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            args = main.parse(list(words[1:]))
    except SystemExit as error:
        if error.code:
            raise WrongError(output.getvalue().strip().splitlines()[-1]) from None
        return
    if args.command in verbs.found() and "rest" in args:
        _playbook(["ansible-playbook", *args.options, *args.rest, f"{args.command}.yml"])


def remote(words: Sequence[str]) -> list[str]:
    """Return the words after the host of an ssh command."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option[-1] in SSH_VALUES and len(option) == len("-x"):
            rest.pop(0)
    return rest[1:]


def _ssh(words: Sequence[str]) -> None:
    sent = remote(words)
    if len(sent) > 1:
        try:
            received = [words for words, _ in parts(" ".join(sent))]
        except ValueError as error:
            raise WrongError(f"the other shell cannot read it: {error}") from None
        # Words that are quoted twice arrive as their author wrote them, within one pair of quotation marks.
        meant = [
            word for each in sent for word in (shlex.split(each) if re.fullmatch(r"(['\"]).*\1", each) else [each])
        ]
        if received != [meant]:
            raise WrongError(f"ssh joins the words, and the other shell runs {received}")
    if sent:
        _judge(" ".join(sent))
    if "sudo" in " ".join(sent).split() and not {"-t", "-tt"} & set(words) and " -n" not in " ".join(sent):
        raise WrongError("sudo asks for a password, and ssh gives it no terminal without -t")


def _sudo(words: Sequence[str]) -> None:
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in {"-u", "-g"}:
            rest.pop(0)
    if rest and rest[0].rpartition("/")[2] in {"sh", "bash"} and rest[1:2] == ["-c"]:
        _judge(rest[2])
    elif rest and rest[0] not in OF_ROOT and rest[0] != "systemctl":
        _judge_words(rest)


def _of_root(words: Sequence[str]) -> None:
    if len(words) > 1 and words[1] not in {"login", "logout"}:
        raise WrongError(f"{words[0]} on a Spark needs sudo")


def _systemctl(words: Sequence[str]) -> None:
    if CHANGES & set(words):
        raise WrongError("systemctl needs sudo to change a unit")


JUDGES: Mapping[str, Callable[[Sequence[str]], None]] = {
    "ansible-playbook": _playbook,
    "vllm-spark": _vllm_spark,
    "ssh": _ssh,
    "sudo": _sudo,
    "systemctl": _systemctl,
    **dict.fromkeys(OF_ROOT, _of_root),
}


def wrong_text(text: str) -> Iterator[str]:
    """Yield what is wrong with the commands of a sentence: each stands in backticks and runs as it is printed."""
    for command in BACKTICKS.findall(text):
        if BEGINS.match(command) and (fault := wrong(command)):
            yield f"`{command}`: {fault}"
    bare = BACKTICKS.sub("…", text)
    if match := IN_TEXT.search(bare):
        yield f"{match[0]!r} is a command among the words of a sentence; expected: Fix(command, remark), or backticks"
