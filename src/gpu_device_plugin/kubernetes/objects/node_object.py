"""Our own Node object, and other plugins that offer its cards."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Node, ResourceSlice
from gpu_device_plugin.kubernetes.objects.quantity import whole_number

NVIDIA_DRIVER = "gpu.nvidia.com"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True, slots=True)
class OwnNode:
    """Our node as the API has it."""

    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    kubelet_version: str = ""  # for instance `v1.36.3`; empty where it is not known
    runtime_version: str = ""  # for instance `containerd://2.4.2`
    taints: Sequence[Mapping[str, str]] = ()
    resource_version: str = field(default="", compare=False)


class NodeWatch:
    """Follows one Node and the NVIDIA ResourceSlices on it."""

    def __init__(
        self,
        api: ApiServer,
        node_name: str,
        *,
        on_change: Callable[[], None] = lambda: None,
        resources: Collection[str] = OUR_RESOURCES,
    ) -> None:
        self.view: OwnNode | None = None
        self._node_name = node_name
        self._resources = frozenset(resources)
        self._on_change = on_change
        self._slices: set[str] = set()
        self._node = Reflection(
            api,
            Source("/api/v1/nodes", f"metadata.name={node_name}"),
            Node,
            ObjectListener(
                replace=lambda nodes: self._see(_view(nodes[0]) if nodes else None),
                put=lambda node: self._see(_view(node)),
                remove=lambda _: self._see(None),
            ),
        )
        selector = f"spec.driver={NVIDIA_DRIVER},spec.nodeName={node_name}"
        self._resource_slices = Reflection(
            api,
            Source(_SLICES, selector, is_optional=True),
            ResourceSlice,
            ObjectListener(
                replace=lambda found: self._set_slices({each.metadata.name for each in found}),
                put=lambda found: self._set_slices(self._slices | {found.metadata.name}),
                remove=lambda gone: self._set_slices(self._slices - {gone.metadata.name}),
            ),
        )

    @property
    def is_synced(self) -> bool:
        """Whether the node was read at least once since we started."""
        return self._node.is_synced

    @property
    def trouble(self) -> str:
        """Why the view is not current; empty if it is."""
        return self._node.trouble

    def foreign_plugin(self, is_offered: Callable[[str], bool] = lambda _: False) -> str:
        """Evidence of another plugin that gives away the same cards; empty if there is none."""
        known, view = self._resources, self.view
        counted = _foreign(view, lambda name: name in known or is_offered(name)) if view else ""
        if counted:
            return f"node {self._node_name} has {counted} from another device plugin"
        if not self._slices:
            return ""
        names = ", ".join(sorted(self._slices))
        return f"node {self._node_name} has ResourceSlices of the driver {NVIDIA_DRIVER}: {names}"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._node.run())
            group.create_task(self._resource_slices.run())

    def _see(self, view: OwnNode | None) -> None:
        before, self.view = self.view, view
        if view != before:
            self._on_change()

    def _set_slices(self, names: set[str]) -> None:
        if names != self._slices:
            self._slices = names
            self._on_change()


def _view(node: Node) -> OwnNode:
    status = node.status
    return OwnNode(
        uid=node.metadata.uid,
        labels=node.labels,
        annotations=node.annotations,
        capacity={name: str(amount) for name, amount in (status.capacity or {}).items()},
        allocatable={name: str(amount) for name, amount in (status.allocatable or {}).items()},
        kubelet_version=status.node_info.kubelet_version,
        runtime_version=status.node_info.container_runtime_version,
        taints=node.spec.taints or (),
        resource_version=node.metadata.resource_version,
    )


def _foreign(view: OwnNode, is_offered: Callable[[str], bool]) -> str:
    """NVIDIA's resources of the node that are not zero, such as `nvidia.com/gpu: 4`."""
    amounts = {**view.allocatable, **{k: v for k, v in view.capacity.items() if _is_some(v)}}
    return ", ".join(
        f"{name}: {amount}"
        for name, amount in sorted(amounts.items())
        if name.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))
        and not is_offered(name)
        and _is_some(amount)
    )


def _is_some(quantity: str) -> bool:
    try:
        return whole_number(quantity) > 0
    except ClusterError:
        return False
