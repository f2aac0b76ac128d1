"""The metrics page. Names and labels are an interface and do not change."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from gpu_device_plugin.web.gauges import PREFIX, Gauges, Snapshot

_ALLOCATE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# Otherwise each counter has one more series, with the time at which the process started.
disable_created_metrics()  # type: ignore[no-untyped-call]


class AgentMetrics:
    """The agent's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._gauges = Gauges(version)
        self._registry.register(self._gauges)
        ProcessCollector(registry=self._registry)
        self._ready = Gauge(
            f"{PREFIX}_ready", "Whether /readyz answers 200.", registry=self._registry
        )
        self._allocate_seconds = Histogram(
            f"{PREFIX}_allocate_seconds",
            "Time to answer Allocate.",
            buckets=_ALLOCATE_BUCKETS,
            registry=self._registry,
        )
        self._allocations = self._counter(
            "allocations",
            "Allocate and GetPreferredAllocation decisions.",
            ("resource", "outcome", "reason"),
        )
        self._registrations = self._counter(
            "registrations", "Registrations with the kubelet.", ("resource",)
        )
        self._card_changes = self._counter(
            "card_changes", "Changes of a card's health.", ("uuid", "reason")
        )
        self._nvml_restarts = self._counter("nvml_restarts", "Restarts of the NVML child process.")
        self._nvml_restarts_shown = 0
        self._claims = self._counter(
            "claims", "Calls to prepare a claim (DRA).", ("outcome", "reason")
        )
        self._repairs = self._counter(
            "slice_repairs", "Repairs of slices, by what was wrong.", ("reason",)
        )
        self._files_set_aside = self._counter(
            "state_files_set_aside", "Files of the state directory that could not be trusted."
        )
        self._events_dropped = self._counter(
            "events_dropped", "Kubernetes Events that could not be written."
        )

    def publish(self, snapshot: Snapshot) -> None:
        """Show these cards and slices from now on, and no others."""
        self._gauges.snapshot = snapshot

    def observe_allocate(self, seconds: float) -> None:
        """One Allocate took so long."""
        self._allocate_seconds.observe(seconds)

    def count_allocation(self, resource: str, outcome: str, reason: str = "") -> None:
        """One decision: outcome `granted`, or `refused` with the refusal's reason."""
        self._allocations.labels(resource, outcome, reason).inc()

    def count_claim(self, outcome: str, reason: str = "") -> None:
        """One call to prepare a claim: outcome `granted`, or `refused` with the refusal's reason."""
        self._claims.labels(outcome, reason).inc()

    def count_registration(self, resource: str) -> None:
        """One registration with the kubelet."""
        self._registrations.labels(resource).inc()

    def count_card_change(self, uuid: str, reason: str) -> None:
        """A card became unhealthy for `reason`, or healthy again."""
        self._card_changes.labels(uuid, reason).inc()

    def show_nvml_restarts(self, total: int) -> None:
        """The NVML child process was started again so often by now."""
        self._nvml_restarts.inc(total - self._nvml_restarts_shown)
        self._nvml_restarts_shown = total

    def count_repair(self, reason: str) -> None:
        """Something about a slice was repaired."""
        self._repairs.labels(reason).inc()

    def count_file_set_aside(self) -> None:
        """One of our files was damaged and set aside."""
        self._files_set_aside.inc()

    def count_dropped_event(self) -> None:
        """A Kubernetes Event was given up."""
        self._events_dropped.inc()

    def page(self, accept: str, *, is_ready: bool = False) -> tuple[bytes, str]:
        """The metrics page and its content type, as the `Accept` header wants them."""
        self._ready.set(is_ready)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)
