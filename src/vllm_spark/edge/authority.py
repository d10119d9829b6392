"""The site's own certificate authority, and the certificates of its edges. Pure: PEM texts in, PEM texts out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vllm_spark.edge.config import is_address
from vllm_spark.edge.site import MAX_COMMON_NAME
from vllm_spark.inventory.edge import PRIVATE_NETWORKS

AUTHORITY_DAYS = 3650
# Apple's systems accept no longer life of a certificate, and only a deploy renews it.
CERTIFICATE_DAYS = 820
# A deploy renews a certificate that ends within this time.
RENEWAL_DAYS = 90
# What an authority may sign beside the names of its inventory: networks and domains that no public site has. Tailscale
# uses the addresses of providers.
NETWORKS = (*PRIVATE_NETWORKS, "100.64.0.0/10")
DOMAINS = ("localhost", "local", "home.arpa", "internal", "lan", "home")
# The clock of a client may be late.
SLACK = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both as PEM."""

    certificate: str
    private_key: str

    def __repr__(self) -> str:
        return "KeyPair()"  # an exception's text must not have the key


@dataclass(frozen=True, slots=True, repr=False)
class HostPair(KeyPair):
    """The certificates of a host. `names_certificate`: a second one with the same key and the names alone, because
    clients on BoringSSL (Bun) accept no address that name constraints permit. Empty if the host has no name."""

    names_certificate: str = ""


def new_authority(now: datetime, names: Sequence[str] = ()) -> KeyPair:
    """Return a certificate authority that can only sign certificates of hosts in private networks, in domains that no
    public site has, and of these names and addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"vllm-spark edge, {now:%Y-%m-%d}")])
    builder = _builder(name, name, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    permitted = [*map(_subtree, NETWORKS), *map(x509.DNSName, DOMAINS)]
    made = builder.add_extension(x509.NameConstraints(permitted, None), critical=True).sign(key, hashes.SHA256())
    return KeyPair(pem(edition(made, key, names)), pem_of_key(key))


def edition(certificate: x509.Certificate, own: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> x509.Certificate:
    """Return the certificate of an authority with more names that it may sign, and nothing else changed."""
    more = list(map(_subtree, outside(certificate, names)))
    if not more:
        return certificate
    builder = x509.CertificateBuilder(
        certificate.issuer,
        certificate.subject,
        own.public_key(),
        x509.random_serial_number(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.NameConstraints):
            value = x509.NameConstraints([*(value.permitted_subtrees or ()), *more], None)
        builder = builder.add_extension(value, extension.critical)
    return builder.sign(own, hashes.SHA256())


def outside(certificate: x509.Certificate, names: Iterable[str]) -> list[str]:
    """Return the names and addresses that an authority may not sign. One without constraints may sign all."""
    try:
        permitted = certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    except x509.ExtensionNotFound:
        return []
    return [name for name in dict.fromkeys(names) if not any(_is_within(name, one) for one in permitted)]


def _is_within(name: str, permitted: x509.GeneralName) -> bool:
    if isinstance(permitted, x509.IPAddress):
        network = ipaddress.ip_network(permitted.value)
        return is_address(name) and ipaddress.ip_address(name) in network
    return not is_address(name) and f".{name.lower()}".endswith(f".{permitted.value}")


def _subtree(name: str) -> x509.GeneralName:
    if is_address(name.partition("/")[0]):
        return x509.IPAddress(ipaddress.ip_network(name))
    return x509.DNSName(name.lower())


def new_certificate(authority: KeyPair, names: Sequence[str], now: datetime, *, asks: bool = False) -> HostPair:
    """Return the certificates of a host for its names and addresses, which end no later than their authority. `asks`:
    the host also shows the first to other edges."""
    key = ec.generate_private_key(ec.SECP256R1())
    alone = without_addresses(names)
    return HostPair(
        _signed(authority, key, names, now, asks=asks),
        pem_of_key(key),
        _signed(authority, key, alone, now) if alone else "",
    )


def without_addresses(names: Iterable[str]) -> list[str]:
    """Return the names that are no addresses."""
    return [name for name in names if not is_address(name)]


def _signed(
    authority: KeyPair, key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: datetime, *, asks: bool = False
) -> str:
    """Return a certificate of a host as PEM."""
    signer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer_key = key_of(authority.private_key)
    end = min(now + timedelta(days=CERTIFICATE_DAYS), signer.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:MAX_COMMON_NAME])])
    builder = _builder(subject, signer.subject, key.public_key(), now, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if asks else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
    )
    return pem(builder.sign(signer_key, hashes.SHA256()))


def renewal_reason(certificate: str, authority: str, names: Sequence[str], now: datetime, *, asks: bool = False) -> str:
    """Return why a host needs a new certificate, or nothing. `certificate` and `authority` are PEM; the first
    certificate of the authority signs. `asks`: the host shows it to other edges."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:
        return "the certificate cannot be read"
    signer, *others = certificates(authority)
    if any(has_signed(other, parsed) for other in others):
        return "another authority of the site signs now"
    if not has_signed(signer, parsed):
        return "the certificate is not of this site's authority"
    if missing := [name for name in names if name not in subject_names(parsed)]:
        return f"the certificate lacks {', '.join(missing)}"
    if asks and not _may_ask(parsed):
        return "the other edges of the site would refuse the certificate"
    return _end_reason(parsed.not_valid_after_utc, signer.not_valid_after_utc, now)


