"""Sub-commands whose modules are imported when they are typed: all modules of the command line take half a second."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its module below `vllm_spark`, what --help says of it, and its group there.

    The module has add_arguments(parser), which adds what the sub-command accepts, and run(args), which returns its exit
    status. That of a group has sub-commands in place of run. If it sets a default of `rest`, that gets what its parser
    does not know, for the `program` that it becomes.
    """

    path: str
    help: str
    group: str = ""
    words: str = ""  # what the command begins with, if its name alone is a verb

    def module(self) -> ModuleType:
        """Import and return the module."""
        return importlib.import_module(f"vllm_spark.{self.path}")


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. That of a sub-command gets its arguments when it is the one that was typed.

    A verb of the same name has a parser of its own, `of_verb`.
    """

    def __init__(self, *args: Any, command: Command | None = None, verb: Command | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._command = command
        self.of_verb = CommandParser(prog=self.prog, description=verb.help, command=verb) if verb else None

    def fill(self) -> None:
        """Add the arguments of the command, once."""
        command, self._command = self._command, None
        if command:
            module = command.module()
            if hasattr(module, "run"):
                self.set_defaults(run=module.run)
            module.add_arguments(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the namespace and the arguments that are left over. argparse calls it for the typed sub-command."""
        is_sub_command = bool(self._command)
        self.fill()
        if self.of_verb and self._begins_verb(args):
            return self.of_verb.parse_known_args(args, namespace)
        namespace, rest = super().parse_known_args(args, namespace)
        if is_sub_command and "rest" in namespace:
            namespace.rest, namespace.own, rest = rest, [*self._option_string_actions], []
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Print a wrong argument in one line, as a refusal is printed, and end."""
        advice = "" if " Fix: " in message else f" — expected: what its help shows. Fix: {self.prog} --help"
        self.exit(2, f"{self.prog}: {message}{advice}\n")

    def format_help(self) -> str:
        """Return the help, followed by that of the verb."""
        if not self.of_verb:
            return super().format_help()
        self.of_verb.fill()
        return (
            f"{super().format_help()}\nwithout a word, for the Sparks of the inventory:\n{self.of_verb.format_help()}"
        )

    def _begins_verb(self, args: Sequence[str]) -> bool:
        """Return True unless the first argument is a word or an option of the command: a verb has only options.

        Both have --json.
        """
        first = next((word.partition("=")[0] for word in args if word != "--json"), "")
        return not first or (first.startswith("-") and first not in self._option_string_actions)


def add(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, Command],
    verbs: Mapping[str, Command] | None = None,
    **options: Any,
) -> None:
    """Add sub-commands to a CommandParser: name -> command, in the order of --help. `options` are add_subparsers'.

    A verb that a command has the name of is only reached through the command, if that has `words`.
    """
    group = parser.add_subparsers(**{"metavar": f"{{{','.join(commands)}}}", **options})
    for name, command in commands.items():
        verb = (verbs or {}).get(name) if command.words else None
        group.add_parser(name, help=command.help, description=command.help, command=command, verb=verb)
