"""The command line of the toolkit: the verbs, and the commands that are no playbook."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from vllm_spark.cli import commands, verbs
from vllm_spark.cli.commands import Command, CommandParser
from vllm_spark.core import removed, run_command, text
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.core.run_command import ThisRun

BENCH = "bench"
# README has the same rule.
RULE = """\
Every verb is a playbook and a command, and both are the same: vllm-spark deploy -K
is ansible-playbook deploy.yml -K, from any folder."""
# Group of --help -> its title, in the order of --help.
GROUPS = {
    "begin": "begin",
    "look": "look, and change nothing",
    "change": "change what the Sparks serve",
    "clients": "let clients in",
    "measure": "measure",
    "repair": "repair",
    "recipes": "recipes, without any Spark",
}
# The commands that are no playbook, and those that do more than start one.
COMMANDS = {
    "init": Command("cli.init.command", "find the Sparks, and write the inventory", "begin"),
    "contact": Command("cli.contact.command", "first contact by password: host keys, public key, proof", "begin"),
    "completion": Command("cli.completion", "print the completion script of bash, zsh or fish", "begin"),
    "logs": Command("cli.logs", "print the log of a deployment's engine, or follow it", "look"),
    "lend": Command("cli.lend", "lend memory of a Spark to another program until a time", "change"),
    "key": Command("cli.key", "add, revoke or list the keys of persons, without a restart", "clients"),
    "trust": Command("cli.trust", "write the certificate that clients of the edge trust", "clients"),
    BENCH: Command("cli.bench.command", "measure any server; report, compare and judge runs", "measure", "URL"),
    "report": Command("cli.report", "print a report of a verification", "look"),
    "doctor": Command("doctor.command", "name the root cause in logs of engine, Ray, NCCL, kernel, Docker", "repair"),
    "runbook": Command("cli.runbook", "find and print the page of a message or a symptom", "repair"),
    "recipes": Command("cli.recipes", "list the recipes: size, memory, speed, engine, pinned or not", "recipes"),
    "plan": Command("cli.plan", "memory, download and speed of a recipe: go or no-go", "recipes", "RECIPE"),
    "render": Command("cli.render", "print the launch script of a recipe", "recipes"),
    "recipe": Command("cli.recipe.command", "write a recipe of any model, import or export one", "recipes"),
    "check": Command("cli.check", "check recipe files, every fault at once", "recipes"),
}

RECIPE_REFUSED = register("recipe-refused", runbook="recipe-refused")
NO_ROOM = register("no-room", runbook="wrong-command")
UNKNOWN_COMMAND = register("unknown-command", runbook="wrong-command")
UNKNOWN_OPTION = register("unknown-option", runbook="wrong-command")
STRAY_WORD = register("stray-word", runbook="wrong-command")
USAGE = 2  # exit status for wrong arguments, as argparse has it


class ShowVersion(argparse.Action):
    """Print the version of the toolkit and end. Only this option pays for the question to git."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from vllm_spark.core.version import version  # noqa: PLC0415  importlib.metadata takes a fifth of --help

        print(f"{parser.prog} {version()}")
        parser.exit()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command. Raises SystemExit(2) for wrong ones."""
    known = {**verbs.found(), **COMMANDS}
    for words in (argv[:1], argv[:2]):
        if gone := removed.COMMANDS.get(" ".join(words)):
            _refuse(gone)
    if argv and not argv[0].startswith("-") and argv[0] not in known:
        _refuse(_unknown(argv, known))
    if not argv:
        parser().print_help(sys.stderr)
        raise SystemExit(USAGE)
    # A parser for each command would take a quarter of --help.
    of_command = parser({name: known[name] for name in argv[:1] if name in known})
    args = of_command.parse_args(COMMANDS[BENCH].module().with_url(argv) if argv[0] == BENCH else argv)
    if rest := getattr(args, "rest", None):
        if not rest[0].startswith("-"):
            _refuse(_stray(argv, rest[0]))
        if refusal := _misspelt(argv, args):
            _refuse(refusal)
    return args


def parser(typed: Mapping[str, Command] = MappingProxyType({})) -> CommandParser:
    """Return the parser, with its sub-commands."""
    of_folder = verbs.found()
    made = CommandParser(
        prog="vllm-spark",
        usage="vllm-spark [--version] COMMAND [OPTIONS]",
        description=RULE,
        epilog=overview(of_folder),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    made.add_argument("-h", "--help", action="help", help="show this; vllm-spark COMMAND --help: its options")
    made.add_argument("--version", action=ShowVersion, nargs=0, help="show the version of the toolkit and its commit")
    how = {"dest": "command", "metavar": "COMMAND", "required": True, "help": argparse.SUPPRESS, "prog": made.prog}
    commands.add(made, typed, of_folder, **how)
    return made


def overview(of_folder: Mapping[str, Command]) -> str:
    """Return a line for each verb and command, by group."""
    rows = [(name, command) for name, command in of_folder.items() if name not in COMMANDS or COMMANDS[name].words]
    rows += [(f"{name} {command.words}".strip(), command) for name, command in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    lines = []
    for group, title in GROUPS.items():
        lines += [f"\n{title}:", *(f"  {name:{width}}  {each.help}" for name, each in rows if each.group == group)]
    return "\n".join(lines)


def _refuse(refusal: Refusal) -> NoReturn:
    print(refusal, file=sys.stderr)
    raise SystemExit(USAGE)


def _stray(argv: Sequence[str], word: str) -> Refusal:
    """Return the refusal of a word that is no option of a verb: to ansible-playbook it is a second playbook."""
    import shlex  # noqa: PLC0415  as in _unknown

    place = len(argv) - 1 - argv[::-1].index(word)
    return STRAY_WORD(
        what=f"{argv[0]} has the word {word!r}",
        expected="options alone",
        fix=Fix(
            shlex.join(["vllm-spark", *argv[:place], *argv[place + 1 :]]),
            "-l HOSTS selects Sparks, and -e NAME=VALUE sets a variable.",
        ),
    )


def _misspelt(argv: Sequence[str], args: argparse.Namespace) -> Refusal | None:
    """Return the refusal of the first option that neither the command nor the program that it becomes has. That one's
    own message has a hundred lines."""
    import shlex  # noqa: PLC0415  as in _unknown

    from vllm_spark.cli import playbook  # noqa: PLC0415
    from vllm_spark.core import near_names  # noqa: PLC0415

    known = playbook.options_of(args.program)
    for word in args.rest:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not known or not word.startswith("-") or any(each.startswith(option) for each in known):
            continue
        close = near_names.close_names(option, [*args.own, *known])
        place = argv.index(word)
        meant = [*argv[:place], word.replace(option, close[0], 1), *argv[place + 1 :]] if close else [argv[0], "--help"]
        return UNKNOWN_OPTION(
            what=f"{argv[0]} has the option {option!r}",
            expected=f"one of vllm-spark {argv[0]} --help or {args.program} --help",
            fix=Fix(shlex.join(["vllm-spark", *meant])),
        )
    return None


def _unknown(argv: Sequence[str], known: Iterable[str]) -> Refusal:
    import shlex  # noqa: PLC0415  both take a tenth of --help

    from vllm_spark.core import near_names  # noqa: PLC0415

    close = near_names.close_names(argv[0], known)
    other = f"Others begin alike: {', '.join(close[1:])}." if close[1:] else ""
    return UNKNOWN_COMMAND(
        what=f"there is no command {argv[0]!r}",
        expected="one of vllm-spark --help",
        fix=Fix(shlex.join(["vllm-spark", *([close[0], *argv[1:]] if close else ["--help"])]), other),
    )


def usable_streams() -> None:
    """Replace standard streams that the caller has closed, and let no character fail that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  until the program ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command. Returns its exit status: 1 for a refusal. Raises SystemExit(2) for wrong arguments."""
    usable_streams()
    with run_command.within(ThisRun(by_command=True)):
        args = parse(sys.argv[1:] if argv is None else argv)
        from vllm_spark.cli import playbook  # noqa: PLC0415  --help starts none

        run_command.begin(playbook.this_run(args))
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except RefusedError as error:
        refusals = error.refusals
    except KeyboardInterrupt:
        from vllm_spark.lifecycle.interruption import EXIT_STATUS  # noqa: PLC0415  --help needs no verb

        return EXIT_STATUS
    except BrokenPipeError:
        # `| head` has read enough. The rest of the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, json.JSONDecodeError) as error:
        refusals = (RECIPE_REFUSED(what=str(error), expected="a readable file", fix="name another file."),)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            refusals = (NO_ROOM(what=str(error), expected="room for what it writes", fix="write it to another disk."),)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # A foreign recipe or log may have put a code for the terminal into them.
    print(text.printable("\n".join(map(str, refusals))), file=sys.stderr)
    if getattr(args, "json", False):
        _print_refused(args.command, refusals)
    return 1


def _print_refused(command: str, refusals: Sequence[Refusal]) -> None:
    """Print the document of a command that was refused, if it has one."""
    from vllm_spark.core import json_output  # noqa: PLC0415  importlib.metadata takes a fifth of --help

    if command in json_output.DOCUMENTS:
        print(json_output.text(json_output.refused(command, refusals)))


if __name__ == "__main__":
    sys.exit(main())
