"""The label with the series of a node's cards, which the controller writes."""

from collections.abc import Callable, Sequence

from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, Catalogue, series_change
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.patches import Patch, PatchQueue
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode


class SeriesLabels:
    """Keeps the labels of all nodes with cards right; one that another program changes too."""

    def __init__(
        self,
        api: ApiServer,
        models: Callable[[str], Sequence[str] | None],
        writes: Callable[[], bool],
    ) -> None:
        self._models = models
        self._catalogue: Catalogue | None = None  # until it has what the operator says
        # The series as the node's label has it, and as we wrote it.
        self._nodes: dict[str, tuple[str | None, str | None]] = {}
        self._queue = PatchQueue[str](
            api, lambda name: self._wanted(name) if writes() else None, lambda _: None
        )
        self.run = self._queue.run

    def node_changed(self, name: str, node: ClusterNode | None) -> None:
        """A node with cards is there, has changed, or (None) is gone or has none any more."""
        if node is None:
            self._nodes.pop(name, None)
            self._queue.drop(name)
            return
        self._nodes[name] = node.labels.get(MODEL_LABEL), node.series
        self._mark(name)

    def catalogue_changed(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.all_changed()

    def all_changed(self) -> None:
        """All nodes may need other labels: it is this replica's turn to write."""
        for name in self._nodes:
            self._mark(name)

    def _mark(self, name: str) -> None:
        """Thousands of nodes are as they should be; kube-scheduler would wait for each look."""
        if self._wanted(name) is not None:
            self._queue.mark(name)

    def _wanted(self, name: str) -> Patch | None:
        node, catalogue, models = self._nodes.get(name), self._catalogue, self._models(name)
        if node is None or catalogue is None or models is None:
            return None
        change = series_change(*node, catalogue.series_of(models))
        if change is None:
            return None
        metadata: dict[str, object] = {"annotations": dict(change.annotations)}
        if change.labels:
            metadata["labels"] = dict(change.labels)
        return Patch(f"/api/v1/nodes/{name}", metadata)
