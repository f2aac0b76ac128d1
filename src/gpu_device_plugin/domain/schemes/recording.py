"""Schemes that record: the kubelet's choice of devices stands.

Whole devices and replicas of them need no decision of ours, so a call need not be known to be a
certain pod's, and nothing is written inside it. Who holds what is read from List and checkpoint
by reconcile, and lies in the same ledger as the grants of schemes that decide.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.adoption import Found, found
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits, Paths
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import HeldUnits, PodRequest
from gpu_device_plugin.domain.schemes.protocol import Scheme
from gpu_device_plugin.domain.shares import Holder, Share
from gpu_device_plugin.errors import DoesNotFitError


class Records(Scheme):
    """A scheme that takes the units that the kubelet gives."""

    @abstractmethod
    def prefer(self, call: Call, available: Collection[str], state: NodeState) -> Sequence[str]:
        """The units that are best given together: exactly `call.size`, those to include first."""

    @abstractmethod
    def share(self, resource: str, unit: str, state: NodeState) -> Share:
        """What holding this unit is of a device; its memory is None while the device is away."""

    @abstractmethod
    def edits(self, call: Call, state: NodeState, paths: Paths) -> ContainerEdits:
        """What a container receives that holds the call's units."""

    def check_call(self, call: Call, state: NodeState) -> None:
        """Check that these units may be given to a container, whichever it is.

        Raises:
            RequestError: No container gets this.
            DoesNotFitError: A unit is not offered now, or its device is out of service.
        """
        groups = {
            text: group
            for pool in self.pools(state)
            if pool.resource == call.resource
            for group in pool.groups
            for text in group.ids
        }
        unknown = sorted(call.must_include - groups.keys())
        if unknown:
            raise DoesNotFitError(
                f"{', '.join(unknown)} of {call.resource} is not offered any more; create the pod "
                f"again",
                reason="NoRoom",
            )
        out = sorted(text for text in call.must_include if not groups[text].is_healthy)
        if out:
            raise DoesNotFitError(
                f"{', '.join(out)} went out of service after the kubelet had chosen it; create the "
                f"pod again",
                reason="NoHealthyCard",
            )

    def devices(self, call: Call, state: NodeState) -> frozenset[str]:
        """The devices that the call's units are of."""
        return frozenset(self.share(call.resource, u, state).device for u in call.must_include)

    def sized(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with its shares as the devices are now."""
        return replace(grant, shares=self._shares(grant.units, state))

    def checked(self, grant: Grant, spec: PodRequest, state: NodeState) -> Grant:
        """The grant with what the pod spec says of its holder; there is no rule about it."""
        del state
        container = spec.container(grant.container)
        if container is None:
            return grant
        pod = replace(spec.ref, uid=grant.pod.uid or spec.ref.uid)
        holder = Holder(pod, container.name, container.kind, container.index)
        return replace(grant, holder=holder, is_checked=True)

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        """One grant for each container that holds units."""
        return tuple(self._grant(each, state) for each in found(held, specs))

    def _grant(self, of: Found, state: NodeState) -> Grant:
        units = {resource: tuple(sorted(part.ids)) for resource, part in of.parts.items()}
        return Grant(
            slice_id=of.derived_id("recorded"),
            holder=of.holder,
            units=units,
            shares=self._shares(units, state),
            is_isolated=False,
            is_checked=of.is_known,
        )

    def _shares(self, units: Mapping[str, Sequence[str]], state: NodeState) -> tuple[Share, ...]:
        """A device of which several units are held counts once."""
        shares = (self.share(name, text, state) for name, ids in units.items() for text in ids)
        by_device = {share.device: share for share in shares}
        return tuple(
            replace(s, memory_mib=(s.memory_bytes or 0) // 2**20) for s in by_device.values()
        )
