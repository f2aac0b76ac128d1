"""Models, drivers and profiles by label: what follows, answers and writes, put together."""

import asyncio
from collections.abc import Callable, Sequence

from gpu_device_plugin.apps.controller.model_rules import ModelRules
from gpu_device_plugin.apps.controller.series_labels import SeriesLabels
from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.events import Events
from gpu_device_plugin.domain.models.catalogue import Catalogue


class Models:
    """Every replica follows the rules; the leader writes nodes' labels.

    Attributes:
        rules: The catalogue and the profile.
        labels: The nodes' series.
    """

    def __init__(
        self,
        api: ApiServer,
        identity: str,
        cards: Callable[[str], Sequence[str] | None],
        leads: Callable[[], bool],
    ) -> None:
        """Begin with the packaged catalogue and no profile.

        Args:
            api: The cluster.
            identity: Of this replica, for Events.
            cards: Node -> what its cards are called, or None where that is not known.
            leads: Whether this replica is the one that writes.
        """
        self._events = Events(api, identity)
        self.labels = SeriesLabels(api, cards, self._catalogue, leads)
        self.rules = ModelRules(api, self._events.post, self.labels.all_changed)

    async def run(self) -> None:
        """Follow, and write, until cancelled."""
        await asyncio.gather(self.rules.run(), self.labels.run(), self._events.run())

    def _catalogue(self) -> Catalogue | None:
        return self.rules.catalogue if self.rules.is_catalogue_loaded else None
