"""The TLS side of a listener: its certificate can change while it serves."""

import os
import ssl

from gpu_device_plugin.errors import ConfigError


class ServingTls:
    """The listener's context hands each new connection to the newest certificate's own context.

    Connections that are open keep what they began with. A context of its own each time, because
    OpenSSL keeps what a context was given before: the half of a pair that it then refuses, a
    certificate of another key type, and authorities that no longer count.
    A client may show a certificate. One that none of our authorities signed ends the handshake.
    """

    def __init__(self) -> None:
        self.context = _context()
        # Also called for a client that names no server.
        self.context.sni_callback = self._hand_over
        self._serving: ssl.SSLContext | None = None
        self._used: tuple[bytes, bytes, bytes] | None = None

    def _hand_over(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _context: ssl.SSLContext
    ) -> int | None:
        if self._serving is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._serving
        return None

    def use(self, certificate: bytes, key: bytes, client_authorities: bytes) -> bool:
        """Serve with this from the next connection on; whether it differs. ConfigError if unusable."""
        if self._used == (certificate, key, client_authorities):
            return False
        serving = _context()
        # OpenSSL takes only a path; a path to memory keeps the key off the disk.
        descriptor = os.memfd_create("serving-certificate")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(certificate + b"\n" + key)
            serving.load_cert_chain(f"/proc/self/fd/{descriptor}")
            if client_authorities:
                serving.load_verify_locations(cadata=client_authorities.decode("ascii"))
        except (OSError, ValueError, ssl.SSLError) as error:
            raise ConfigError(f"certificate, key and client authorities: {error}") from error
        finally:
            os.close(descriptor)
        self._serving, self._used = serving, (certificate, key, client_authorities)
        return True


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    # Python 3.13 refuses authorities without a key identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # Who resumes a session shows no certificate again: an authority that is gone would go on counting.
    context.num_tickets = 0
    return context


def caller_name(peer: object) -> str:
    """Common name of a client's verified certificate, as `ssl` gives it; "" for none.

    >>> caller_name({"subject": ((("commonName", "system:kube-scheduler"),),)})
    'system:kube-scheduler'
    """
    subject = peer.get("subject", ()) if isinstance(peer, dict) else ()
    return next((str(v) for part in subject for k, v in part if k == "commonName"), "")
