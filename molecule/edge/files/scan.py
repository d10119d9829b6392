#!/usr/bin/env python3
"""Connect to every TCP port of a host. Prints JSON: `open` (ports), `silent` (number of ports without any answer in the
last round), `rounds`, `seconds`.

    scan.py ADDRESS [SECONDS]

Scans again and again until SECONDS have passed, at least once; `open` then has the ports of all rounds.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

# Well below the usual limit of open files, 1024.
AT_ONCE = 900
# A firewall that drops gives no answer. On a network of one machine an answer takes less than a millisecond.
ANSWER_S = 1.0
PORTS = range(1, 65536)
# A closed connection leaves nothing behind on either side.
RESET = struct.pack("ii", 1, 0)


def scan(family: int, target: tuple[object, ...], ports: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield (port, whether it is open) for each port that answers."""
    poll, waiting = select.epoll(), {}
    for port in ports:
        one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        waiting[one.fileno()] = (port, one)
        result = one.connect_ex((target[0], port, *target[2:]))
        if result not in (0, errno.EINPROGRESS):
            waiting.pop(one.fileno())
            one.close()
            yield port, False
        else:
            poll.register(one, select.EPOLLOUT)
    end = time.monotonic() + ANSWER_S
    while waiting and (left := end - time.monotonic()) > 0:
        for number, _ in poll.poll(left):
            port, one = waiting.pop(number)
            yield port, one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            one.close()
    for _, one in waiting.values():
        one.close()
    poll.close()


def main() -> None:
    address, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0  # noqa: PLR2004
    family, *_, target = socket.getaddrinfo(address, 1, type=socket.SOCK_STREAM)[0]
    began, rounds, found = time.monotonic(), 0, set[int]()
    while not rounds or time.monotonic() - began < seconds:
        answered = dict(
            seen
            for first in PORTS[::AT_ONCE]
            for seen in scan(family, target, range(first, min(first + AT_ONCE, PORTS.stop)))
        )
        found |= {port for port, is_open in answered.items() if is_open}
        rounds += 1
    took = round(time.monotonic() - began, 1)
    print(json.dumps({"open": sorted(found), "silent": len(PORTS) - len(answered), "rounds": rounds, "seconds": took}))


main()
