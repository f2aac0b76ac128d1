"""The authority in the MutatingWebhookConfiguration, by which the API server trusts the webhook."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gpu_device_plugin.controller.webhook_certificates import repeat
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import read, replace

_log = structlog.get_logger("certificates")


_TRUST_SECONDS = 5.0
_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"


class WebhookTrust:
    """Keeps `caBundle` what it has to be; the configuration may come later than the controller."""

    def __init__(
        self,
        api: ApiServer,
        name: str,
        authority: Callable[[], bytes],
        look_seconds: float = _TRUST_SECONDS,
    ) -> None:
        self._api, self._path, self._authority = api, _PATH + name, authority
        self._look_seconds = look_seconds

    async def run(self) -> None:
        await repeat(self._look, self._look_seconds, "the webhook's caBundle cannot be written")

    async def _look(self) -> None:
        found = await read(self._api, self._path)
        bundle = base64.b64encode(self._authority()).decode("ascii")
        if found is None or not bundle:
            return
        webhooks = [_trust(each, bundle) for each in found.get("webhooks") or ()]
        if webhooks != found.get("webhooks"):
            # One that another replica has written meanwhile is read again the next time.
            body = {"apiVersion": "admissionregistration.k8s.io/v1", **found, "webhooks": webhooks}
            body["kind"] = "MutatingWebhookConfiguration"
            if await replace(self._api, self._path, body) is not None:
                _log.info("the webhook's caBundle is written", path=self._path)


def _trust(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**(webhook.get("clientConfig") or {}), "caBundle": bundle}}
