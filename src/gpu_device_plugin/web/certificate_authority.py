"""An authority of our own, and the certificates of the controller and of kube-scheduler.

The values are those of a Secret: key -> PEM. Anyone who holds them renews them; nothing is on disk.
"""

import datetime
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_device_plugin.errors import ConfigError

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVING, SERVING_KEY = "tls.crt", "tls.key"
CLIENT, CLIENT_KEY = "client.crt", "client.key"
KEYS = (AUTHORITY, AUTHORITY_KEY, SERVING, SERVING_KEY, CLIENT, CLIENT_KEY)

_DAY = datetime.timedelta(days=1)
_AUTHORITY_LIFE, _LIFE = 3650 * _DAY, 365 * _DAY
# Renewed this long before their end.
_AUTHORITY_REST, _REST = 2 * _LIFE, 120 * _DAY
# Clocks of a cluster differ.
_SLACK = datetime.timedelta(hours=1)


def renew(
    held: Mapping[str, bytes], names: Sequence[str], client: str, now: datetime.datetime
) -> dict[str, bytes] | None:
    """The certificates to use from now on, or None where the held ones do.

    A new authority signs nothing when it is made, but from the next renewal on, eight months
    later: by then everybody has read it. Until its own end the former one stays in `ca.crt`.

    Where a part of `held` is missing or cannot be read, all of it is made again. `client` is the
    common name of kube-scheduler's certificate.
    """
    found = _load_usable(held, now)
    if found is None:
        newest, key = _authority(now)
        return _sign(newest, key, names, client, now) | _bundle((newest,), key)
    authorities, key, serving, calling = found
    newest = authorities[0]
    wanted = _as_certified(names), _as_certified([client])
    is_named = (_names_of(serving), _names_of(calling)) == wanted
    if serving.not_valid_after_utc - now > _REST and is_named:
        return None
    signed = _sign(newest, key, names, client, now)
    if newest.not_valid_after_utc - now < _AUTHORITY_REST:
        newest, key = _authority(now)
        authorities.insert(0, newest)
    living = [each for each in authorities if each.not_valid_after_utc > now]
    return signed | _bundle(living, key)


class _Loaded(NamedTuple):
    authorities: list[x509.Certificate]  # the newest first
    key: ec.EllipticCurvePrivateKey  # the newest authority's
    serving: x509.Certificate
    calling: x509.Certificate


def _load_usable(held: Mapping[str, bytes], now: datetime.datetime) -> _Loaded | None:
    """What the Secret holds; None if any part is amiss."""
    try:
        authorities = x509.load_pem_x509_certificates(held[AUTHORITY])
        key = _private_key(held[AUTHORITY_KEY])
        serving = _pair(held[SERVING], held[SERVING_KEY])
        calling = _pair(held[CLIENT], held[CLIENT_KEY])
    except (KeyError, ValueError):
        return None
    newest = authorities[0]
    is_whole = newest.public_key() == key.public_key() and newest.not_valid_after_utc > now
    return _Loaded(authorities, key, serving, calling) if is_whole else None


def _pair(certificate: bytes, key: bytes) -> x509.Certificate:
    """The certificate, if the key is its own."""
    found = x509.load_pem_x509_certificate(certificate)
    if found.public_key() != _private_key(key).public_key():
        raise ValueError
    return found


def ends(certificate: bytes) -> datetime.datetime:
    """When a PEM certificate ends."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"no PEM certificate: {error}") from error


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError  # noqa: TRY004 all that is amiss is made again
    return key


def _authority(now: datetime.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"gpu-device-plugin authority of {now:%Y-%m-%d}")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(name, key, now, _AUTHORITY_LIFE)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _sign(
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    names: Iterable[str],
    client: str,
    now: datetime.datetime,
) -> dict[str, bytes]:
    """A certificate for the controller and one for kube-scheduler, each with its key."""

    def sign_one(
        common: str, usage: x509.ObjectIdentifier, names: Iterable[str]
    ) -> tuple[bytes, bytes]:
        own = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = (
            _builder(_name(common), own, now, _LIFE)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(alternatives, critical=False)
            .add_extension(issuer, critical=False)
        )
        return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), _pem(own)

    serving = sign_one("gpu-device-plugin-controller", ExtendedKeyUsageOID.SERVER_AUTH, names)
    calling = sign_one(client, ExtendedKeyUsageOID.CLIENT_AUTH, [client])
    return dict(zip((SERVING, SERVING_KEY, CLIENT, CLIENT_KEY), (*serving, *calling), strict=True))


def _builder(
    name: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + life)
    )


def _bundle(
    authorities: Iterable[x509.Certificate], key: ec.EllipticCurvePrivateKey
) -> dict[str, bytes]:
    bundle = b"".join(each.public_bytes(Encoding.PEM) for each in authorities)
    return {AUTHORITY: bundle, AUTHORITY_KEY: _pem(key)}


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _as_certified(names: Iterable[str]) -> set[str]:
    """As `_names_of` gives them: an IPv6 address has many ways to be written."""
    return {str(_general_name(name).value) for name in names}


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(each.value) for each in found}
