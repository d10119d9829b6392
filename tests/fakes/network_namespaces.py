"""Hosts that are network namespaces of this machine, joined by cables that are veth pairs. Needs root and iproute2."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

# A dropped packet has no answer. On one machine an answer takes less than a millisecond.
ANSWER_S = 1.0

# Listens on the ports of argv on every address, and tells every client which port it has reached.
SERVE = """
import selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in map(int, sys.argv[1:]):
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    waiting.register(listener, selectors.EVENT_READ, port)
print("ready", flush=True)
while True:
    for key, _ in waiting.select():
        client, _ = key.fileobj.accept()
        client.sendall(str(key.data).encode())
        client.close()
"""

# Connects to ADDRESS from SOURCE for each port, all at once. Prints JSON: port -> what the server said, or "".
ASK = """
import json, selectors, socket, sys, time
source, address, seconds, *ports = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
waiting, found = selectors.DefaultSelector(), dict.fromkeys(ports, "")
for port in ports:
    one = socket.socket(family, socket.SOCK_STREAM)
    one.bind((source, 0))
    one.setblocking(False)
    one.connect_ex((address, int(port)))
    waiting.register(one, selectors.EVENT_READ, port)
end = time.monotonic() + float(seconds)
while waiting.get_map() and (left := end - time.monotonic()) > 0:
    for key, _ in waiting.select(left):
        try:
            found[key.data] = key.fileobj.recv(16).decode()
        except OSError as error:
            found[key.data] = type(error).__name__
        waiting.unregister(key.fileobj)
print(json.dumps(found))
"""


class Host:
    """A host of its own network. `name` is unique on this machine."""

    def __init__(self, name: str) -> None:
        self.name = f"{name}-{os.getpid()}"

    def argv(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def run(self, *command: str, stdin: str | None = None) -> str:
        """Run a command on the host and return its output. Raises CalledProcessError."""
        done = subprocess.run(self.argv(*command), input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, ports: Sequence[int]) -> Iterator[None]:
        """Listen on the ports of all addresses."""
        argv = self.argv("python3", "-c", SERVE, *map(str, ports))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            try:
                yield
            finally:
                server.terminate()

    def reaches(self, source: str, address: str, ports: Sequence[int]) -> list[int]:
        """Return the ports of an address that answer to this host when it asks from `source`."""
        said = json.loads(self.run("python3", "-c", ASK, source, address, str(ANSWER_S), *map(str, ports)))
        return [port for port in ports if said[str(port)].isdigit()]


@contextmanager
def hosts(*names: str) -> Iterator[list[Host]]:
    """Make the hosts, and remove them with their cables at the end."""
    made: list[Host] = []
    try:
        for name in names:
            host = Host(name)
            subprocess.run(["ip", "netns", "add", host.name], check=True)
            made.append(host)
            host.run("ip", "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            with suppress(subprocess.CalledProcessError):
                subprocess.run(["ip", "netns", "delete", host.name], check=True)


def cable(ends: Mapping[Host, tuple[str, Sequence[str]]]) -> None:
    """Join two hosts. `ends`: host -> the name of its netdev and its addresses with prefix."""
    (first, (netdev, _)), (second, (other, _)) = ends.items()
    first.run("ip", "link", "add", netdev, "type", "veth", "peer", "name", other, "netns", second.name)
    for host, (name, addresses) in ends.items():
        for address in addresses:
            # An address of IPv6 is usable at once only without the search for a duplicate.
            host.run("ip", "address", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
        host.run("ip", "link", "set", name, "up")


@contextmanager
def cable_to_this_machine(host: Host, here: str, there: str) -> Iterator[str]:
    """Join a host and this machine, and yield the address of this machine. The cable goes with the host."""
    netdev = f"to-{os.getpid()}"
    ip = ("ip", "link", "add", netdev, "type", "veth", "peer", "name", "lan0", "netns", host.name)
    subprocess.run(ip, check=True)
    subprocess.run(["ip", "address", "add", f"{here}/30", "dev", netdev], check=True)
    subprocess.run(["ip", "link", "set", netdev, "up"], check=True)
    host.run("ip", "address", "add", f"{there}/30", "dev", "lan0")
    host.run("ip", "link", "set", "lan0", "up")
    yield here
