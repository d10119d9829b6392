"""Origins of web pages, as browsers send them in the header Origin: scheme, host, and a port that is not the default.

The edge compares the text of the header, so another spelling would never match. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE = 'the origin of a web page, such as "https://chat.home:3000"'
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def fault(origin: str) -> str:
    """Return why no browser sends this origin, or nothing."""
    if "*" in origin:
        return "a pattern lets more pages in than it names"
    written = _written(origin)
    if not written:
        return "not an origin"
    if written == origin.lower():
        return ""
    return "it has a path" if urlsplit(origin).path else "a browser writes it in another way"


def expected(origin: str) -> str:
    """Return what should stand in its place: the origin of the same page if it has one."""
    written = "" if "*" in origin else _written(origin)
    return f'"{written}"' if written else EXAMPLE


def _written(url: str) -> str:
    """Return the origin of a URL as a browser writes it, or nothing for a URL that is not one of a web page."""
    try:
        parts = urlsplit(url)
        host, port = _host(parts), parts.port
    except ValueError:
        return ""
    if parts.scheme not in DEFAULT_PORTS or not host or port == 0:
        return ""
    return f"{parts.scheme}://{host}" + ("" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}")


def _host(parts: SplitResult) -> str:
    """Return the host in lower case, or nothing for one that is neither a name nor an address."""
    host = parts.hostname or ""
    if ":" in host:
        address = ipaddress.IPv6Address(host)
        return "" if address.scope_id else f"[{address}]"
    return host if _NAME.fullmatch(host) else ""
