"""The certificate of names alone: who gets it, and the client that needs it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import bun
import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target
from test_authorities import chromium, curl

from conftest import Start
from fakes.running_edge import RunningEdge
from project_files import load_module
from vllm_spark.edge import authority, config

NOW = datetime.now(UTC)
REFUSED = "UNSUPPORTED_CONSTRAINT_TYPE"
# What a client asks by, and whether it gets the certificate with addresses.
ASKS = {
    "no name": (["-noservername"], True),
    "a foreign name": (["-servername", "nobody.example"], True),
    "an address as a name": (["-servername", "127.0.0.1"], True),
    "its name": (["-servername", "spark1.local"], False),
    "its name in capitals": (["-servername", "SPARK1"], False),
    "localhost over TLS 1.2": (["-servername", "localhost", "-tls1_2"], False),
}


def subject_names(edge: RunningEdge, words: list[str]) -> set[str]:
    """Return the names of the certificate that openssl gets and verifies."""
    place = ["-connect", f"127.0.0.1:{edge.port}", "-CAfile", str(edge.folder / "ca.crt"), "-verify_return_error"]
    done = subprocess.run(["openssl", "s_client", *place, *words], input=b"", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return authority.subject_names(authority.certificates(done.stdout.decode())[0])


def test_only_a_client_that_asks_by_a_name_gets_the_names_alone(start: Start) -> None:
    edge = start()
    names = {*config.names(edge.planned, edge.address)}
    for asked, (words, has_addresses) in ASKS.items():
        expected = names if has_addresses else {*authority.without_addresses(names)}
        assert subject_names(edge, words) == expected, asked


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_clients_of_today_take_both(start: Start, host: str) -> None:
    edge = start()
    trusted = edge.folder / "ca.crt"
    assert curl(edge, trusted, host) == ""
    assert spark_edge_probe.outside(Target("127.0.0.1", edge.port, True, host, str(trusted)), [])["no_key"] == 401
    assert chromium(edge, host) == ""


def test_bun_takes_the_names_and_no_address(start: Start, tmp_path: Path) -> None:
    """Red without the second certificate: then it refuses both."""
    edge = start(names=["models.home"])
    by_name, by_address = (f"https://{host}:{edge.port}/health" for host in ("localhost", "127.0.0.1"))
    trusted = tmp_path / "ca.crt"
    assert (bun.asks(by_name, trusted), bun.asks(by_address, trusted)) == ("200", REFUSED)
    # An authority that it does not know.
    foreign = tmp_path / "foreign.crt"
    foreign.write_text(authority.new_authority(NOW).certificate)
    assert bun.asks(by_name, foreign) not in ("200", REFUSED)
    # The edge of an older toolkit.
    (tmp_path / "certificates.list").write_text(f"{edge.files.certificate}\n")
    edge.restart()
    assert bun.asks(by_name, trusted) == REFUSED


def test_bun_refuses_a_name_that_the_authority_may_not_sign(start: Start, tmp_path: Path) -> None:
    edge = start()
    names = list(config.names(edge.planned, edge.address))
    site = authority.new_authority(NOW, names)
    (tmp_path / "ca.crt").write_text(site.certificate)
    edge.show(authority.new_certificate(site, [*names, "www.google.com"], NOW))
    edge.restart()
    assert bun.asks(f"https://localhost:{edge.port}/health", tmp_path / "ca.crt") == "PERMITTED_VIOLATION"


def test_the_gate_compares_both_with_the_files(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = start()
    for name, file in (("CERTIFICATE", "tls.pem"), ("NAMES_CERTIFICATE", "names.pem"), ("AUTHORITY", "ca.crt")):
        monkeypatch.setattr(spark_edge, name, str(tmp_path / file))
    module, target = load_module("vllm_probe"), Target("127.0.0.1", edge.port, True, "localhost")
    placed = module.placed(spark_edge.certificates())
    assert placed == spark_edge_probe.shown(target)
    assert placed["by_name"] != placed["by_address"]
    (tmp_path / "names.pem").unlink()
    assert module.placed(spark_edge.certificates())["by_name"] == placed["by_address"]
