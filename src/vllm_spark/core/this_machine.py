"""By which names others reach the machine that deploys."""

from __future__ import annotations

import socket


def short_name() -> str:
    """Return the host name without a domain."""
    return socket.gethostname().partition(".")[0]


def mdns_name() -> str:
    """Return the name by which mDNS knows this machine."""
    return f"{short_name()}.local"


def routed_address() -> str:
    """Return the address in the network of the default route, empty without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737); a datagram socket sends nothing
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return address
