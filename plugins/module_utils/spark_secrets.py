"""Find and mask the secrets in texts. Pure, from the standard library alone.

A value counts as secret if a file of secrets contains it, if it is beside a name such as VLLM_API_KEY, or if it looks
like a token. A known value is masked by its content, in the forms in which logs show values. Short values are masked
only beside their names: otherwise a secret "1" would mask nearly every line.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secret_names import FORMS, NAME_END, is_secret

# (name, value) of a secret.
Pair = tuple[str, str]

MASK = "<masked>"

EVERYWHERE = 8  # characters of a value that is searched inside words, too
WHOLE_WORDS = 4  # characters of a value that is searched as a whole word; a shorter one only beside its name
DIGITS = 6  # the same for a number: ports, process ids and sizes have fewer
# Beside a name these values mean that the secret is not set. Elsewhere they are ordinary words.
PLAIN = frozenset({"none", "null", "true", "false", "empty", "auto", "yes", "no", "unset", "token", "default"})
MAX_LEARNED = 200

# The end of a secret's name before a possible value. The start of the name is searched backwards.
_NAME_END = re.compile(rf"{NAME_END}(?=\\*[\"']?,?\s*[=:\s\"'\\])")
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_-]*$")
_NAME_LENGTH = 64
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# The value after the name: a member of JSON or of Python, an assignment, and for options also the next word.
_VALUE = re.compile(
    r"""\\*["']\s*:\s*\[?\s*(?P<q1>\\*["'])(?P<member>[^\n]{0,4096}?)(?P=q1)
    |=\[?(?P<q2>\\*["'])(?P<quoted>[^\n]{0,4096}?)(?P=q2)
    |=(?P<bare>[^\s"'\\]+)""",
    re.VERBOSE,
)
_WORD = re.compile(r"""(?:\\*["'],)?\s+(?:\\*["'])?(?P<word>[^\s"'\\-][^\s"'\\]*)""")
_ARGUMENT = re.compile(r"[^,;)\]}&]*")
_YAML_LINE = re.compile(r"^[ \t-]{0,40}([\w-]{1,64}):[ \t]+([^\s\"'][^\n]*)$", re.MULTILINE)


def env_pairs(text: str) -> list[Pair]:
    """Return the pairs of an env file, as `docker run --env-file` reads it."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    parts = [line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#")]
    return [(name, value) for name, _, value in parts]


def env_names(text: str) -> str:
    """Return an env file without values: the names that are set, and which of them are empty."""
    pairs = env_pairs(text)
    others = sum(1 for line in text.split("\n") if line.strip()) - len(pairs)
    comment = [f"# {others} other lines, not shown"] if others else []
    return "".join(f"{line}\n" for line in [*(f"{name}={MASK if value else ''}" for name, value in pairs), *comment])


def in_document(document: Any) -> list[Pair]:
    """Return the secrets of a JSON document: members, NAME=value in lists (an Env), options in lists (an argv)."""
    pairs: list[Pair] = []
    for name, value in _members(document):
        values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if _names_secret(name):
            pairs += [(name, text) for text in values if isinstance(text, str)]
    for argv in _lists(document):
        pairs += in_argv(argv)
    return pairs


def in_argv(argv: Sequence[str]) -> list[Pair]:
    """Return the secrets of an argv or an Env."""
    pairs: list[Pair] = []
    for argument, following in pairwise([*argv, ""]):
        name, equals, value = argument.partition("=")
        if equals and is_secret(name, value):
            pairs.append((name, value))
        elif argument.startswith("--") and is_secret(argument, following) and not following.startswith("--"):
            pairs.append((argument, following))
    return pairs


def in_script(text: str) -> list[Pair]:
    """Return the secrets in the arguments of a shell script."""
    try:
        return in_argv(shlex.split(text, comments=True))
    except ValueError:
        return []  # a quote is not closed: `learn` still finds the values beside names


class Secrets:
    """Known secrets, and a function that masks them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by value
        self._learned: set[str] = set()

    def add(self, pairs: Iterable[Pair]) -> None:
        """Add pairs that are certainly secret."""
        for name, value in pairs:
            for form in {value, value.strip(), value.strip().strip("\"'")} - {""}:
                self._names.setdefault(form, name)

    def learn(self, text: str) -> None:
        """Add the values beside a secret's name and the values in the form of a secret. Short values are masked only
        at these positions."""
        values = [text[start:end] for start, end in _beside_names(text)]
        values += [match[1] for pattern in FORMS for match in pattern.finditer(text)]
        long = [value for value in values if len(value) >= EVERYWHERE and value[0] not in "/$<{"]
        self._learned.update(long[: MAX_LEARNED - len(self._learned)])

    def weak(self) -> list[str]:
        """Return the names of secrets whose values are too short or too common to be masked by their content."""
        return sorted({name for value, name in self._names.items() if not _is_searchable(value)})

    def masker(self) -> Callable[[str], str]:
        """Return a function from a text to the text without secrets."""
        values = {value for value in self._names if _is_searchable(value)}
        known_forms = {form for value in values for form in _forms_of(value)}
        forms = sorted(known_forms | self._learned, key=len, reverse=True)
        known = re.compile("|".join(map(_pattern, forms))) if forms else None

        def masked(text: str) -> str:
            text = known.sub(MASK, text) if known else text
            text = _YAML_LINE.sub(_yaml_line, _without(text, _beside_names(text)))
            for pattern in FORMS:
                text = pattern.sub(_first_group, text)
            return text

        return masked


def _is_searchable(value: str) -> bool:
    if value.lower() in PLAIN:
        return False
    return len(value) >= (DIGITS if value.isdigit() else WHOLE_WORDS)


def _pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= EVERYWHERE else rf"(?<![A-Za-z0-9_]){escaped}(?![A-Za-z0-9_])"


def _forms_of(value: str) -> set[str]:
    """Return the forms of a value in texts: plain, in JSON (Python's and Go's), as Python's repr, in a URL, in a
    shell's quotes, and within base64 as in HTTP's basic authentication."""
    forms = {value, repr(value)[1:-1], value.replace("'", "'\"'\"'"), value.replace("'", "'\\''")}
    forms |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    forms |= {form.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026") for form in set(forms)}
    forms |= {json.dumps(form)[1:-1] for form in set(forms)}  # JSON within JSON
    in_url = {quote(value, safe=""), quote(value), quote_plus(value)}
    forms |= in_url | {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in in_url}
    if len(value) >= EVERYWHERE:
        for offset in range(3):
            raw = bytes(offset) + value.encode()
            # The characters that encode only bits of this value.
            encoded = base64.b64encode(raw).decode()[-(-offset * 8 // 6) : len(raw) * 8 // 6]
            forms |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return forms


def _members(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of all maps of a document."""
    for part in _parts(document):
        if isinstance(part, dict):
            yield from part.items()


def _lists(document: Any) -> list[list[str]]:
    """Return all lists that contain only texts."""
    return [part for part in _parts(document) if isinstance(part, list) and all(isinstance(text, str) for text in part)]


def _parts(document: Any) -> Iterator[Any]:
    waiting = [document]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part


def _names_secret(name: str, value: str | None = None) -> bool:
    """Return True if the value beside this name is a secret. The name is that of a variable, an option, or a
    program's field."""
    return is_secret(name, value, field=not name.startswith("--") and name != name.upper())


def _beside_names(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of every value beside the name of a secret, in order."""
    for match in _NAME_END.finditer(_lower(text)):
        before = _NAME_BEFORE.search(text[max(0, match.start() - _NAME_LENGTH) : match.start()])
        name = (before[0] if before else "") + text[match.start() : match.end()]
        option = name.startswith("--")
        value = _VALUE.match(text, match.end()) or (_WORD.match(text, match.end()) if option else None)
        if not value or not value.lastgroup:
            continue
        start, end = value.span(value.lastgroup)
        if value.lastgroup == "bare" and not option and name != name.upper():
            # An argument of a call, as in Namespace(api_key=x, port=1).
            argument = _ARGUMENT.match(text, start, end)
            end = argument.end() if argument else end
        if start < end and text[start:end].lower() not in PLAIN and _names_secret(name, text[start:end]):
            yield start, end


def _lower(text: str) -> str:
    """Return the text in lower case with the same length. A few letters of Unicode change their length."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in spans:
        if start >= done:
            parts += [text[done:start], MASK]
            done = end
    return "".join([*parts, text[done:]])


def _yaml_line(match: re.Match[str]) -> str:
    whole: str = match[0]
    if not is_secret(match[1], field=True) or match[2].lower() in PLAIN:
        return whole
    return whole[: match.start(2) - match.start()] + MASK


def _first_group(match: re.Match[str]) -> str:
    whole: str = match[0]
    return whole[: match.start(1) - match.start()] + MASK + whole[match.end(1) - match.start() :]
