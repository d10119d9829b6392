"""Secrets in texts: which values are secret, and texts without them. Pure, from the standard library alone.

A value counts as secret because a file of secrets has it, because it stands beside a name such as VLLM_API_KEY, or
because it looks like a token. What is known is masked by its content, in the forms in which logs show values; short
values are not, or a secret "1" would leave nothing to read.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import string
from itertools import pairwise
from urllib.parse import quote, quote_plus

MASK = "<masked>"
# Where a reader cut a line; a secret may have been cut in two there.
CUT = " [vllm-spark: the rest of this line is left out]"

EVERYWHERE = 8  # characters of a value that is looked for inside of words, too
WHOLE_WORDS = 4  # characters of a value that is looked for as a whole word; a shorter one only beside its name
DIGITS = 6  # the same of a number: ports, process ids and sizes have fewer
# Beside a name they say that there is no secret, and elsewhere they are words.
PLAIN = frozenset({"none", "null", "true", "false", "empty", "auto", "yes", "no", "unset", "token", "default"})
LONGEST_UNKNOWN = 256
MOST_LEARNED = 200

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:keys?|apikeys?|token|password|passwd|pass|passphrase|secrets?|credentials?|auth)$", re.IGNORECASE
)
# Names of programs and their logs are looser than those of variables: eos_token and kv_key are no secrets.
_SECRET_FIELD = re.compile(
    r"(?:(?:api|secret|access|private|signing|auth|client)[_-]?keys?|(?:access|auth|refresh|bearer|hf|hub|api|session)"
    r"[_-]?token|password|passwd|passphrase|client[_-]?secret)$",
    re.IGNORECASE,
)
# What a secret's name ends in, in lower case, where a value may follow; its beginning is looked for backwards.
_NAME_END = re.compile(
    r"(?:key|token|password|passwd|passphrase|pass|secret|credential|auth)s?(?=\\*[\"']?,?\s*[=:\s\"'\\])"
)
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_-]*$")
_NAME_LENGTH = 64
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# What follows it: a member of JSON or of Python, an assignment, and of options alone the next word.
_VALUE = re.compile(
    r"""\\*["']\s*:\s*\[?\s*(?P<q1>\\*["'])(?P<member>[^\n]{0,4096}?)(?P=q1)
    |=\[?(?P<q2>\\*["'])(?P<quoted>[^\n]{0,4096}?)(?P=q2)
    |=(?P<bare>[^\s"'\\]+)""",
    re.VERBOSE,
)
_WORD = re.compile(r"""(?:\\*["'],)?\s+(?:\\*["'])?(?P<word>[^\s"'\\-][^\s"'\\]*)""")
_ARGUMENT = re.compile(r"[^,;)\]}&]*")
_YAML_LINE = re.compile(r"^[ \t-]{0,40}([\w-]{1,64}):[ \t]+([^\s\"'][^\n]*)$", re.MULTILINE)

# A secret by its form; the group is what is masked. Each begins with fixed text, which makes the search quick.
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"://[^\s/@:\"']*:([^\s/@\"']+)@",
        r"[?&][\w-]*(?i:key|token|password|secret|signature|sig)=([^&\s\"'#]+)",
        r"uthorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?i:bearer|basic|token)\s+([^\s\"'\\$][^\s\"'\\]*)",
        r"Bearer\s+([A-Za-z0-9._~+/=-]{6,})",
        *(
            rf"({prefix}(?<![A-Za-z0-9_]{prefix}){rest})"
            for prefix, rest in (
                ("hf_", "[A-Za-z0-9]{20,}"),
                ("sk-", "[A-Za-z0-9_-]{16,}"),
                ("nvapi-", "[A-Za-z0-9_-]{20,}"),
                ("gh", "[pousr]_[A-Za-z0-9]{20,}"),
                ("github_pat_", "[A-Za-z0-9_]{20,}"),
                ("AKIA", "[0-9A-Z]{16}"),
                ("eyJ", r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
            )
        ),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----((?:(?!-----)[\s\S])+)",
    )
)


def is_secret_name(name):
    """Is the value of this variable a secret? HF_TOKEN and --api-key are, MAX_TOKENS and TOKENIZERS_PARALLELISM not."""
    return bool(_SECRET_NAME.search(name))


def env_pairs(text):
    """[(name, value)] of an env file, as `docker run --env-file` reads it."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    return [tuple(line.split("=", 1)) for line in lines if "=" in line and not line.lstrip().startswith("#")]


def env_shown(text):
    """An env file without any value: which names are set, and which of them to nothing."""
    pairs = env_pairs(text)
    others = sum(1 for line in text.split("\n") if line.strip()) - len(pairs)
    said = [f"# {others} other lines, not shown"] if others else []
    return "".join(f"{line}\n" for line in [*(f"{name}={MASK if value else ''}" for name, value in pairs), *said])


def in_document(document):
    """[(name, value)] of the secrets of a JSON document: members, NAME=value in lists (an Env), options in lists (an
    argv)."""
    found = []
    for name, value in _members(document):
        words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if _names_secret(name):
            found += [(name, word) for word in words if isinstance(word, str)]
    for words in _lists(document):
        found += in_words(words)
    return found


def in_words(words):
    """[(name, value)] of the secrets of an argv or an Env."""
    found = []
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name):
            found.append((name, value))
        elif word.startswith("--") and is_secret_name(word) and not after.startswith("--"):
            found.append((word, after))
    return found


def in_script(text):
    """[(name, value)] of the secrets that a shell script passes on."""
    try:
        return in_words(shlex.split(text, comments=True))
    except ValueError:
        return []  # quotes that never close: what stands beside a name is found in the text


class Secrets:
    """Known secrets, and texts without them."""

    def __init__(self):
        self._names = {}  # by value
        self._learned = set()

    def add(self, pairs):
        """Take [(name, value)] that are secret for certain."""
        for name, value in pairs:
            for form in {value, value.strip(), value.strip().strip("\"'")} - {""}:
                self._names.setdefault(form, name)

    def learn(self, text):
        """Take what stands beside a secret's name or looks like a secret. Short ones are masked in their place only."""
        values = [text[start:end] for start, end in _beside_names(text)]
        values += [match[1] for pattern in _FORMS for match in pattern.finditer(text)]
        long = [value for value in values if len(value) >= EVERYWHERE and value[0] not in "/$<{"]
        self._learned.update(long[: MOST_LEARNED - len(self._learned)])

    def weak(self):
        """Names of secrets whose values are too short or too plain to be looked for by their content."""
        return sorted({name for value, name in self._names.items() if not _sought(value)})

    def masker(self):
        """A function from a text to the text without secrets."""
        values = {value for value in self._names if _sought(value)}
        known_forms = {form for value in values for form in _forms_of(value)}
        forms = sorted(known_forms | self._learned, key=len, reverse=True)
        known = re.compile("|".join(map(_pattern, forms))) if forms else None
        longest = max([LONGEST_UNKNOWN, *map(len, forms)])

        def masked(text):
            text = known.sub(MASK, text) if known else text
            text = _YAML_LINE.sub(_yaml_line, _without(text, _beside_names(text)))
            for pattern in _FORMS:
                text = pattern.sub(_first_group, text)
            *cut, rest = text.split(CUT)
            return CUT.join([*(part[: max(len(part) - longest, part.rfind("\n") + 1)] for part in cut), rest])

        return masked


def _sought(value):
    if value.lower() in PLAIN:
        return False
    return len(value) >= (DIGITS if value.isdigit() else WHOLE_WORDS)


def _pattern(form):
    escaped = re.escape(form)
    return escaped if len(form) >= EVERYWHERE else rf"(?<![A-Za-z0-9_]){escaped}(?![A-Za-z0-9_])"


def _forms_of(value):
    """A value as texts show it: plain, in JSON (Python's and Go's), as Python's repr, in a URL, in a shell's quotes,
    and within base64, as HTTP's basic authentication has it."""
    forms = {value, repr(value)[1:-1], value.replace("'", "'\"'\"'"), value.replace("'", "'\\''")}
    forms |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    forms |= {form.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026") for form in set(forms)}
    forms |= {json.dumps(form)[1:-1] for form in set(forms)}  # JSON within JSON
    in_url = {quote(value, safe=""), quote(value), quote_plus(value)}
    forms |= in_url | {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in in_url}
    if len(value) >= EVERYWHERE:
        for offset in range(3):
            raw = bytes(offset) + value.encode()
            # The characters that hold bits of this value alone.
            encoded = base64.b64encode(raw).decode()[-(-offset * 8 // 6) : len(raw) * 8 // 6]
            forms |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return forms


def _members(document):
    """(key, value) of all maps of a document."""
    for part in _parts(document):
        if isinstance(part, dict):
            yield from part.items()


def _lists(document):
    """All lists of nothing but texts."""
    return [part for part in _parts(document) if isinstance(part, list) and all(isinstance(word, str) for word in part)]


def _parts(document):
    waiting = [document]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part


def _names_secret(name):
    """Is what stands beside this name a secret? A variable, an option, or a field of a program."""
    if name.startswith("--") or name == name.upper():
        return is_secret_name(name)
    return bool(_SECRET_FIELD.search(name))


def _beside_names(text):
    """(start, end) of every value that stands beside the name of a secret, in order."""
    for match in _NAME_END.finditer(_lower(text)):
        before = _NAME_BEFORE.search(text[max(0, match.start() - _NAME_LENGTH) : match.start()])[0]
        name = before + text[match.start() : match.end()]
        if not _names_secret(name):
            continue
        option = name.startswith("--")
        value = _VALUE.match(text, match.end()) or (_WORD.match(text, match.end()) if option else None)
        if not value:
            continue
        start, end = value.span(value.lastgroup)
        if value.lastgroup == "bare" and not option and name != name.upper():
            end = _ARGUMENT.match(text, start, end).end()  # of a call, as in Namespace(api_key=x, port=1)
        if start < end and text[start:end].lower() not in PLAIN:
            yield start, end


def _lower(text):
    """The text in lower case and of the same length, which a few letters of the world change."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def _without(text, spans):
    parts, done = [], 0
    for start, end in spans:
        if start >= done:
            parts += [text[done:start], MASK]
            done = end
    return "".join([*parts, text[done:]])


def _yaml_line(match):
    if not _SECRET_FIELD.search(match[1]) or match[2].lower() in PLAIN:
        return match[0]
    return match[0][: match.start(2) - match.start()] + MASK


def _first_group(match):
    whole = match[0]
    return whole[: match.start(1) - match.start()] + MASK + whole[match.end(1) - match.start() :]
