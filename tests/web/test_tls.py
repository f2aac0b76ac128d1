"""The promise: a listener serves the newest usable certificate, nothing of those before, and never none."""

import datetime
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.web.certificate_authority import (
    AUTHORITY,
    CLIENT,
    CLIENT_KEY,
    SERVING,
    SERVING_KEY,
    renew,
)
from gpu_device_plugin.web.tls import ServingTls, caller_name

_NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)  # real: OpenSSL has no other


def a_set(client: str = "scheduler") -> dict[str, bytes]:
    """An authority and its certificates."""
    made = renew({}, ["localhost"], client, _NOW)
    assert made is not None
    return made


def shown_and_called(
    tls: ServingTls, folder: Path, client: Mapping[str, bytes] | None = None
) -> tuple[bytes, str]:
    """What one connection is shown (DER), and the name by which the listener knows the caller."""
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.check_hostname, calling.verify_mode = False, ssl.CERT_NONE
    if client:
        pair = folder / "client.pem"
        pair.write_bytes(client[CLIENT] + client[CLIENT_KEY])
        calling.load_cert_chain(pair)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = tls.context.wrap_bio(to_server, to_client, server_side=True)
    theirs = calling.wrap_bio(to_client, to_server)
    waiting = [theirs, ours]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting
    return theirs.getpeercert(binary_form=True) or b"", caller_name(ours.getpeercert())


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


@pytest.mark.parametrize("wrong", ["key", "authority", "certificate"])
def test_what_does_not_fit_together_leaves_the_former_certificate_in_use(
    wrong: str, tmp_path: Path
) -> None:
    """A new tls.crt is often there before its tls.key; putting the old one back changes nothing."""
    before, later = a_set(), a_set()
    tls = ServingTls()
    tls.use(before[SERVING], before[SERVING_KEY], before[AUTHORITY])
    found = {
        "key": (later[SERVING], before[SERVING_KEY], before[AUTHORITY]),
        "authority": (later[SERVING], later[SERVING_KEY], b"junk"),
        "certificate": (b"", later[SERVING_KEY], later[AUTHORITY]),
    }[wrong]
    with pytest.raises(ConfigError):
        tls.use(*found)
    for _ in range(2):
        assert shown_and_called(tls, tmp_path, before) == (der(before[SERVING]), "scheduler")
        assert not tls.use(before[SERVING], before[SERVING_KEY], before[AUTHORITY])


def test_who_an_authority_of_before_signed_may_call_no_more(tmp_path: Path) -> None:
    """Deleting the Secret ends the certificates of before on replicas that run."""
    before, later = a_set(), a_set()
    tls = ServingTls()
    tls.use(before[SERVING], before[SERVING_KEY], before[AUTHORITY])
    assert tls.use(later[SERVING], later[SERVING_KEY], later[AUTHORITY])
    assert shown_and_called(tls, tmp_path, later) == (der(later[SERVING]), "scheduler")
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shown_and_called(tls, tmp_path, before)


def test_a_certificate_of_another_key_type_replaces_the_one_before(tmp_path: Path) -> None:
    """OpenSSL would keep one of each type, and go on serving the first."""
    before = a_set()
    tls = ServingTls()
    tls.use(before[SERVING], before[SERVING_KEY], before[AUTHORITY])
    certificate, key = an_rsa_pair()
    tls.use(certificate, key, before[AUTHORITY])
    assert shown_and_called(tls, tmp_path) == (der(certificate), "")


def an_rsa_pair() -> tuple[bytes, bytes]:
    """A certificate that signed itself, and its key, PEM."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controller")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(_NOW).not_valid_after(_NOW + datetime.timedelta(days=1))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), pem
