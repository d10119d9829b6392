"""The site's authority and the certificates of its edges: what they are for, when they are renewed, where they lie."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fakes import edge_cases
from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import authority, config, store
from vllm_spark.edge.authority import HostPair, KeyPair

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NAMES = ["spark1", "spark1.local", "192.168.1.20"]


@pytest.fixture(scope="module")
def site() -> KeyPair:
    return authority.new_authority(NOW)


@pytest.fixture(scope="module")
def host(site: KeyPair) -> HostPair:
    return authority.new_certificate(site, NAMES, NOW)


def test_a_certificate_names_the_host_and_signs_nothing(site: KeyPair, host: KeyPair) -> None:
    parsed = x509.load_pem_x509_certificate(host.certificate.encode())
    assert authority.subject_names(parsed) == set(NAMES)
    assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    signer = x509.load_pem_x509_certificate(site.certificate.encode())
    constraints = signer.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert parsed.not_valid_before_utc < NOW < parsed.not_valid_after_utc


def test_a_second_certificate_has_the_names_alone_and_the_same_key(site: KeyPair, host: HostPair) -> None:
    parsed, alone = (
        x509.load_pem_x509_certificate(text.encode()) for text in (host.certificate, host.names_certificate)
    )
    assert authority.subject_names(alone) == {"spark1", "spark1.local"}
    assert alone.public_key() == parsed.public_key()
    assert alone.serial_number != parsed.serial_number
    assert alone.not_valid_after_utc == parsed.not_valid_after_utc
    (signer,) = authority.certificates(site.certificate)
    assert authority.has_signed(signer, alone)
    assert authority.new_certificate(site, ["192.168.1.20", "fd00::1"], NOW).names_certificate == ""


@pytest.mark.parametrize("address", ["192.168.1.20", "fd00::5", "spark-1a2b.local"])
def test_every_edge_has_a_name_beside_its_addresses(address: str) -> None:
    """Also a Spark whose name in the inventory is an address: clients on it ask `localhost`."""
    edge = edge_cases.edge_of([edge_cases.DEMO], {"open": False})
    found = authority.without_addresses(config.names(replace(edge, host=address), address))
    assert found == [*([address] * 2 if address.endswith(".local") else []), "localhost"]


def test_no_text_shows_a_private_key(site: KeyPair) -> None:
    assert "PRIVATE" not in f"{site} {site!r} {[site]}"
    assert "PRIVATE" not in site.certificate


@pytest.mark.parametrize(
    ("names", "days", "reason"),
    [
        (NAMES, 0, ""),
        (NAMES[:1], 0, ""),
        (NAMES, authority.CERTIFICATE_DAYS - authority.RENEWAL_DAYS - 1, ""),
        (NAMES, authority.CERTIFICATE_DAYS - authority.RENEWAL_DAYS + 1, "the certificate ends on "),
        ([*NAMES, "models.home"], 0, "the certificate lacks models.home"),
    ],
)
def test_a_certificate_is_renewed_in_time(
    site: KeyPair, host: KeyPair, names: list[str], days: int, reason: str
) -> None:
    found = authority.renewal_reason(host.certificate, site.certificate, names, NOW + timedelta(days=days))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_certificate_of_another_authority_is_renewed(host: KeyPair) -> None:
    other = authority.new_authority(NOW).certificate
    assert "not of this site's authority" in authority.renewal_reason(host.certificate, other, NAMES, NOW)
    assert "cannot be read" in authority.renewal_reason("nonsense", other, NAMES, NOW)


def test_the_owners_files_are_judged(site: KeyPair, host: KeyPair) -> None:
    assert authority.pair_fault(host, NAMES, NOW) == ""
    foreign = KeyPair(host.certificate, site.private_key)
    assert "of another certificate" in authority.pair_fault(foreign, NAMES, NOW)
    assert "none of the names ai.example" in authority.pair_fault(host, ["ai.example"], NOW)
    assert "has ended" in authority.pair_fault(host, NAMES, NOW + timedelta(days=1000))
    assert "not PEM" in authority.pair_fault(KeyPair("x", host.private_key), NAMES, NOW)
    assert "not PEM" in authority.pair_fault(KeyPair(host.certificate, "x"), NAMES, NOW)


def test_the_authority_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "edge"
    made = store.read_or_create(folder, NOW, "")
    assert store.read_or_create(folder, NOW, "a certificate") == made == store.read(folder)
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "ca.key\nnext.key\n"


def test_a_second_controller_makes_no_second_authority(tmp_path: Path, host: KeyPair) -> None:
    with pytest.raises(RefusedError) as refused:
        store.read_or_create(tmp_path / "edge", NOW, host.certificate)
    assert [refusal.id for refusal in refused.value.refusals] == ["edge-no-authority"]
    assert store.read(tmp_path / "edge") is None


def test_half_an_authority_is_refused(tmp_path: Path) -> None:
    store.read_or_create(tmp_path, NOW, "")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(RefusedError, match=r"ca\.key is missing"):
        store.read(tmp_path)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path, host: KeyPair) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_text(host.certificate.rstrip())
    key.write_text(host.private_key)
    assert store.read_files(str(chain), str(key), NAMES, NOW) == KeyPair(host.certificate, host.private_key)
    for certificate, private_key in ((str(chain), str(chain)), (str(tmp_path / "none"), str(key))):
        with pytest.raises(RefusedError) as refused:
            store.read_files(certificate, private_key, NAMES, NOW)
        assert [refusal.id for refusal in refused.value.refusals] == ["edge-files"]


def test_trust_writes_the_certificate_and_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = store.read_or_create(tmp_path / "edge", NOW, "")
    file = tmp_path / "ca.crt"
    assert main.main(["trust", str(file), "--authority", str(tmp_path / "edge")]) == 0
    assert file.read_text() == made.certificate
    assert authority.fingerprint(authority.certificates(made.certificate)[0]) in capsys.readouterr().err
    assert main.main(["trust", "--authority", str(tmp_path / "edge")]) == 0
    assert capsys.readouterr().out == made.certificate
    assert main.main(["trust", "--authority", str(tmp_path / "none")]) == 1
    assert "has no authority" in capsys.readouterr().err
