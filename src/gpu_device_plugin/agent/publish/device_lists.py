"""What the kubelet is offered: the pools of the node, one endpoint each."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from gpu_device_plugin.agent.state.node_store import Signal
from gpu_device_plugin.domain.node.state import NodeState, Pool
from gpu_device_plugin.kubelet.registration import Endpoint, EndpointPhase, EndpointState


class Registrations:
    """Resources of which the kubelet holds our list, also an empty one."""

    def __init__(self) -> None:
        self._serving: set[str] = set()
        self.changed = Signal[EndpointState]()
        """Emitted when an endpoint is registered, or no longer."""

    @property
    def is_any(self) -> bool:
        return bool(self._serving)

    def note(self, state: EndpointState) -> None:
        if state.phase is EndpointPhase.SERVING:
            self._serving.add(state.resource)
        else:
            self._serving.discard(state.resource)
        self.changed.emit(state)


class DeviceLists:
    """Publishes the node's pools; the set of endpoints follows them while the agent runs.

    A resource that is offered no more keeps its endpoint, withdrawn, so that the kubelet's
    counters for it stay those of one endpoint when it comes back.
    """

    def __init__(
        self, open_endpoint: Callable[[str], Endpoint], pools: Callable[[NodeState], Sequence[Pool]]
    ) -> None:
        self._open_endpoint = open_endpoint
        self._pools = pools
        self._endpoints: dict[str, Endpoint] = {}
        self._waiting: asyncio.Queue[Endpoint] = asyncio.Queue()

    async def run(self) -> None:
        """Serve every endpoint that is there or comes, until cancelled; an error of one ends all."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task((await self._waiting.get()).run())

    def publish(self, state: NodeState) -> None:
        pools = {pool.resource: pool for pool in self._pools(state)}
        for resource, pool in pools.items():
            if resource not in self._endpoints:
                self._endpoints[resource] = self._open_endpoint(resource)
                self._waiting.put_nowait(self._endpoints[resource])
            self._endpoints[resource].publish(pool.groups)
        for resource in self._endpoints.keys() - pools.keys():
            self._endpoints[resource].withdraw()

    def send_again(self, _: None = None) -> None:
        """Send a list once more, which makes the kubelet write its checkpoint again."""
        with suppress(StopIteration):
            next(each for each in self._endpoints.values() if each.is_ready).send_again()

    def registered_resources(self, state: NodeState) -> tuple[str, ...]:
        return tuple(pool.resource for pool in self._pools(state))

    def not_ready(self, state: NodeState) -> list[str]:
        """What is still missing before the kubelet can place pods here; nothing when ready."""
        missing = []
        for resource in self.registered_resources(state):
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                missing.append(f"{resource}: nothing offered yet")
            elif not endpoint.is_ready:
                missing.append(f"{resource}: {endpoint.state.detail or endpoint.state.phase.value}")
        return missing
