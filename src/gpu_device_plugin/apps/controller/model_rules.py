"""The catalogue and the profile as the cluster has them now."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.events import ConfigMapRef, EventNote
from gpu_device_plugin.cluster.listing import read
from gpu_device_plugin.cluster.reflector import Listener, Reflection, Source
from gpu_device_plugin.cluster.wire import Bare, ConfigMap
from gpu_device_plugin.config.models_by_label import load_catalogue, parse_profile
from gpu_device_plugin.domain.models.catalogue import Catalogue
from gpu_device_plugin.domain.models.profile import ProfileRule
from gpu_device_plugin.errors import ClusterError, ConfigError, clip

NAMESPACE = "kube-system"
PROFILE, PROFILE_KEY = "acs-profile", "selectors"
CATALOGUE, CATALOGUE_KEY = "gpu-device-plugin-models", "models"
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_log = structlog.get_logger("models")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Key(Generic[Value]):
    """One key of a ConfigMap.

    Attributes:
        name: The ConfigMap's.
        key: Of its data; others are nothing of ours.
        parse: Its text as a value; the empty text is the default.
    """

    name: str
    key: str
    parse: Callable[[str], Value]


class FollowedKey(Generic[Value]):
    """A key of a ConfigMap as a value; one that cannot be parsed leaves the value before it.

    Attributes:
        value: What counts now.
    """

    def __init__(
        self,
        api: ApiServer,
        key: _Key[Value],
        post: Callable[[EventNote], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.value = key.parse("")
        self._key, self._post, self._on_change = key, post, on_change
        self._text = ""
        self.reflection = Reflection(
            api,
            Source(f"/api/v1/namespaces/{NAMESPACE}/configmaps", f"metadata.name={key.name}"),
            ConfigMap,
            Listener(self._replace, self._put, lambda _: self._replace(())),
        )

    def _replace(self, found: Sequence[ConfigMap]) -> None:
        for each in found:
            self._put(each)
        if not found:
            self._take("")
        self._on_change()

    def _put(self, found: ConfigMap) -> None:
        text = (found.data or {}).get(self._key.key, "")
        try:
            self._take(text)
        except ConfigError as error:
            meta = found.metadata
            about = ConfigMapRef(NAMESPACE, meta.name, meta.uid)
            told = f"{error}. What was read before still counts"
            _log.warning("ConfigMap not understood", config_map=str(about), error=str(error))
            self._post(EventNote(about, "BadConfigMap", told))

    def _take(self, text: str) -> None:
        if text != self._text:
            self.value, self._text = self._key.parse(text), text
            _log.info("ConfigMap taken over", config_map=self._key.name, key=self._key.key)
            self._on_change()


class ModelRules:
    """Follows both ConfigMaps, and the labels of namespaces that rules may select by."""

    def __init__(
        self,
        api: ApiServer,
        post: Callable[[EventNote], None],
        on_catalogue: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin with the packaged catalogue and no profile.

        Args:
            api: The cluster.
            post: Takes Events about the ConfigMaps.
            on_catalogue: Called when the catalogue is loaded, and when it has changed.
        """
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
            Listener(self._replace, self._put, self._remove),
        )

    @property
    def catalogue(self) -> Catalogue:
        """Series and drivers."""
        return self._catalogue.value

    @property
    def is_catalogue_loaded(self) -> bool:
        """Whether `catalogue` has what the operator says."""
        return self._catalogue.reflection.is_synced

    @property
    def profile(self) -> Sequence[ProfileRule]:
        """The rules, in order."""
        return self._profile.value

    @property
    def trouble(self) -> str:
        """Why no pod can be judged yet, or ""."""
        for each in self._reflections:
            if not each.is_synced:
                return each.trouble or "the catalogue and the profile are not loaded"
        return ""

    async def run(self) -> None:
        """Follow until cancelled."""
        await asyncio.gather(*(each.run() for each in self._reflections))

    async def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Labels of a namespace, if any rule asks for them; a new one is read by one GET.

        Anybody may name one: so no other path is asked for, and one at a time.

        Raises:
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

    def _replace(self, found: Sequence[Bare]) -> None:
        self._namespaces.clear()
        for each in found:
            self._put(each)

    def _put(self, found: Bare) -> None:
        self._namespaces[found.metadata.name] = found.metadata.labels or {}

    def _remove(self, gone: Bare) -> None:
        self._namespaces.pop(gone.metadata.name, None)
