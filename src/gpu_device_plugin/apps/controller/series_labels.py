"""Writes the series of each node's cards as its label, from the catalogue."""

from collections.abc import Callable, Sequence

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.cluster_watch import ClusterNode
from gpu_device_plugin.cluster.patches import Patch, PatchQueue
from gpu_device_plugin.domain.models.catalogue import MODEL_LABEL, Catalogue, series_change


class SeriesLabels:
    """Keeps the labels of all nodes with cards right; one that another program changes too."""

    def __init__(
        self,
        api: ApiServer,
        models: Callable[[str], Sequence[str] | None],
        catalogue: Callable[[], Catalogue | None],
        writes: Callable[[], bool],
    ) -> None:
        """Begin without nodes.

        Args:
            api: The cluster.
            models: Node -> what its cards are called; None where its annotation says nothing.
            catalogue: The catalogue; None until it is loaded.
            writes: Whether this replica keeps the labels now.
        """
        self._models, self._catalogue, self._writes = models, catalogue, writes
        # The series as the node's label has it, and as we wrote it.
        self._nodes: dict[str, tuple[str | None, str | None]] = {}
        self._queue: PatchQueue[str] = PatchQueue(api, self._difference, lambda _: None)

    def node_changed(self, name: str, node: ClusterNode | None) -> None:
        """A node with cards is there, has changed, or (None) is gone or has none any more."""
        if node is None:
            self._nodes.pop(name, None)
            self._queue.drop(name)
            return
        self._nodes[name] = node.labels.get(MODEL_LABEL), node.series
        self._mark(name)

    def all_changed(self) -> None:
        """The catalogue has changed, or it is this replica's turn to write."""
        for name in self._nodes:
            self._mark(name)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    def _mark(self, name: str) -> None:
        """Thousands of nodes are as they should be; kube-scheduler would wait for each look."""
        if self._wanted(name) is not None:
            self._queue.mark(name)

    def _difference(self, name: str) -> Patch | None:
        return self._wanted(name) if self._writes() else None

    def _wanted(self, name: str) -> Patch | None:
        node, catalogue = self._nodes.get(name), self._catalogue()
        models = self._models(name)
        if node is None or catalogue is None or models is None:
            return None
        series = catalogue.series_of(models)
        change = series_change(*node, series)
        if change is None:
            return None
        metadata: dict[str, object] = {"annotations": dict(change.annotations)}
        if change.labels:
            metadata["labels"] = dict(change.labels)
        return Patch(f"/api/v1/nodes/{name}", metadata)
