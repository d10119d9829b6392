"""The one rule of what is a secret by the name beside it, or by its own form. Pure.

A recipe, overrides, a launch and the texts of `collect` are judged by it. plugins/module_utils/spark_secret_names.py is
a link to this file. Standard library alone.
"""

from __future__ import annotations

import re

# A name with such a word says what is done with a secret: CORS_ALLOW_CREDENTIALS, HF_HUB_DISABLE_IMPLICIT_TOKEN.
_DEEDS = re.compile(
    r"(?:^|_)(?:allow|change|disable|enable|force|generate|hide|ignore|length|must|remove"
    r"|require|return|rotate|show|skip|use|verify|with)(?:_|$)"
)
# A secret stays one with such a word behind it: GH_TOKEN_FILE, OIDC_TOKEN_V2, API_KEY_OLD.
_BEHIND = r"\d*(?:_(?:file|value|data|contents?|text|string|json|base64|b64|old|new|v?\d+))*$"
_TELLING = (
    "access|account|admin|api|app|application|auth|bearer|bot|client|encryption|hf|hub|license|login|master|oauth|oidc"
    "|private|refresh|registry|sas|secret|security|service|session|shared|signing|ssh|storage|user"
)
# The end of a name that is a secret's in every text.
_CERTAIN = re.compile(
    rf"(?:passw(?:or)?d|passphrase|passcode|secrets?|credentials?|(?:{_TELLING})_?(?:keys?|token)"
    rf"|(?:^|_)(?:creds?|jwt|dsn|psk|secret_id|conn(?:ection)?_string|webhook_url)){_BEHIND}"
)
# The end of a name that is a secret's if it is that of a variable or option, and not preceded by a word of _HARMLESS.
_LIKELY = re.compile(
    rf"(?:^|(?P<before>[a-z0-9]+)_|user|auth|priv|db)(?:keys?|token|auth|pass|pwd|pat|bearer_token_[a-z]+){_BEHIND}"
)
_HARMLESS = re.compile(
    r"audio|bos|cache|cls|column|dict|draft|each|end|eos|event|extra|field|file|first|foreign|forward"
    r"|group|hash|image|index|kv|label|last|lookup|map|mask|max|message|metadata|metric|min|next|object|pad"
    r"|partition|per|prefix|prompt|pub|public|row|sep|shard|sort|special|start|stop|suffix|think|thinking"
    r"|trust|unique|unk|video"
)
# PWD and OLDPWD are a shell's folders.
_FOLDERS = ("pwd", "oldpwd")
# The letters that may end such a name, in lower case, before a possible value: a quick first look at a text.
NAME_END = (
    r"(?:key|token|passw(?:or)?d|passphrase|passcode|pass|pwd|secret|credential|cred|auth|jwt|dsn|psk|_string|_url)s?"
)

# Secrets by their form; the group is the secret. Each pattern starts with fixed text, which makes the search quick.
FORMS = tuple(
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
                ("glpat-", "[A-Za-z0-9_-]{20,}"),
                ("xox", "[abeprs]-[A-Za-z0-9-]{10,}"),
                ("AKIA", "[0-9A-Z]{16}"),
                ("eyJ", r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
            )
        ),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----((?:(?!-----)[\s\S])+)",
    )
)


def is_secret(name: str, *, field: bool = False) -> bool:
    """Return True if the value of this variable or option is a secret. HF_TOKEN and --api-key are; MAX_TOKENS and
    TOKENIZERS_PARALLELISM are not.

    `field`: the name is one of a program's own text or map, where a key or token is one of many kinds (kv_key,
    eos_token) and only a telling word before it makes it a secret.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower().replace("-", "_").replace(".", "_").strip("_")
    if words in _FOLDERS or _DEEDS.search(words):
        return False
    if _CERTAIN.search(words):
        return True
    likely = None if field else _LIKELY.search(words)
    return bool(likely and not _HARMLESS.fullmatch(likely["before"] or ""))


def has_form(value: str) -> bool:
    """Return True if a text shows a secret by its form: a login in a URL, a bearer, a token of a known kind."""
    return any(pattern.search(value) for pattern in FORMS)
