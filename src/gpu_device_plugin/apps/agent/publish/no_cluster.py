"""The agent without an API server (`--standalone`)."""

from collections.abc import Callable, Coroutine
from typing import Any

from gpu_device_plugin.apps.agent.publish.resource_claims import NoClaims, ResourceClaims
from gpu_device_plugin.cluster.events import EventNote
from gpu_device_plugin.cluster.node import ForeignPlugin, NodeView
from gpu_device_plugin.cluster.objects import Wanted
from gpu_device_plugin.domain.caller import Specs
from gpu_device_plugin.domain.pods import PodRef, PodRequest


class NoCluster:
    """The null object for `--standalone`, where there is no API server."""

    resource_claims: ResourceClaims = NoClaims()

    node: NodeView | None = None
    node_trouble = ""
    installation = ""
    runtime_class: str | None = None
    is_reachable: bool | None = None

    def foreign_plugin(self, _is_ours: Callable[[str], bool], /) -> ForeignPlugin | None:
        """None is known."""
        return None

    def specs(self) -> Specs:
        """No pod specs."""
        return {}

    def is_synced(self) -> bool:
        """Never."""
        return False

    async def fetch_spec(self, _namespace: str, _name: str, /) -> PodRequest | None:
        """No pod spec."""
        return None

    def post(self, _note: EventNote, /) -> None:
        """Nothing to do; the log has it already."""

    def describe_node(
        self, *, labels: Wanted | None = None, annotations: Wanted | None = None
    ) -> None:
        """Nothing to do."""

    def drop(self, *, label: str = "", annotation: str = "") -> None:
        """Nothing to do: there is none."""

    def annotate_pod(self, _ref: PodRef, _annotations: Wanted, /) -> None:
        """Nothing to do."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Nothing runs."""
        return []
