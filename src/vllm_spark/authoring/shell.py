"""The commands of a shell script, with the values that the script itself gives its variables. Nothing is run. Pure.

A value that only a run tells (an argument, the output of a program, a branch) stays unknown: UNKNOWN and what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

# Marks an unknown value inside a word. A file that has the character is refused.
UNKNOWN = "\ue000"
DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1(?P<rest>[^\n]*)\n.*?^\t*\2$", re.DOTALL | re.MULTILINE)
# Braces inside of braces, twice: a default within a default, or JSON.
EXPANSION = re.compile(r"(?<!\\)\$(?:\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}|(\w+|[@*#?!$]))")
TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|\\\n|(?<!\S)\#[^\n]*) | (?P<to>\d*(?:&>|[<>])[<>&]*[ \t]*) | (?P<end>[\n;|&()]+)
    | (?P<piece>'[^']*'? | "(?:[^"\\]|\\.)*"? | \\. | {EXPANSION.pattern} | \$ | \d+
               | (?:(?!\d+[<>])[^\s'"\\$;|&()<>])+)""",
    re.VERBOSE | re.DOTALL,
)
ASSIGNED = re.compile(r"[ \t]*([A-Za-z_]\w*)(\+?)=(\()?")
INSIDE = re.compile(r"(\w+|[@*#?])(?:\[[@*]\])?(?::?([-=+])(.*))?", re.DOTALL)
KEYWORD = re.compile(r"[ \t]*(if|else|elif|fi|case|esac|then|do|[{}!]|while|until|for|select|done)(?=[\s;]|$)")
ROW = re.compile(r"[\s;]*(?!esac\b)\(?([^()\n]*)\)")

Value = str | list[str]
# Whether the commands of a branch run: not, certainly, only a run tells, or no more after one that did.
Branch = Literal["no", "yes", "maybe", "over"]


