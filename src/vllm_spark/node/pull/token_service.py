"""What a registry's challenges say, and which token service may get this machine's login (security.md, finding 9)."""

from __future__ import annotations

import re
import urllib.parse

# A scheme, or a parameter with its value. Some registries leave the quotes out.
WORD = re.compile(r'([\w-]+)(?:(\s*=\s*)(?:"([^"]*)"|([^\s",]*)))?')

# Registries whose token service has a host beside or above their own, from their own challenges. A common parent domain
# is not a proof: customers of azurecr.io, github.io or amazonaws.com share one.
ELSEWHERE = {
    "docker.elastic.co": "docker-auth.elastic.co",
    "nvcr.io": "authn.nvidia.com",
    "registry-1.docker.io": "auth.docker.io",
    "registry.digitalocean.com": "api.digitalocean.com",
    "registry.gitlab.com": "gitlab.com",
}


def parameters_by_scheme(challenges: str) -> dict[str, dict[str, str]]:
    """Return scheme -> parameters of WWW-Authenticate headers, joined by commas (RFC 9110, section 11.6.1).

    Names are in lower case. The first challenge of a scheme counts.
    """
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for name, equals, quoted, bare in WORD.findall(challenges):
        if equals:
            fields[name.lower()] = quoted or bare
        else:
            fields = {}
            found.setdefault(name.lower(), fields)
    return found


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
    if login and not (same or host.endswith(f".{own}") or ELSEWHERE.get(own) == host):
        return f"is not of the site of {own}, and would get this machine's login"
    return ""
