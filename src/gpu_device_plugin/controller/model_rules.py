"""The catalogue and the profile as the cluster has them now."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from gpu_device_plugin.controller.series_labels import SeriesLabels
from gpu_device_plugin.domain.models.model_catalogue import Catalogue
from gpu_device_plugin.domain.models.profile_rules import ProfileRule
from gpu_device_plugin.errors import ClusterError, ConfigError, clip
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import read
from gpu_device_plugin.kubernetes.client.reflector import (
    ObjectListener,
    Reflection,
    Source,
    listen_by_key,
)
from gpu_device_plugin.kubernetes.client.wire import Bare, ConfigMap
from gpu_device_plugin.kubernetes.objects.events import ConfigMapRef, EventNote, Events
from gpu_device_plugin.settings.models_and_profiles import load_catalogue, parse_profile

NAMESPACE = "kube-system"
PROFILE, PROFILE_KEY = "acs-profile", "selectors"
CATALOGUE, CATALOGUE_KEY = "gpu-device-plugin-models", "models"
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_log = structlog.get_logger("models")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Key(Generic[Value]):
    """One key of a ConfigMap."""

    name: str
    key: str
    parse: Callable[[str], Value]  # its text as a value; the empty text is the default


class FollowedKey(Generic[Value]):
    """A key of a ConfigMap as a value; one that cannot be parsed leaves the value before it.

    A process that has read no good one since its start has no value: `trouble` says so. Else one
    replica would apply rules that another one has never seen.
    """

    def __init__(
        self,
        api: ApiServer,
        key: _Key[Value],
        post: Callable[[EventNote], None],
        on_change: Callable[[Value], None] = lambda _: None,
    ) -> None:
        self.value = key.parse("")
        self._key, self._post, self._on_change = key, post, on_change
        self._text: str | None = None  # that of `value`
        self._why_none = ""
        self.reflection = Reflection(
            api,
            Source(f"/api/v1/namespaces/{NAMESPACE}/configmaps", f"metadata.name={key.name}"),
            ConfigMap,
            ObjectListener(self._replace, self._put, lambda _: self._replace(())),
        )

    @property
    def trouble(self) -> str:
        """Why there is no value yet, or ""."""
        if self._text is not None:
            return ""
        none = "the catalogue and the profile are not loaded"
        return self._why_none or self.reflection.trouble or none

    def _replace(self, found: Sequence[ConfigMap]) -> None:
        for each in found:
            self._put(each)
        if not found:
            self._take("")

    def _put(self, found: ConfigMap) -> None:
        text = (found.data or {}).get(self._key.key, "")
        try:
            self._take(text)
        except ConfigError as error:
            meta = found.metadata
            about = ConfigMapRef(NAMESPACE, meta.name, meta.uid)
            then = "A replica of the controller that has read an earlier one keeps that"
            if self._text is None:
                self._why_none = f"ConfigMap {about}: {error}"
                then = (
                    "This replica has read no earlier one: until it is mended the webhook refuses"
                )
            _log.warning("ConfigMap not understood", config_map=str(about), error=str(error))
            self._post(EventNote(about, "BadConfigMap", f"{error}. {then}"))

    def _take(self, text: str) -> None:
        if text != self._text:
            self.value, self._text, self._why_none = self._key.parse(text), text, ""
            _log.info("ConfigMap taken over", config_map=self._key.name, key=self._key.key)
            self._on_change(self.value)


class ModelRules:
    """Follows both ConfigMaps, and the labels of namespaces that rules may select by."""

    def __init__(
        self,
        api: ApiServer,
        post: Callable[[EventNote], None],
        on_catalogue: Callable[[Catalogue], None] = lambda _: None,
    ) -> None:
        """`on_catalogue` is called when the catalogue is loaded, and when it has changed."""
        self._api = api
        self._catalogue = FollowedKey(
            api, _Key(CATALOGUE, CATALOGUE_KEY, load_catalogue), post, on_catalogue
        )
        self._profile = FollowedKey(api, _Key(PROFILE, PROFILE_KEY, parse_profile), post)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._listed = Reflection(
            api,
            Source("/api/v1/namespaces", ""),
            Bare,
            listen_by_key(
                lambda found: found.metadata.name, lambda: self._namespaces, self._put, self._drop
            ),
        )

    @property
    def catalogue(self) -> Catalogue:
        return self._catalogue.value

    @property
    def profile(self) -> Sequence[ProfileRule]:
        return self._profile.value

    @property
    def trouble(self) -> str:
        """Why no pod can be judged yet, or ""."""
        if trouble := self._catalogue.trouble or self._profile.trouble:
            return trouble
        if not self._listed.is_synced:
            return self._listed.trouble or "the namespaces are not loaded"
        return ""

    async def run(self) -> None:
        await asyncio.gather(*(each.run() for each in self._reflections))

    async def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Labels of a namespace, if any rule asks for them; a new one is read by one GET.

        Anybody may name one: so no other path is asked for, and one at a time.

        ClusterError: The API server does not say, or no namespace can have this name.
        """
        if all(rule.namespaces is None for rule in self.profile):
            return {}
        if _NAMESPACE.fullmatch(name) is None:
            raise ClusterError(f"{clip(name)!r} is no name of a namespace")
        if name not in self._namespaces:
            async with self._one_at_a_time:
                found = await read(self._api, f"/api/v1/namespaces/{name}")
            return ((found or {}).get("metadata") or {}).get("labels") or {}
        return self._namespaces[name]

    @property
    def _reflections(self) -> Sequence[Reflection[ConfigMap] | Reflection[Bare]]:
        return self._catalogue.reflection, self._profile.reflection, self._listed

    def _put(self, found: Bare) -> None:
        self._namespaces[found.metadata.name] = found.labels

    def _drop(self, name: str) -> None:
        self._namespaces.pop(name, None)


class Models:
    """Every replica follows the rules, if they are served; the leader writes nodes' labels."""

    def __init__(
        self,
        api: ApiServer,
        identity: str,
        cards: Callable[[str], Sequence[str] | None],
        leads: Callable[[], bool],
        *,
        is_served: bool,
    ) -> None:
        self._is_served = is_served
        self._events = Events(api, identity)
        self.post = self._events.post
        self.labels = SeriesLabels(api, cards, leads)
        self.rules = ModelRules(api, self._events.post, self.labels.catalogue_changed)

    @property
    def trouble(self) -> str:
        """Why a replica that serves them has not read the rules yet, or ""."""
        return self.rules.trouble if self._is_served else ""

    async def run(self) -> None:
        served = (self.rules.run, self.labels.run) if self._is_served else ()
        await asyncio.gather(*(run() for run in (*served, self._events.run)))
