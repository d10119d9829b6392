"""Who has shown a key stays known over a reload and beside thousands of strangers, and its place stays free."""

from __future__ import annotations

import functools
import ipaddress
import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from test_before_the_key import ATTACKERS, FOREVER_S, connections, dial, ends

from conftest import Start
from fakes.running_edge import RunningEdge
from vllm_spark.edge import config
from waiting import until

# Half of these is for strangers: eight addresses with four each.
LIMITS = {"connections": 64}
# More than the table of addresses has rows.
STRANGERS = 11_000
# A connection that stays for so long was not cut.
STAYS_S = 0.1
# HAProxy learns for so long from a process before it; only then does it teach the next one.
LEARNS_S = 5


@contextmanager
def besieged(edge: RunningEdge) -> Iterator[None]:
    """Let eight strangers hold every connection that they may: the next one is cut."""
    with ExitStack() as held:
        cut = 0
        for source in itertools.cycle(ATTACKERS):
            with suppress(OSError):
                wire = held.enter_context(dial(edge, source))
                wire.settimeout(STAYS_S)
                cut = 0 if not ends(wire) else cut + 1
            # More in a row than those of one that had its share.
            if cut > 2 * len(ATTACKERS):
                break
        assert connections(edge) >= LIMITS["connections"] // 2 - 1
        yield


def serves(edge: RunningEdge, source: str) -> bool:
    """Return whether a client of an address with a key gets an answer."""
    connection = edge.connect()
    connection.source_address = (source, 0)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": "Bearer sk-of-ada"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def known(edge: RunningEdge) -> int:
    """Return how many addresses have shown a key."""
    return edge.admin("show table edge_known").count(": key=")


@pytest.fixture
def edge(start: Start, monkeypatch: pytest.MonkeyPatch) -> RunningEdge:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", FOREVER_S)
    edge = start(limits=LIMITS)
    edge.show_key()
    return edge


def test_eight_addresses_keep_new_ones_out_and_not_one_that_has_shown_a_key(edge: RunningEdge) -> None:
    with besieged(edge):
        assert not serves(edge, "127.0.0.100")
        assert serves(edge, "127.0.0.1")
    until(lambda: serves(edge, "127.0.0.100"))
    with besieged(edge):
        assert serves(edge, "127.0.0.100")


def test_a_reload_forgets_nobody(edge: RunningEdge) -> None:
    for _ in range(2):
        until(lambda: f"Uptime_sec: {LEARNS_S + 1}\n" in edge.admin("show info"))
        reloaded = functools.partial(edge.has_reloaded, edge.worker())
        edge.reload()
        until(reloaded)
        until(lambda: known(edge) == 1)
        with besieged(edge):
            assert not serves(edge, "127.0.0.100")
            assert serves(edge, "127.0.0.1")


def test_thousands_of_strangers_push_nobody_out(edge: RunningEdge) -> None:
    first = ipaddress.ip_address("127.1.0.1")
    for number in range(STRANGERS):
        with suppress(OSError), socket.socket() as stranger:
            stranger.bind((str(first + number), 0))
            stranger.connect((edge.address, edge.port))
    with besieged(edge):
        assert serves(edge, "127.0.0.1")
