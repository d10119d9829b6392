"""An authority that is followed by another one before it ends, its names, and its passphrase."""

from __future__ import annotations

import itertools
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import authority, lifetime, store, succession
from vllm_spark.edge.authority import KeyPair
from vllm_spark.edge.succession import Authority
from vllm_spark.node import state_file

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
FOLLOWED = "another authority of the site signs now"
NAMES = ["spark1", "spark1.local", "192.168.1.20", "localhost", "127.0.0.1"]


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


class Site:
    """A folder, and a host with what deploys have placed there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.placed = folder, KeyPair("", "")

    def deploy(self, number: float) -> str:
        """Return why a deploy of a day renews the certificate, and renew it."""
        site = store.read_or_create(self.folder, day(number), "", NAMES)
        reason = authority.renewal_reason(self.placed.certificate, site.certificate, NAMES, day(number))
        if reason:
            self.placed = authority.new_certificate(site, NAMES, day(number))
        return reason

    def openssl(self, number: float, trusted: str = "") -> str:
        """Return the verdict of openssl on a day, with what clients got on another day or have now."""
        (self.folder / "host.pem").write_text(self.placed.certificate)
        (self.folder / "client.pem").write_text(trusted or store.trusted(self.folder))
        at = str(int(day(number).timestamp()))
        command = [
            "openssl",
            "verify",
            "-attime",
            at,
            "-verify_hostname",
            "spark1.local",
            "-CAfile",
            "client.pem",
            "host.pem",
        ]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        return "OK" if done.returncode == 0 else next(line for line in done.stderr.splitlines() if "error" in line)

    def warning(self, number: float) -> str:
        public = {"certificate": self.placed.certificate, "authority": store.trusted(self.folder)}
        life = lifetime.of_host(public)
        assert life
        return life.warning(day(number).timestamp()).partition(" — ")[0]

    def ends(self) -> list[datetime]:
        return [one.not_valid_after_utc for one in authority.certificates(store.trusted(self.folder))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    assert made.deploy(0) == "the certificate cannot be read"
    return made


def test_without_a_deploy_each_day_has_its_message(site: Site) -> None:
    said = {number: (site.warning(number), site.openssl(number)) for number in (0, 366, 731, 820.5, 3651)}
    end = f"{day(820):%Y-%m-%d}"
    assert said[0] == said[366] == ("", "OK")
    assert said[731] == (f"the certificate ends in 89 days, on {end}", "OK")
    ended = f"the certificate has ended on {end}"
    assert [said[number][0] for number in (820.5, 3651)] == [ended, ended]
    assert all("certificate has expired" in said[number][1] for number in (820.5, 3651))


@pytest.mark.slow
def test_with_a_deploy_a_month_no_client_ever_refuses(site: Site) -> None:
    """Eleven years. A client gets the file on the days on which it is asked to, and at no other time."""
    client, reasons = store.trusted(site.folder), {}
    for number in range(30, 4020, 30):
        if reason := site.deploy(number):
            reasons[number] = reason
        if site.warning(number):
            client = store.trusted(site.folder)
        assert site.openssl(number, client) == "OK", number
        # Until the next deploy as well.
        assert site.openssl(number + 29, client) == "OK", number
        assert authority.certificates(site.placed.certificate)[0].not_valid_after_utc <= max(site.ends())
        # Idempotent: the same deploy once more has nothing to do.
        assert site.deploy(number) == ""
    assert [number for number, reason in reasons.items() if reason == FOLLOWED] == [3300]
    assert len(site.ends()) == 1
    assert not (site.folder / "next.key").exists()


def test_the_old_one_signs_while_clients_get_both(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    old = store.trusted(site.folder)
    site.deploy(2921)
    both = store.trusted(site.folder)
    assert both.startswith(old)
    over = f"{day(2921 + 364.5):%Y-%m}"
    assert site.warning(2921).startswith(f"another authority of the site signs from {over}")
    assert site.openssl(2921, old) == "OK"
    assert main.main(["trust", "--authority", str(site.folder)]) == 0
    out, errors = capsys.readouterr()
    assert out == both
    assert errors.count("SHA-256 ") == 2
    assert f"The second one signs from {over}" in errors
    assert (site.folder / "next.key").stat().st_mode & 0o777 == 0o600
    # Later the new one signs, and a client that has only the old one refuses.
    assert site.deploy(3290) == FOLLOWED
    assert (site.openssl(3290, both), site.warning(3290)) == ("OK", "")
    assert "unable to get local issuer certificate" in site.openssl(3290, old)
    assert authority.certificates(store.trusted(site.folder)) == authority.certificates(both)[::-1]


@pytest.mark.parametrize(("number", "handover"), [(3640, 3645), (3650, 3650), (3651, 3651), (4500, 4500)])
def test_a_follower_that_comes_late_takes_over_half_way_or_at_once(number: float, handover: float, site: Site) -> None:
    site.placed = KeyPair("", "")
    site.deploy(number)
    if number < handover:
        assert site.ends()[0] == day(3650)
        assert authority.certificates(site.placed.certificate)[0].not_valid_after_utc == day(3650)
        assert site.warning(number) == "the authority of the certificate ends in 10 days, on " + f"{day(3650):%Y-%m-%d}"
        assert site.deploy(handover - 0.1) == ""
        assert site.deploy(handover + 0.1) == FOLLOWED
    assert site.openssl(number + 30) == "OK"
    assert site.warning(number + 30) == ""


def test_a_certificate_that_outlives_its_authority_is_renewed(site: Site) -> None:
    """Those of an older toolkit do."""
    known = store.read(site.folder)
    assert known
    (old,) = authority.certificates(known.certificate)
    reason = authority._end_reason(old.not_valid_after_utc + timedelta(days=1), old.not_valid_after_utc, NOW)
    assert reason == f"the certificate outlives its authority, which ends on {day(3650):%Y-%m-%d}"


def interrupted(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the step of the next write fail, counted from 0."""
    steps = itertools.count()

    def replace_file(*args: object) -> None:
        if next(steps) == step:
            raise OSError("no space left")
        state_file.replace_file(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "replace_file", replace_file)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("number", [2921, 3300])
