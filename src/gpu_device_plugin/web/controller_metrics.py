"""What Prometheus reads from a controller."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from gpu_device_plugin.domain.schemes.aliyun.placement import Room

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class ControllerMetrics:
    """Latencies as they come; the cards' figures are made when somebody reads them."""

    def __init__(self, rooms: Callable[[], Mapping[str, Iterable[Room]]]) -> None:
        self._rooms = rooms
        self._registry = CollectorRegistry()
        self._latency = Histogram(
            "gpu_controller_call_duration_seconds",
            "Time to answer kube-scheduler, without reading the body.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)

    def took(self, verb: str, seconds: float) -> None:
        """A call was answered."""
        self._latency.labels(verb).observe(seconds)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, by the Accept header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Each card's units, for prometheus_client."""
        total = GaugeMetricFamily(
            "gpu_cluster_card_memory_units", "Memory units of a card.", labels=["node", "card"]
        )
        free = GaugeMetricFamily(
            "gpu_cluster_card_free_memory_units",
            "Memory units of a card that no pod holds.",
            labels=["node", "card"],
        )
        for node, rooms in self._rooms().items():
            for room in rooms:
                labels = [node, str(room.card.index)]
                total.add_metric(labels, room.card.capacity(room.unit))
                free.add_metric(labels, room.free_mem)
        yield total
        yield free