@dataclass(slots=True)
class Shell:
    """A script that is read. `exported` are the variables that a program inherits."""

    text: str
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    at: int = 0

    def __post_init__(self) -> None:
        self.text = _without_programs(DOCUMENT.sub(lambda match: f"<<x{match['rest']}", self.text))

    def commands(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield the words of each command in the order, with the variables before it; set the variables on the way.

        A branch that is known not to run is left out.
        """
        # Each open `if` and `case`: whether the commands here run, and its subject.
        branches: list[tuple[Branch, str]] = []
        last: bool | None = True
        before = ""
        while self.at < len(self.text):
            if branches and before in ("case", ";;") and (row := ROW.match(self.text, self.at)):
                self.at, (branch, subject) = row.end(), branches[-1]
                branches[-1] = _next(branch, _matches(subject, row[1])), subject
            keyword, assigned, words = self._statement()
            if keyword in ("if", "case"):
                branches.append(("no", "".join(words[:1])))
            if keyword in ("fi", "esac") and branches:
                branches.pop()
            elif keyword in ("if", "elif", "else") and branches:
                branches[-1] = _next(branches[-1][0], keyword == "else" or _test(words)), ""
            here = {branch for branch, _ in branches}
            sure: bool | None = {"&&": last, "||": None if last is None else not last}.get(before, True)
            before = keyword if keyword == "case" else self._end()
            if keyword in ("if", "elif", "case") or here & {"no", "over"} or sure is False:
                continue
            last = _test(words) if words else last
            if words[:1] in (["export"], ["declare"], ["readonly"], ["local"]):
                pairs = [word.partition("=") for word in words[1:]]
                self.exported |= {name for name, _, _ in pairs}
                assigned, words = {**assigned, **{name: value for name, equals, value in pairs if equals}}, []
            if words:
                yield words, {name: one(value) for name, value in assigned.items()}
            else:
                self._assign(assigned, sure=bool(sure) and "maybe" not in here)

    def filled(self, text: str, *, raw: bool = False) -> list[str]:
        """Return a text between double quotes with its values; several words for an array. `raw`: without escapes."""
        words, at = [""], 0
        for match in [*EXPANSION.finditer(text), None]:
            literal = text[at : match.start() if match else None]
            words[-1] += literal if raw else re.sub(r'\\([\\$"`])', r"\1", literal)
            if match:
                value, at = self._value(match), match.end()
                words[-1:] = (
                    [words[-1] + "".join(value[:1]), *value[1:]] if isinstance(value, list) else [words[-1] + value]
                )
        return words

    def _assign(self, assigned: Mapping[str, Value], *, sure: bool) -> None:
        for name, given in assigned.items():
            value, known = given, self.variables.get(name)
            if not sure and value != known:
                # An array keeps what it has in any case.
                kept = known if isinstance(known, list) else []
                said = f"{UNKNOWN}{name} (on a condition of the script: "
                earlier = f"{known[:-1]} or " if isinstance(known, str) and known.startswith(said) else said
                value = [*kept, f"{said}{one(given[len(kept) :])})"] if kept else f"{earlier}{one(given)})"
            self.variables[name] = value

    def _statement(self) -> tuple[str, dict[str, Value], list[str]]:
        """Return the keyword of a statement, its assignments, and its words up to a line break or an operator."""
        keyword = ""
        assigned: dict[str, Value] = {}
        while match := KEYWORD.match(self.text, self.at):
            keyword, self.at = match[1], match.end()
        while match := ASSIGNED.match(self.text, self.at):
            self.at = match.end()
            value = self._words(array=True) if match[3] else one(self._words(first=True))
            known = self.variables.get(match[1], [] if match[3] else "")
            assigned[match[1]] = value if not match[2] else [*known, *value] if match[3] else one(known) + one(value)
        return keyword, assigned, self._words()

    def _words(self, *, array: bool = False, first: bool = False) -> list[str]:
        """Return the words up to the end of a statement or an array, or the first one, without redirections."""
        words: list[str] = []
        word: list[str] = []
        skip = False
        while match := TOKEN.match(self.text, self.at):
            if (match["end"] and not (array and ")" not in match["end"])) or (first and match["blank"]):
                break
            self.at = match.end()
            found = self._piece(match["piece"]) if match["piece"] else None
            if found is None:
                words, word, skip = (words if skip else words + word), [], bool(match["to"])
            elif found:
                word[-1:] = ["".join(word[-1:]) + found[0], *found[1:]]
        self.at += array
        return words if skip else words + word

    def _piece(self, piece: str) -> list[str]:
        """Return the words that a piece of a word becomes. Without quotes a value is split. Raises ValueError."""
        if piece[0] in "'\"":
            if len(piece) == 1 or piece[-1] != piece[0]:
                raise ValueError(f"no closing quotation for {piece[:40]}")
            return [piece.strip("'")] if piece[0] == "'" else self.filled(piece[1:].removesuffix('"'))
        match = EXPANSION.fullmatch(piece)
        value = self._value(match, quoted=False) if match else piece.removeprefix("\\")
        return value if isinstance(value, list) else value.split() if match and UNKNOWN not in value else [value]

    def _value(self, match: re.Match[str], *, quoted: bool = True) -> Value:
        parts = INSIDE.fullmatch(match[1] if match[1] is not None else match[2])
        if match[0] == "$$" or parts is None:
            return "$" if match[0] == "$$" else UNKNOWN + match[0].strip("${}")
        name, does, word = parts.groups()
        known = self.variables.get(name)
        if does == "+" or (does and not known):
            taken = bool(known) == (does == "+")
            return (self.filled(word)[0] if quoted else Shell(word, self.variables)._words()) if taken else ""
        return UNKNOWN + name if known is None else known

    def _end(self) -> str:
        match = re.compile(r"[ \t]*([\n;|&()]*)\s*").match(self.text, self.at)
        self.at = match.end() if match and match.end() > self.at else self.at + 1
        return match[1].strip() if match else ""


def _without_programs(text: str) -> str:
    """Return a script with an unknown value for each $(…), $((…)) and `…`."""
    text = re.sub(r"(?<!\\)`[^`]*`", f"{UNKNOWN}…", text)
    while (start := text.find("$(")) >= 0:
        depth, end = 1, start + 2
        while depth and end < len(text):
            depth, end = depth + (text[end] == "(") - (text[end] == ")"), end + 1
        text = f"{text[:start]}{UNKNOWN}…{text[end:]}"
    return text


def _next(branch: Branch, condition: bool | None) -> Branch:
    """Return the branch behind `elif`, `else` or a row of `case`. After one that runs there is none."""
    if branch != "no":
        return "over" if branch == "yes" else branch
    return "maybe" if condition is None else "yes" if condition else "no"


def _matches(subject: str, patterns: str) -> bool | None:
    """Return whether a row of `case` is for its subject."""
    rows = [pattern.strip(" '\"") for pattern in patterns.split("|")]
    return None if UNKNOWN in subject else any(fnmatchcase(subject, row) for row in rows)


def _test(words: list[str]) -> bool | None:
    """Return what `[ … ]` says; None for everything that only a run tells."""
    if not words or words[0] not in ("[", "[[", "test") or UNKNOWN in "".join(words):
        return None
    match [word for word in words[1:] if word not in ("]", "]]")]:
        case ["-n" | "-z" as asks, word]:
            return bool(word) == (asks == "-n")
        case [left, "=" | "==" | "-eq" | "!=" | "-ne" as sign, right]:
            return (left == right) == (sign not in ("!=", "-ne"))
        case [left, "-gt", right] if left.isdigit() and right.isdigit():
            return int(left) > int(right)
    return None


def one(value: Value) -> str:
    """Return a value as one word."""
    return value if isinstance(value, str) else " ".join(value)
