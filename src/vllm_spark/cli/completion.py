"""`vllm-spark completion`: scripts that let a shell complete the command line.

A script asks this module what may follow, so that verbs, options and recipes are always those of this toolkit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from vllm_spark.cli import main, verbs
from vllm_spark.cli.commands import Command, CommandParser
from vllm_spark.core import paths
from vllm_spark.recipe import folders, loader

WORDS = "words"
# The word for a value in --help -> the names of an inventory that it may be.
KINDS = {"DEPLOYMENT": "deployments", "HOSTS": "hosts"}
# Where nothing of the toolkit may follow, each shell offers files.
SCRIPTS = {
    "bash": """\
_vllm_spark() {
    local IFS=$'\\n'
    COMPREPLY=($(vllm-spark completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _vllm_spark vllm-spark
""",
    "zsh": """\
#compdef vllm-spark
_vllm_spark() {
    local -a found
    found=(${(f)"$(vllm-spark completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _vllm_spark vllm-spark
""",
    "fish": """\
function __vllm_spark
    set -l found (vllm-spark completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if test -n "$found"; printf '%s\\n' $found; else; __fish_complete_path (commandline -ct); end
end
complete -c vllm-spark -f -a '(__vllm_spark)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=[*SCRIPTS, WORDS], help=f"{WORDS}: print what may follow what was typed")
    parser.add_argument("typed", nargs=argparse.REMAINDER, help=f"of {WORDS}: the last one is incomplete")


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell, or the words that may follow."""
    if args.shell == WORDS:
        print("\n".join(following(args.typed or [""])))
    else:
        print(SCRIPTS[args.shell], end="")
    return 0


def following(typed: Sequence[str]) -> list[str]:
    """Return what may stand in the place of the last word, which it begins with. Empty for the value of an option."""
    *before, last = typed
    known = {**verbs.found(), **main.COMMANDS}
    if not before:
        words = [*known, "--help", "--version"]
    elif before[0] in known:
        words = list(_of_command(_parser(before, known), before, has_dash=last.startswith("-")))
    else:
        words = []
    return sorted({word for word in words if word.startswith(last)})


def _parser(before: Sequence[str], known: dict[str, Command]) -> CommandParser:
    """Return the parser of the command that was typed, or that of its sub-command."""
    found = main.parser({before[0]: known[before[0]]})
    for word in before:
        found = _groups(found).get(word, found)
        found.fill()
    return found


def _groups(parser: CommandParser) -> dict[str, CommandParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


def _of_command(parser: CommandParser, before: Sequence[str], *, has_dash: bool) -> Iterator[str]:
    """Yield sub-commands, choices and names; options if one is begun or the command has nothing else."""
    parsers = [parser, *([parser.of_verb] if parser.of_verb else [])]
    for each in parsers:
        each.fill()
    actions = [action for each in parsers for action in each._actions if action.help != argparse.SUPPRESS]
    value = next((action for action in actions if before[-1] in action.option_strings and action.nargs != 0), None)
    if value:
        yield from _values(value, before)
        return
    words = list(_groups(parser))
    for action in actions:
        if not action.option_strings:
            words += _values(action, before)
    options = [option for action in actions for option in action.option_strings]
    yield from options if has_dash or not words else words


def _values(action: argparse.Action, before: Sequence[str]) -> list[str]:
    """Return what an argument may be: one of its choices, a recipe, or a deployment or host of the inventory."""
    if action.dest == "recipe":
        return list(loader.names(folders.searched()))
    kind = KINDS.get(str(action.metavar))
    if not kind:
        return [str(choice) for choice in action.choices or ()]
    from vllm_spark.inventory import source  # noqa: PLC0415  a reader of YAML, which takes a tenth of a second

    typed = [path for option, path in pairwise(before) if option in ("-i", "--inventory")]
    return sorted(source.named(Path(typed[-1] if typed else paths.INVENTORY))[kind])
