"""Where the controller's certificate comes from, and that it is the newest one.

The API server trusts the webhook by the authority in its MutatingWebhookConfiguration.
"""

import asyncio
import base64
import binascii
import datetime
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from gpu_device_plugin.errors import ClusterError, ConfigError, GpuPluginError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import Document, read, write
from gpu_device_plugin.settings.controller_settings import ControllerSettings
from gpu_device_plugin.web import certificate_authority as certificates
from gpu_device_plugin.web.tls import ServingTls

SECRET = "gpu-device-plugin-tls"  # noqa: S105 the name of one
_LOOK_SECONDS = 30.0
_TRIES = 5
_log = structlog.get_logger("certificates")


async def repeat(look: Callable[[], Awaitable[None]], seconds: float, failure: str) -> None:
    """Look again and again, and log each trouble once while it lasts."""
    trouble = ""
    while True:
        try:
            await look()
            trouble = ""
        except GpuPluginError as error:
            if str(error) != trouble:
                trouble = str(error)
                _log.warning(failure, error=trouble)
        await asyncio.sleep(seconds)


class Certificates:
    """Keeps a listener's certificate current: of files, or of the Secret that replicas share."""

    def __init__(
        self,
        settings: ControllerSettings,
        api: ApiServer,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self.tls = ServingTls()
        self.authority = b""  # PEM of who signed it, for those who call; empty until it is known
        self.ends: datetime.datetime | None = None  # when it ends; None until it is known
        self._settings, self._api = settings, api
        self._now, self._look_seconds = now, look_seconds

    async def start(self) -> None:
        """Have a certificate; waits until the Secret can be read. ConfigError for files of no use."""
        trouble = ""
        while True:
            try:
                await self._look()
            except ClusterError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("no certificate yet", error=trouble)
                await asyncio.sleep(self._api.availability.pace.first_seconds)
            else:
                return

    async def run(self) -> None:
        """Take up what has changed, and renew what is about to end, until cancelled."""
        await asyncio.sleep(self._look_seconds)
        what = "the certificate cannot be checked or renewed"
        await repeat(self._look, self._look_seconds, what)

    async def _look(self) -> None:
        if self._settings.tls_cert_file:
            certificate = self._file("tls_cert_file")
            key, authority = self._file("tls_key_file"), self._file("client_ca_file")
        else:
            held = await self._read_secret()
            certificate, key = held[certificates.SERVING], held[certificates.SERVING_KEY]
            authority = held[certificates.AUTHORITY]
        clients = authority
        if self._settings.webhook_client_ca_file:
            clients += b"\n" + self._file("webhook_client_ca_file")
        if self.tls.use(certificate, key, clients):
            self.ends, self.authority = certificates.ends(certificate), authority
            _log.info("certificate in use", ends=self.ends.isoformat())

    def _file(self, name: str) -> bytes:
        path = Path(getattr(self._settings, name))
        try:
            return path.read_bytes()
        except OSError as error:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} {str(path)!r}: {error.strerror}") from error

    async def _read_secret(self) -> Mapping[str, bytes]:
        """What the Secret holds, after it was made or renewed where that was due.

        Several replicas may do so at once: the first one's stands, the others read it.
        """
        collection = f"/api/v1/namespaces/{self._settings.namespace}/secrets"
        path = f"{collection}/{SECRET}"
        names = [name.strip() for name in self._settings.tls_names.split(",") if name.strip()]
        for _ in range(_TRIES):
            found = await read(self._api, path)
            held = _data(found)
            fresh = certificates.renew(held, names, self._settings.client_name, self._now())
            if fresh is None:
                return held
            body = _secret(found, self._settings.namespace, fresh)
            if await write(self._api, collection, SECRET, found, body) is not None:
                _log.info("certificate made", secret=f"{self._settings.namespace}/{SECRET}")
                return fresh
        raise ClusterError(f"{path} changes again and again")


def _data(secret: Document | None) -> dict[str, bytes]:
    """Those of our keys that can be read."""
    found = {}
    for key in certificates.KEYS:
        try:
            found[key] = base64.b64decode(((secret or {}).get("data") or {})[key], validate=True)
        except (KeyError, TypeError, binascii.Error):
            continue
    return found


def _secret(before: Document | None, namespace: str, data: Mapping[str, bytes]) -> Document:
    """The Secret with these keys; what else an operator put on it stays."""
    encoded = {key: base64.b64encode(value).decode("ascii") for key, value in data.items()}
    plain = dict(before or {"type": "kubernetes.io/tls"})
    plain["data"] = {**(plain.get("data") or {}), **encoded}
    plain |= {"apiVersion": "v1", "kind": "Secret"}
    plain.setdefault("metadata", {"name": SECRET, "namespace": namespace})
    return plain