def test_a_deploy_that_is_interrupted_leaves_an_authority_that_signs(
    number: int, step: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for earlier in (700, 1500, 2500, *([2921] if number > 2921 else [])):
        site.deploy(earlier)
    before = store.trusted(site.folder)
    with monkeypatch.context() as patch:
        interrupted(patch, step)
        try:
            site.deploy(number)
        except OSError:
            assert site.openssl(number, before) == "OK"
    site.deploy(number)
    assert site.openssl(number) == "OK"
    assert site.openssl(number, before) == "OK"
    found = store.read(site.folder)
    assert found
    assert authority.key_of(found.private_key).public_key() == authority.certificates(found.certificate)[0].public_key()


# --- names


PUBLIC = ["www.google.com", "8.8.8.8", "2001:4860:4860::8888", "spark2", "evil-local", "localhost.com"]
PRIVATE = [*NAMES, "models.home.arpa", "a.b.local", "x.internal", "box.lan", "10.1.2.3", "100.101.102.103", "fd00::1"]


def verdict(signer: KeyPair, name: str, folder: Path) -> str:
    """Return what openssl says of a certificate with one foreign name among its own."""
    (folder / "ca.pem").write_text(signer.certificate)
    (folder / "leaf.pem").write_text(authority.new_certificate(signer, [*NAMES, name], NOW).certificate)
    at = str(int(NOW.timestamp()))
    command = ["openssl", "verify", "-attime", at, "-CAfile", str(folder / "ca.pem"), str(folder / "leaf.pem")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_openssl_refuses_what_the_authority_may_not_sign(name: str, tmp_path: Path) -> None:
    made = authority.new_authority(NOW, NAMES)
    (signer,) = authority.certificates(made.certificate)
    assert authority.outside(signer, [*NAMES, name]) == [name]
    assert "permitted subtree violation" in verdict(made, name, tmp_path)
    # A new edition of the same authority may sign it.
    wide = succession.kept(Authority(made.certificate, made.private_key), [*NAMES, name], NOW)
    assert verdict(wide, name, tmp_path) == ""
    (edition,) = authority.certificates(wide.certificate)
    assert (edition.subject, edition.public_key(), edition.not_valid_after_utc) == (
        signer.subject,
        signer.public_key(),
        signer.not_valid_after_utc,
    )
    assert succession.kept(wide, [*NAMES, name], NOW) == wide


@pytest.mark.parametrize("name", PRIVATE)
def test_openssl_accepts_what_it_may_sign(name: str, tmp_path: Path) -> None:
    made = authority.new_authority(NOW, NAMES)
    assert authority.outside(authority.certificates(made.certificate)[0], [name.upper()]) == []
    assert verdict(made, name, tmp_path) == ""


def test_a_new_name_of_a_spark_with_clients_is_refused_first(site: Site) -> None:
    placed = store.trusted(site.folder)
    store.refuse_strangers(placed, NAMES)
    store.refuse_strangers("", PUBLIC)
    with pytest.raises(
        RefusedError, match=r"refuse a certificate with ai\.example .* edge_new_authority=true"
    ) as refused:
        store.refuse_strangers(placed, [*NAMES, "ai.example"])
    assert [refusal.id for refusal in refused.value.refusals] == ["edge-strange-name"]
    # After the handover the old one signs nothing, so its names do not matter.
    site.deploy(2921)
    site.deploy(3300)
    store.read_or_create(site.folder, day(3300), "", ["ai.example"])
    store.refuse_strangers(store.trusted(site.folder), [*NAMES, "ai.example"])


def test_an_authority_without_constraints_signs_until_it_is_followed(tmp_path: Path) -> None:
    """Those of an older toolkit."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=old"
    files = ["-keyout", str(tmp_path / "ca.key"), "-out", str(tmp_path / "ca.crt")]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    subprocess.run([*command.split(), *usage, *files], check=True, capture_output=True)
    before = (tmp_path / "ca.crt").read_text()
    now = datetime.now(UTC)
    found = store.read_or_create(tmp_path, now, "x", PUBLIC)
    assert found.certificate == before
    assert authority.outside(authority.certificates(before)[0], PUBLIC) == []
    later = store.read_or_create(tmp_path, now + timedelta(days=3000), "x", NAMES)
    old, new = authority.certificates(later.certificate)
    assert (authority.outside(old, PUBLIC), authority.outside(new, ["www.google.com"])) == ([], ["www.google.com"])


# --- the passphrase


def asks(file: Path, passphrase: str) -> int:
    command = ["openssl", "pkey", "-noout", "-in", str(file), "-passin", f"pass:{passphrase}"]
    return subprocess.run(command, check=False, capture_output=True).returncode


@pytest.fixture
def protected(tmp_path: Path) -> Path:
    store.read_or_create(tmp_path, NOW, "", NAMES)
    assert asks(tmp_path / "ca.key", "no matter") == 0
    # The next deploy with a passphrase encrypts the key.
    store.read_or_create(tmp_path, NOW, "", NAMES, "correct horse")
    return tmp_path


def test_a_passphrase_protects_every_key(protected: Path) -> None:
    assert [asks(protected / "ca.key", word) for word in ("correct horse", "wrong", "")] == [0, 1, 1]
    assert (protected / "ca.key").stat().st_mode & 0o777 == 0o600
    before = (protected / "ca.key").read_bytes()
    site = store.read_or_create(protected, NOW, "", NAMES, "correct horse")
    assert (protected / "ca.key").read_bytes() == before
    assert (
        authority.renewal_reason(authority.new_certificate(site, NAMES, NOW).certificate, site.certificate, NAMES, NOW)
        == ""
    )
    store.read_or_create(protected, day(2921), "", NAMES, "correct horse")
    assert [asks(protected / name, "correct horse") for name in ("ca.key", "next.key")] == [0, 0]
    assert [asks(protected / name, "") for name in ("ca.key", "next.key")] == [1, 1]
    store.read_or_create(protected, day(3300), "", NAMES, "correct horse")
    assert [asks(protected / "ca.key", word) for word in ("correct horse", "")] == [0, 1]
    assert not (protected / "next.key").exists()


@pytest.mark.parametrize(("passphrase", "why"), [("", "is not set"), ("wrong", "is not that of the key")])
def test_a_key_that_cannot_be_opened_is_refused(passphrase: str, why: str, protected: Path) -> None:
    with pytest.raises(RefusedError, match=f"vllm_edge_authority_passphrase {why}") as refused:
        store.read_or_create(protected, NOW, "", NAMES, passphrase)
    assert [refusal.id for refusal in refused.value.refusals] == ["edge-passphrase"]
    # Clients and other verbs need no key.
    assert main.main(["trust", str(protected / "out.crt"), "--authority", str(protected)]) == 0
    assert (protected / "out.crt").read_text() == store.trusted(protected)
