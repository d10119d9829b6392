"""Sub-commands whose modules are imported when they are typed: all modules of the command line take half a second."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its module below `vllm_spark`, and what --help of the command above it says of it.

    The module has add_arguments(parser), which adds what the sub-command accepts, and run(args), which returns its exit
    status.
    """

    path: str
    help: str

    def module(self) -> ModuleType:
        """Import and return the module."""
        return importlib.import_module(f"vllm_spark.{self.path}")


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. That of a sub-command gets its arguments when it is the one that was typed."""

    def __init__(self, *args: Any, command: Command | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the namespace and the arguments that are left over. argparse calls it for the typed sub-command."""
        if self._command:
            module = self._command.module()
            self._command = None
            self.set_defaults(run=module.run)
            module.add_arguments(self)
        return super().parse_known_args(args, namespace)


def add(parser: argparse.ArgumentParser, commands: Mapping[str, Command], **options: Any) -> None:
    """Add sub-commands to a CommandParser: name -> command, in the order of --help. `options` are add_subparsers'."""
    group = parser.add_subparsers(**options)
    for name, command in commands.items():
        group.add_parser(name, help=command.help, command=command)
