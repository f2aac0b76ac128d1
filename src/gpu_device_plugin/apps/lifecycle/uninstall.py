"""The chart's pre-delete hook: mark the nodes, and wait until every agent has withdrawn.

Only the agents know what running containers mount, so they are asked. When this has succeeded,
helm removes them.
"""

import asyncio
from collections.abc import Callable, Mapping

from gpu_device_plugin.apps.lifecycle.patience import SILENT_SECONDS, Patience
from gpu_device_plugin.cluster.fleet import Fleet, FleetNode
from gpu_device_plugin.domain.annotations import (
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
    kept_pods,
)
from gpu_device_plugin.domain.counted import counted
from gpu_device_plugin.errors import ClusterError

LOOK_SECONDS = 2.0
_AT_ONCE = 8
"""Concurrent requests to the API server, because a large cluster has many nodes."""

Tell = Callable[[str], None]


class Uninstall:
    """One run over all nodes that have an agent."""

    def __init__(
        self,
        fleet: Fleet,
        tell: Tell,
        look_seconds: float = LOOK_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._tell = tell
        self._look_seconds = look_seconds
        self._done: dict[str, tuple[str, ...]] = {}
        self._waiting: Mapping[str, str] = {}
        self._patience = Patience(tell, silent_seconds)

    async def run(self, deadline_seconds: float) -> None:
        """Return when every agent has withdrawn, or its node is gone.

        Raises:
            ClusterError: Not all did so in time; the text names the nodes and what to do.
            AccessError: There is no usable kubeconfig, it has not the rights, or its server is unknown.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                while not await self._is_over():
                    await asyncio.sleep(self._look_seconds)
        except TimeoutError as error:
            raise ClusterError(self._unanswered(deadline_seconds)) from error
        self._summarise()

    async def _is_over(self) -> bool:
        """Check once whether all have withdrawn; the API server may be away."""
        try:
            is_over = await self._look()
        except ClusterError as error:
            self._patience.failed(error)
            return False
        self._patience.answered()
        return is_over

    async def _look(self) -> bool:
        installation = await self._fleet.installation()
        if installation is None:
            self._tell(f"there is no DaemonSet {self._fleet}: no node to ask")
            return True
        agents = await self._fleet.agents(installation)
        first = not self._waiting and not self._done
        self._waiting = {node: pod for node, pod in agents.items() if node not in self._done}
        if first:
            self._tell(f"asking {counted(len(agents), 'node')} to withdraw")
        gate = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._ask(gate, node, installation) for node in self._waiting))
        self._waiting = {n: pod for n, pod in self._waiting.items() if n not in self._done}
        return not self._waiting

    async def _ask(self, gate: asyncio.Semaphore, name: str, installation: str) -> None:
        async with gate:
            node = await self._fleet.node(name)
            if node is not None and node.annotations.get(UNINSTALL_ANNOTATION) != installation:
                node = await self._fleet.mark(name, installation)
        self._note(name, node, installation)

    def _note(self, name: str, node: FleetNode | None, installation: str) -> None:
        if node is None:
            self._done[name] = ()
            self._tell(f"node {name}: gone")
            return
        kept = kept_pods(node.annotations.get(WITHDRAWN_ANNOTATION, ""), installation)
        if kept is None:
            return
        self._done[name] = kept
        stay = f"; files of running pods are kept: {', '.join(kept)}" if kept else ""
        self._tell(f"node {name}: withdrawn{stay}")

    def _summarise(self) -> None:
        pods = [pod for kept in self._done.values() for pod in kept]
        self._tell(f"withdrawn: {counted(len(self._done), 'node')}")
        if pods:
            self._tell(
                f"still running with a slice: {counted(len(pods), 'pod')}. If a container of theirs ends, it "
                f"cannot start again without the plugin. When the pods have ended, remove their "
                f"files with `gpu-device-plugin cleanup` on the nodes"
            )

    def _unanswered(self, deadline_seconds: float) -> str:
        if not self._waiting:
            return (
                f"within {deadline_seconds:g} s the API server did not say which nodes have agents; "
                f"{self._patience.trouble or 'it did not answer'}"
            )
        named = ", ".join(f"{node} (pod {pod})" for node, pod in sorted(self._waiting.items()))
        return (
            f"no answer within {deadline_seconds:g} s from the agents of "
            f"{counted(len(self._waiting), 'node')}: {named}. Check these pods, delete pods with "
            f"claims on these nodes (Event WithdrawalWaits), repair or delete the nodes, and "
            f"uninstall again; or leave "
            f"their files behind with `helm uninstall --no-hooks` and run `gpu-device-plugin "
            f"cleanup` on the nodes later. To stay installed instead, remove the marks: "
            f"`kubectl annotate nodes --all {UNINSTALL_ANNOTATION}-`"
        )
