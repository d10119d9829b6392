"""When the certificate of an edge and its authority end. Pure: PEM texts in, what an owner reads out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from vllm_spark.core.refusal import Fix, message
from vllm_spark.core.types import Facts
from vllm_spark.edge import authority, succession

# The facts of an edge that are certificates which it shows.
CERTIFICATES = ("certificate", "names_certificate")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The ends of a certificate and of the authority that signed it, in UTC. `authority` is None if the host does not
    have that one: the owner's own files have none. `follower`: when another authority takes over, None if none waits.
    """

    certificate: datetime
    authority: datetime | None
    follower: datetime | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return the entry of a document for programs."""
        signer = f"{self.authority:%Y-%m-%dT%H:%M:%SZ}" if self.authority else None
        return {"ends": f"{self.certificate:%Y-%m-%dT%H:%M:%SZ}", "authority_ends": signer}

    def warning(self, at: float) -> str:
        """Return what an owner does within the last days of either, or before another authority signs, or nothing.
        `at`: seconds since the epoch."""
        now = datetime.fromtimestamp(at, UTC)
        what, end = "certificate", self.certificate
        if self.authority and self.authority <= end:
            what, end = "authority of the certificate", self.authority
        if now + timedelta(days=authority.RENEWAL_DAYS) < end:
            return followed(self.follower) if self.follower else ""
        when = f"ends in {(end - now).days} days, on {end:%Y-%m-%d}" if now < end else f"has ended on {end:%Y-%m-%d}"
        return message(
            f"the {what} {when}",
            "a longer life, because clients refuse an edge after it",
            Fix(
                "ansible-playbook deploy.yml", "It renews what it has signed; replace a certificate of your own first."
            ),
            runbook="edge-certificate",
        )


def shown(document: Mapping[str, Any]) -> str:
    """Return the sentence about what `to_json` has returned."""
    signer = f", its authority until {document['authority_ends'][:10]}" if document["authority_ends"] else ""
    return f"the certificate is valid until {document['ends'][:10]}{signer}"


def of_host(found: Mapping[str, Any]) -> Lifetime | None:
    """Return the ends of what a host has, None without a certificate that can be read. `found` has PEM texts: the
    certificates with their chains, of which the one that ends first counts, and `authority`, those that the host
    trusts."""
    shown = [chain[0] for key in CERTIFICATES if (chain := authority.certificates(found.get(key, "")))]
    if not shown:
        return None
    first = min(shown, key=lambda one: one.not_valid_after_utc)
    trusted = authority.certificates(found.get("authority", ""))
    signers = (one.not_valid_after_utc for one in trusted if authority.has_signed(one, first))
    return Lifetime(first.not_valid_after_utc, next(signers, None), succession.awaited(found.get("authority", "")))


def followed(at: datetime) -> str:
    """Return what an owner does until another authority takes over."""
    return message(
        f"another authority of the site signs from {at:%Y-%m-%d} on",
        "clients that trust both until then",
        Fix("vllm-spark trust ca.crt", "Every client gets this file in place of the old one."),
        runbook="edge-certificate",
    )


def warning(facts: Facts) -> str:
    """Return the warning of a host by the clock of this machine, nothing without a certificate."""
    life = of_host(facts.get("edge") or {})
    return life.warning(facts["controller_time"]["after"]) if life else ""
