"""Which token service of a registry may get this machine's login (review security.md, finding 9)."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

# Registries whose token service has another site, from their own challenges.
ELSEWHERE = {"registry-1.docker.io": ("auth.docker.io",), "nvcr.io": ("authn.nvidia.com",)}
PUBLIC = re.compile(r"[^.]+|[a-z]{1,3}\.[a-z]{2}")  # com, or such as co.uk


def objection(realm: str, registry: str, *, login: bool) -> str:
    """Return why the token service `realm` of a challenge must not be asked, or an empty text.

    `registry` is the URL of the registry that sent the challenge. `login`: the request would carry a password. A token
    without a password may come from any site over https.
    """
    try:
        service, source = urllib.parse.urlsplit(realm), urllib.parse.urlsplit(registry)
        host, own = (service.hostname or "").lower(), (source.hostname or "").lower()
    except ValueError:
        return "is not a URL"
    same = bool(host) and host == own
    if service.scheme != "https" and not (service.scheme == "http" and source.scheme == "http" and same):
        return "does not use https"
    if login and not (same or host in ELSEWHERE.get(own, ()) or _same_site(host, own)):
        return f"is not of the site of {own}, and would get this machine's login"
    return ""


def _same_site(host: str, own: str) -> bool:
    """Return True if one name is below the other, or both are below the same domain of an owner."""
    if _is_address(host) or _is_address(own):
        return False
    if host.endswith(f".{own}"):
        return True
    parent = own.partition(".")[2]
    return bool(parent) and host.partition(".")[2] == parent and not PUBLIC.fullmatch(parent)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
