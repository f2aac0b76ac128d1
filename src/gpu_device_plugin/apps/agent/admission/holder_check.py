"""Whether the kubelet gives a slice to the container that it was granted to."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from gpu_device_plugin.apps.agent.reconcile.kubelet_snapshot import SnapshotReader, completed
from gpu_device_plugin.domain.ledger import Grant
from gpu_device_plugin.domain.pods import ListedPod, PodRef, PodRequest
from gpu_device_plugin.domain.requests import NodeTerms, demand
from gpu_device_plugin.domain.units import Resource
from gpu_device_plugin.errors import KubeletError, RequestError, UnknownPodError
from gpu_device_plugin.kubelet.checkpoint import CheckpointEntry

_log = structlog.get_logger("prestart")


class HolderCheck:
    """Asks PodResources Get, and the kubelet's checkpoint for what Get does not show.

    Both are harmless while an Allocate is in flight, and both know the units of a container
    before it starts.
    """

    def __init__(
        self, get_pod: Callable[[PodRef], Awaitable[ListedPod | None]], snapshots: SnapshotReader
    ) -> None:
        self._get_pod = get_pod
        self._snapshots = snapshots

    async def check(self, grant: Grant, resource: Resource) -> None:
        """Return if the kubelet agrees, or cannot tell.

        Raises:
            UnknownPodError: Another pod or container holds these units.
        """
        ids = frozenset(grant.ids(resource))
        entry = await self._listed(grant)
        if entry is not None and not grant.is_handed_on and grant.container in entry.held:
            if entry.ids(grant.container, resource) == ids:
                return
            raise _not_the_holder(grant, resource, f"{grant.pod} (container {grant.container})")
        entries = [e for e in self._entries() if e.resource is resource and e.ids == ids]
        if entries and not any(_is_of(grant, e) for e in entries):
            raise _not_the_holder(grant, resource, f"pod uid {entries[0].pod_uid}")

    def named(self, grant: Grant) -> tuple[str, str]:
        """Uid and container of a grant, as far as anybody knows them."""
        return completed(grant, self._entries())

    async def _listed(self, grant: Grant) -> ListedPod | None:
        if not grant.pod.name:
            return None
        try:
            return await self._get_pod(grant.pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(grant.pod), error=str(error))
            return None

    def _entries(self) -> Sequence[CheckpointEntry]:
        try:
            return self._snapshots.entries()
        except KubeletError as error:
            _log.info("the kubelet's checkpoint cannot be read", error=str(error))
            return ()


def checked(grant: Grant, spec: PodRequest, terms: NodeTerms) -> Grant:
    """The grant, held to the rules that need its pod spec; what is not known stays unchecked.

    Raises:
        RequestError: The pod asks for something that this node does not give.
    """
    container = spec.container(grant.container)
    if container is None:
        return grant
    needed = demand(spec, container, terms)
    if grant.mem_ids and len(grant.card_numbers) != needed.cards:
        raise RequestError(
            f"pod {spec.ref}, container {container.name}, on node {terms.node}: its label asks for "
            f"{needed.cards} cards, the slice is on {len(grant.card_numbers)}, given while the API "
            f"server was away; create the pod anew",
            reason="CardCountUnknown",
        )
    return replace(
        grant,
        pod=replace(spec.ref, uid=grant.pod.uid or spec.ref.uid),
        kind=container.kind,
        index=container.index,
        pod_units=spec.app_units,
        is_checked=True,
    )


def _is_of(grant: Grant, entry: CheckpointEntry) -> bool:
    """Whether the entry may be the grant's; what a grant does not know contradicts nothing."""
    is_pod = grant.pod.uid in ("", entry.pod_uid)
    return is_pod and grant.container in ("", entry.container)


def _not_the_holder(grant: Grant, resource: Resource, holder: str) -> UnknownPodError:
    return UnknownPodError(
        f"the units of {resource} granted to pod {grant.pod} (container {grant.container}) are "
        f"held, the kubelet says, by {holder}; the container must not start on them, create the "
        f"pod anew",
        reason="NotTheHolder",
    )
