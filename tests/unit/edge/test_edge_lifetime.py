"""When a certificate and its authority end: what status, precheck and verify say, and what a Spark says by itself."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fakes import edge_cases
from vllm_spark.core import paths
from vllm_spark.deploy import plan
from vllm_spark.edge import authority, lifetime
from vllm_spark.lifecycle import status, status_table
from vllm_spark.lifecycle.status import HostResult
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gates import edge as gate

NOW = datetime.now(UTC)
FIX = "Fix: ansible-playbook deploy.yml."


def public(days: float, authority_days: float = authority.AUTHORITY_DAYS) -> dict[str, str]:
    """Return a certificate and its authority that end after so many days from now."""
    site = authority.new_authority(NOW + timedelta(days=authority_days - authority.AUTHORITY_DAYS))
    host = authority.new_certificate(site, ["spark1"], NOW + timedelta(days=days - authority.CERTIFICATE_DAYS))
    return {"certificate": host.certificate, "authority": site.certificate}


# Days until the ends of certificate and authority -> the words of the warning.
DAYS: dict[str, tuple[float, float, str]] = {
    "in time": (400, 3000, ""),
    "ninety-one days": (91.5, 3000, ""),
    "below ninety": (89.5, 3000, "the certificate ends in 89 days, on "),
    "ended": (-1, 3000, "the certificate has ended on "),
    "the authority ends first": (400, 30.5, "the authority of the certificate ends in 30 days, on "),
    "the authority has ended": (400, -1, "the authority of the certificate has ended on "),
}


def facts_of(found: dict[str, str], facts: dict[str, Any]) -> dict[str, Any]:
    unit = {
        "unit": {"ActiveState": "active"},
        "route": {"ActiveState": "active"},
        "switch": {},
        "keys": ["ada"],
        "may_switch": [],
        "batch": [],
        "files": {},
    }
    clock = {"before": NOW.timestamp(), "after": NOW.timestamp()}
    return {
        **facts,
        "edge": {"program": True, **unit, **found},
        "controller_time": clock,
        "running_units": [],
        "ports": {},
    }


@pytest.mark.parametrize("name", DAYS)
def test_every_verb_warns_below_ninety_days(name: str, facts: dict[str, Any]) -> None:
    days, authority_days, words = DAYS[name]
    found = public(days, authority_days)
    front = edge_cases.intent_of([edge_cases.REPLICA, edge_cases.THIRD], {"open": False, "site": edge_cases.SITE})
    host = {**facts_of(found, facts), "status": {"deployments": {}, "lock": None}}
    life = lifetime.of_host(found)
    assert life
    valid = lifetime.shown(life.to_json())
    _, lines = plan.of_host({"spark1": front}, {"spark1": host}, "spark1", "x")  # type: ignore[dict-item]
    assert [line for line in lines if "certificate" in line] == ([lifetime.warning(host)] if words else [])  # type: ignore[arg-type]
    document = status.document({"spark1": HostResult(front, host)}, "now", "x")  # type: ignore[arg-type]
    table = status_table.table(document)
    warning = document["hosts"][0]["certificate"]["warning"]
    assert warning.startswith(words)
    assert bool(warning) == bool(words) == (FIX in warning)
    assert f"spark1  {warning or valid}" in table
    certificates = {"by_name": "c", "by_address": "d"}
    seen = {"shown": certificates, "placed": certificates, "public": found, "at": NOW.timestamp()}
    (end,) = (one for one in gate.verdicts(EdgeTarget("", 8000), {"inside": seen}) if one.id == "certificate-end")
    assert (end.ok, end.observed) == ((None, warning) if words else (True, valid))


def test_a_host_without_a_certificate_has_no_end(facts: dict[str, Any]) -> None:
    for found in ({}, {"certificate": ""}, {"certificate": "-----BEGIN CERTIFICATE-----", "authority": "x"}):
        assert lifetime.of_host(found) is None
        assert lifetime.warning(facts_of(found, facts)) == ""  # type: ignore[arg-type]
    own = lifetime.of_host({**public(400), "authority": public(400)["authority"]})
    assert own
    assert own.to_json()["authority_ends"] is None
    assert lifetime.shown(own.to_json()) == f"the certificate is valid until {own.certificate:%Y-%m-%d}"


@pytest.mark.parametrize("first", lifetime.CERTIFICATES)
def test_the_certificate_that_ends_first_counts(first: str) -> None:
    site = authority.new_authority(NOW)
    later, sooner = (authority.new_certificate(site, ["spark1"], NOW - timedelta(days=age)) for age in (0, 700))
    found = {key: getattr(sooner if key == first else later, key) for key in lifetime.CERTIFICATES}
    life = lifetime.of_host({**found, "authority": site.certificate})
    assert life
    assert life.certificate == authority.certificates(sooner.certificate)[0].not_valid_after_utc


@pytest.mark.parametrize("file", ["tls.pem", "names.pem"])
@pytest.mark.parametrize(("days", "warns"), [(400, False), (91, False), (89, True), (-1, True)])
def test_the_spark_itself_warns_in_its_journal(days: float, warns: bool, file: str, tmp_path: Path) -> None:
    """The command of the unit, with openssl and sh of this machine."""
    unit = (paths.TEMPLATES / "vllm-edge-end.service").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    # systemd makes a space of a continued line, and has two dollar signs for one.
    script = line.partition("'")[2].rstrip("'").replace("$$", "$")
    (tmp_path / "tls.pem").write_text(public(400)["certificate"], encoding="utf-8")
    (tmp_path / file).write_text(public(days)["certificate"], encoding="utf-8")
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    end = f"{NOW + timedelta(days=days):%b} "
    assert done.stdout.startswith(f"<4>the certificate of the edge ends on {end}") == warns
    assert (
        done.stdout.endswith(
            "Fix: ansible-playbook deploy.yml, where the inventory is. See docs/runbooks/edge-certificate.md\n"
        )
        == warns
    )
    assert len(done.stdout.splitlines()) == warns
    (tmp_path / file).write_text("", encoding="utf-8")
    assert subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, check=False).returncode


def test_the_unit_has_the_days_of_a_renewal() -> None:
    unit = (paths.TEMPLATES / "vllm-edge-end.service").read_text(encoding="utf-8")
    assert f"-checkend {authority.RENEWAL_DAYS * 86400} " in unit
    assert "Wants=vllm-edge-end.timer" in (paths.TEMPLATES / "vllm-edge.service").read_text(encoding="utf-8")
