"""The API server trusts the webhook by the authority in its MutatingWebhookConfiguration."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.listing import read, replace
from gpu_device_plugin.errors import ClusterError

_LOOK_SECONDS = 5.0
_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
_log = structlog.get_logger("webhook")


class WebhookTrust:
    """Keeps `caBundle` what it has to be; the configuration may come later than the controller."""

    def __init__(
        self,
        api: ApiServer,
        name: str,
        authority: Callable[[], bytes],
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Remember where to write.

        Args:
            api: The cluster.
            name: Of the MutatingWebhookConfiguration.
            authority: PEM of who signed the serving certificate; empty until it is known.
            look_seconds: Between two reads.
        """
        self._api, self._path, self._authority = api, _PATH + name, authority
        self._look_seconds = look_seconds

    async def run(self) -> None:
        """Look, and write where it differs, until cancelled."""
        trouble = ""
        while True:
            try:
                await self._look()
                trouble = ""
            except ClusterError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("the webhook's caBundle cannot be written", error=trouble)
            await asyncio.sleep(self._look_seconds)

    async def _look(self) -> None:
        found = await read(self._api, self._path)
        bundle = base64.b64encode(self._authority()).decode("ascii")
        if found is None or not bundle:
            return
        webhooks = [_trusting(each, bundle) for each in found.get("webhooks") or ()]
        if webhooks != found.get("webhooks"):
            # One that another replica has written meanwhile is read again the next time.
            body = {"apiVersion": "admissionregistration.k8s.io/v1", **found, "webhooks": webhooks}
            body["kind"] = "MutatingWebhookConfiguration"
            if await replace(self._api, self._path, body) is not None:
                _log.info("the webhook's caBundle is written", path=self._path)


def _trusting(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**(webhook.get("clientConfig") or {}), "caBundle": bundle}}