def _end_reason(ends: datetime, last: datetime, now: datetime) -> str:
    """Return why an end needs a new certificate, or nothing. `last` is the end of the authority."""
    if ends > last:
        return f"the certificate outlives its authority, which ends on {last:%Y-%m-%d}"
    # One that ends with its authority gains nothing.
    near = ends < last and now + timedelta(days=RENEWAL_DAYS) > ends
    return f"the certificate ends on {ends:%Y-%m-%d}" if near else ""


def has_signed(signer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return True if an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificates(text: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM text, none if it has none that can be read."""
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return []


def pair_fault(pair: KeyPair, names: Iterable[str], now: datetime) -> str:
    """Return what is wrong with an owner's certificate (the first of its chain) and key, or nothing."""
    try:
        parsed = x509.load_pem_x509_certificate(pair.certificate.encode())
    except ValueError:
        return "the certificate is not PEM"
    try:
        key = serialization.load_pem_private_key(pair.private_key.encode(), None)
    except (ValueError, TypeError):
        return "the private key is not PEM without a passphrase"
    if key.public_key() != parsed.public_key():
        return "the private key is of another certificate"
    if now > parsed.not_valid_after_utc:
        return f"the certificate has ended on {parsed.not_valid_after_utc:%Y-%m-%d}"
    if not set(names) & subject_names(parsed):
        return f"the certificate has none of the names {', '.join(names)}"
    return ""


def same_certificates(one: str, other: str) -> bool:
    """Return True if two PEM texts have the same certificates in the same order."""
    parsed = [x509.load_pem_x509_certificates(text.encode()) for text in (one, other)]
    return parsed[0] == parsed[1]


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate in hex, as TLS clients compute it."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def subject_names(certificate: x509.Certificate) -> set[str]:
    """Return the names and addresses of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return set(names.get_values_for_type(x509.DNSName)) | addresses


def _may_ask(certificate: x509.Certificate) -> bool:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usages


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - SLACK)
        .not_valid_after(end.astimezone(UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [
        x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name)
        for name in dict.fromkeys(names)
    ]


def key_of(text: str, passphrase: str = "") -> ec.EllipticCurvePrivateKey:
    """Return an authority's key. Raises ValueError or TypeError if it cannot be read with this passphrase."""
    found = serialization.load_pem_private_key(text.encode(), passphrase.encode() or None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an EC key")
    return found


def pem(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def pem_of_key(key: ec.EllipticCurvePrivateKey, passphrase: str = "") -> str:
    """Return a key as PEM, encrypted if there is a passphrase."""
    protection = (
        serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else serialization.NoEncryption()
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection).decode()
