"""How the site's authority learns new names, and how another one follows it before it ends. Pure.

The first certificate of an authority is the one that signs. A second one is that of the authority that follows: clients
get both, the old one signs at first, and the new one from `takes_over` on. The certificates that the old one has signed
are then replaced by the next deploy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509

from vllm_spark.edge import authority
from vllm_spark.edge.authority import SLACK, KeyPair

# A deploy makes the authority that follows within this time before the end of the present one.
FOLLOW_DAYS = 730
# For so long, or half of what is left if that is less, the old one still signs: the time to give clients both.
HANDOVER_DAYS = 365


@dataclass(frozen=True, slots=True, repr=False)
class Authority(KeyPair):
    """The authority of a site. `certificate`: what clients trust, one or two, that which signs first. `private_key`:
    of the first. `next_key`: of the second while it waits, then empty."""

    next_key: str = ""


def kept(site: Authority, names: Sequence[str], now: datetime) -> Authority:
    """Return the authority as a deploy at a time needs it: with the names of the inventory, with one that follows in
    time, and without one that has ended. Itself if nothing is due."""
    site = _widened(site, names)
    old, *others = sorted(authority.certificates(site.certificate), key=lambda one: one.not_valid_before_utc)
    if not others and old.not_valid_after_utc < now + timedelta(days=FOLLOW_DAYS):
        made = authority.new_authority(now, names)
        others = authority.certificates(made.certificate)
        site = Authority(site.certificate + made.certificate, site.private_key, made.private_key)
    if others and site.next_key and now >= takes_over(old, others[-1]):
        site = Authority(_pem([others[-1], old]), site.next_key)
    if others and not site.next_key and old.not_valid_after_utc < now:
        site = replace(site, certificate=_pem(others))
    return site


def takes_over(old: x509.Certificate, new: x509.Certificate) -> datetime:
    """Return when an authority begins to sign in place of the one that it follows. At once if that has ended."""
    made = new.not_valid_before_utc + SLACK
    left = max(old.not_valid_after_utc - made, timedelta())
    return made + min(timedelta(days=HANDOVER_DAYS), left / 2)


def signers(text: str) -> list[x509.Certificate]:
    """Return, of what a client trusts, the authority that signs and the one that waits for it, if there is one."""
    found = authority.certificates(text)
    return [one for one in found if one.not_valid_before_utc >= found[0].not_valid_before_utc]


def awaited(text: str) -> datetime | None:
    """Return when the authority that waits takes over, of what a client trusts; None if none waits."""
    found = signers(text)
    return takes_over(found[0], found[1]) if len(found) > 1 else None


def _widened(site: Authority, names: Sequence[str]) -> Authority:
    """Return an authority whose certificates may sign the names, with the same keys and ends. One whose key is gone
    signs nothing any more."""
    found = authority.certificates(site.certificate)
    if not any(authority.outside(one, names) for one in found):
        return site
    keys = [authority.key_of(text) for text in (site.private_key, site.next_key) if text]
    wide = []
    for one in found:
        own = next((key for key in keys if key.public_key() == one.public_key()), None)
        wide.append(authority.edition(one, own, names) if own else one)
    return replace(site, certificate=_pem(wide))


def _pem(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(map(authority.pem, certificates))
