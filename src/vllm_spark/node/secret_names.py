"""The one rule of what is a secret by the name beside it, or by its own form. Pure.

A recipe, overrides, a launch and the texts of `collect` are judged by it. plugins/module_utils/spark_secret_names.py is
a link to this file. Standard library alone.
"""

from __future__ import annotations

import re

# A name with such a word says what is done with a secret, and its value is a switch or a number:
# CORS_ALLOW_CREDENTIALS, HF_HUB_DISABLE_IMPLICIT_TOKEN. With another value it is a secret: LOGIN_WITH_TOKEN.
_DEEDS = re.compile(
    r"(?:^|_)(?:allow|always|change|disable|enable|force|generate|hide|ignore|length|must|remove"
    r"|require|return|rotate|show|skip|use|verify|with)(?:_|$)"
)
_SWITCH = re.compile(r"\s*(?:true|false|yes|no|on|off|none|null)?\s*", re.IGNORECASE)
# A secret stays one with such a word behind it: GH_TOKEN_FILE, OIDC_TOKEN_V2, API_KEY_OLD, SECRET_KEY_BASE.
_BEHIND = r"\d*(?:_(?:file|value|data|contents?|text|string|json|base|base64|b64|hash|mapping|old|new|signing|v?\d+))*$"
_TELLING = (
    "access|account|admin|api|app|application|auth|bearer|bot|client|encryption|hf|hub|license|login|master|oauth|oidc"
    "|private|refresh|registry|sas|secret|security|service|session|shared|signing|ssh|storage|user"
)
# The end of a name that is a secret's in every text.
_CERTAIN = re.compile(
    rf"(?:passw(?:or)?ds?|passphrase|passcode|secrets?|credentials?|(?:{_TELLING})_?(?:keys?|token)"
    rf"|(?:^|_)(?:creds?|jwt|dsn|psk|secret_id|conn(?:ection)?_string|webhook(?:_url)?)){_BEHIND}"
)
# The end of a name that is a secret's if it is that of a variable or option, and not preceded by a word of _HARMLESS.
_LIKELY = re.compile(
    rf"(?:^|(?P<before>[a-z0-9]+)_|user|auth|priv|db)(?:keys?|token|auth|pass|pwd|pat|bearer_token_[a-z]+){_BEHIND}"
)
# The same of what is seldom something else: rcon_pw, LANGFUSE_SK, SESSION_COOKIE, OTP_SEED, OTLP_HEADERS.
_SELDOM = re.compile(
    rf"(?:(?:^|_|rcon)pw|(?:^|_)(?:sk|cookie|salt|signature|kube_?config|otp_seed|(?:http|otlp|request)_headers)){_BEHIND}"
)
# The address of a store, with which a login goes.
_STORE = re.compile(
    r"(?:^|_)(?:database|db|mongo(?:db)?|oplog|postgres(?:ql)?|pg|mysql|mariadb|redis|amqp|rabbitmq|smtp)_ur[il]s?$"
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
    r"(?:key|token|passw(?:or)?d|passphrase|passcode|pass|pwd?|secret|credential|cred|auth|jwt|dsn|psk|sk|cookie|salt"
    r"|signature|webhook|seed|header|config|signing|_(?:string|url|uri|data|file|base|hash))s?"
)

# Secrets by their form; the group is the secret. Each pattern starts with fixed text, which makes the search quick.
FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"://[^\s/@:\"']*:([^\s/@\"']+)@",
        r"[?&][\w-]*(?i:key|token|password|secret|signature|sig)=([^&\s\"'#]+)",
        r"uthorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?i:bearer|basic|token)\s+([^\s\"'\\$][^\s\"'\\]*)",
        r"Bearer\s+([A-Za-z0-9._~+/=-]{6,})",
        # The words of curl, of a header, of a sentence and of .netrc. Two numbers are the user of a container.
        r"\s(?:-u|--user)[ =][\"']?(?!\d+:\d+\b)[^\s:\"'/]+:([^\s\"']+)",
        r"ookie\\*[\"']?:\s*\\*[\"']?([^\n\"']+)",
        r"assword is ([^\s,;]+)",
        r"\slogin\s+\S+\s+password\s+(\S+)",
        # A short word, and behind it as many letters of both cases and digits as only a machine writes.
        r"(?<![\w.-])([a-z][a-z0-9]{0,9}[_-](?:[a-z0-9]{1,8}[_-]){0,2}"
        r"(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])(?=[A-Za-z]*\d)[A-Za-z0-9]{16}[\w-]*)",
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
                ("dop_v1_", "[0-9a-f]{64}"),
                ("AKIA", "[0-9A-Z]{16}"),
                ("ASIA", "[0-9A-Z]{16}"),
                ("AIza", "[0-9A-Za-z_-]{35}"),
                (r"ya29\.", r"[\w.-]{20,}"),
                (r"SG\.", r"[\w-]{16,}\.[\w-]{16,}"),
                ("eyJ", r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
            )
        ),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----((?:(?!-----)[\s\S])+)",
    )
)


def is_secret(name: str, value: str | None = None, *, field: bool = False) -> bool:
    """Return True if the value of this variable or option is a secret. HF_TOKEN and --api-key are; MAX_TOKENS and
    TOKENIZERS_PARALLELISM are not.

    `value`: what it has, None if that is not known: true is no secret, and the address of a database is none without a
    login. `field`: the name is one of a program's own text or map, where a key or token is one of many kinds (kv_key,
    eos_token) and only a telling word before it makes it a secret.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower().replace("-", "_").replace(".", "_").strip("_")
    if words in _FOLDERS or (value is not None and _SWITCH.fullmatch(value)):
        return False
    if _DEEDS.search(words) and (value is None or value.strip().isdecimal()):
        return False
    if _CERTAIN.search(words):
        return True
    if field:
        return False
    if _STORE.search(words):
        return value is None or "@" in value
    likely = _LIKELY.search(words)
    return bool(_SELDOM.search(words) or (likely and not _HARMLESS.fullmatch(likely["before"] or "")))


def has_form(value: str) -> bool:
    """Return True if a text shows a secret by its form: a login in a URL, a bearer, a token of a known kind."""
    return any(pattern.search(value) for pattern in FORMS)
