"""Two authorities of a site at once, and names that an authority may not sign: what real clients say of both."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from listed_client import said
from test_browser import browser
from test_clients import CHAT, MESSAGE, client

from fakes import edge_cases
from fakes.running_edge import ADDRESS, KEY, Engines, RunningEdge
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.edge import authority, config, succession
from vllm_spark.edge.authority import KeyPair
from vllm_spark.edge.succession import Authority

NOW = datetime.now(UTC)
PLANNED = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False})
NAMES = list(config.names(PLANNED, ADDRESS))


def followed(days: float) -> Authority:
    """Return an authority that is followed by another one, so many days after that one was made."""
    made = authority.new_authority(NOW - timedelta(days=3650 - succession.FOLLOW_DAYS + 1 + days), NAMES)
    both = succession.kept(Authority(made.certificate, made.private_key), NAMES, NOW - timedelta(days=days))
    return succession.kept(both, NAMES, NOW)


@contextmanager
def running(folder: Path, site: KeyPair, names: list[str]) -> Iterator[RunningEdge]:
    """Yield an edge with a certificate for these names, and an engine behind it."""
    engine, engines, edge = ScriptedEngine([CHAT]), Engines(folder / "run"), RunningEdge(PLANNED, folder, site=site)
    edge.show(authority.new_certificate(site, names, NOW))
    (folder / "ca.crt").write_text(site.certificate)
    engines.start("demo", engine)
    edge.configure()
    edge._run()
    try:
        edge.wait_for("demo", "UP")
        yield edge
    finally:
        edge.close()
        engines.close()


def curl(edge: RunningEdge, trusted: Path, host: str = ADDRESS) -> str:
    """Return what curl says; empty if it has an answer."""
    url = f"https://{host}:{edge.port}/health"
    done = subprocess.run(["curl", "-sS", "--cacert", str(trusted), url], capture_output=True, text=True, check=False)
    return done.stderr


def python(edge: RunningEdge) -> str:
    """Return what Python's ssl says; empty if it has an answer."""
    try:
        return "" if edge.ask("GET", "/health", key=None).status == 200 else "no answer"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message


def chromium(edge: RunningEdge, host: str = ADDRESS) -> str:
    """Return what Chromium says; empty if it shows the page."""
    with browser(edge) as page:
        return str(page.command("Page.navigate", url=f"https://{host}:{edge.port}/health").get("errorText", ""))


@pytest.mark.parametrize("days", [0, 366], ids=["the old one signs", "the new one signs"])
def test_every_client_trusts_two_authorities_at_once(days: float, tmp_path: Path) -> None:
    site = followed(days)
    first, second = authority.certificates(site.certificate)
    assert (first.not_valid_before_utc < second.not_valid_before_utc) == (days == 0)
    with running(tmp_path, site, NAMES) as edge:
        trusted = tmp_path / "ca.crt"
        assert said(client(edge, "chat")) == [{"text": MESSAGE["content"], "body": CHAT.body}]
        assert (curl(edge, trusted), python(edge), chromium(edge)) == ("", "", "")
        only = tmp_path / "one.crt"
        for one, answered in ((first, True), (second, False)):
            only.write_text(authority.pem(one))
            assert (curl(edge, only) == "") == answered


@pytest.mark.parametrize("name", ["www.google.com", "8.8.8.8"])
def test_every_client_refuses_a_name_that_the_authority_may_not_sign(name: str, tmp_path: Path) -> None:
    """They ask an address that the certificate has too, so only the foreign name is wrong."""
    with running(tmp_path, authority.new_authority(NOW, NAMES), [*NAMES, name]) as edge:
        assert "permitted subtree violation" in curl(edge, tmp_path / "ca.crt")
        assert python(edge) == "permitted subtree violation"
        assert chromium(edge) == "net::ERR_CERT_INVALID"


def test_every_client_takes_the_same_certificate_without_that_name(tmp_path: Path) -> None:
    with running(tmp_path, authority.new_authority(NOW, NAMES), NAMES) as edge:
        assert (curl(edge, tmp_path / "ca.crt"), python(edge), chromium(edge)) == ("", "", "")
        assert edge.ask("GET", "/v1/models", key=KEY).status == 200
