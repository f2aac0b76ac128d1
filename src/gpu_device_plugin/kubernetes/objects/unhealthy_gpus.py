"""The ConfigMap `unhealthy-gpu-<node>` (R-542): cards that operators take out, and that agents found sick."""

from collections.abc import Callable, Sequence

import msgspec

from gpu_device_plugin.domain.cards.named_cards import list_entries
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Bare

NAMESPACE = "kube-system"
PREFIX = "unhealthy-gpu-"
KEY = "gpus"
WRITTEN = "gpu-device-plugin/unhealthy-gpus"
"""Annotation of such a ConfigMap: the entries that the controller wrote; the others are an operator's."""
WRITTEN_BY = "controller"
"""Value of a label of the same key: the controller wrote there once, and follows it."""
COLLECTION = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class _Data(msgspec.Struct):
    gpus: str = ""


class UnhealthyGpus(Bare):
    """Such a ConfigMap; the namespace has large ones, of which no more is kept."""

    data: _Data | None = None

    @property
    def listed(self) -> tuple[str, ...]:
        """All of its entries."""
        return list_entries(self.data.gpus if self.data else "")

    @property
    def written(self) -> tuple[str, ...]:
        """Those that the controller wrote."""
        return list_entries(self.annotations.get(WRITTEN, ""))

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that somebody else wrote."""
        written = self.written
        return tuple(entry for entry in self.listed if entry not in written)


class TakenOutWatch:
    """Follows an operator's entries of one node, if we may; `on_change` is called with all of them."""

    def __init__(
        self, api: ApiServer, node: str, on_change: Callable[[tuple[str, ...]], None]
    ) -> None:
        def replace(found: Sequence[UnhealthyGpus]) -> None:
            on_change(found[0].operators if found else ())

        self.reflection = Reflection(
            api,
            Source(COLLECTION, f"metadata.name={PREFIX}{node}", is_optional=True),
            UnhealthyGpus,
            ObjectListener(replace, lambda found: replace((found,)), lambda _: replace(())),
        )
