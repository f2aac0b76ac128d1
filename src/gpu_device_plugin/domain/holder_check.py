"""Whether a slice belongs to the container that starts, and follows the rules for its pod."""

from collections.abc import Sequence

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.pods import ListedPod
from gpu_device_plugin.errors import UnknownPodError


def check_holder(
    grant: Grant,
    resource: str,
    listed: ListedPod | None,
    entries: Sequence[CheckpointEntry],
) -> None:
    """Return if the kubelet agrees with the grant, or does not know.

    Args:
        grant: The slice on whose units a container is about to start.
        resource: Of these units.
        listed: The grant's pod from PodResources Get, or None if Get does not answer.
        entries: The kubelet's checkpoint, which has the ordinary init containers as well.

    Raises:
        UnknownPodError: Another pod or container holds these units.
    """
    ids = frozenset(grant.ids(resource))
    if listed is not None and not grant.is_handed_on and grant.container in listed.held:
        if listed.ids(grant.container, resource) == ids:
            return
        raise _not_the_holder(grant, resource, f"{grant.pod} (container {grant.container})")
    holders = [e for e in entries if e.resource == resource and e.ids == ids]
    if holders and not any(_is_of(grant, e) for e in holders):
        raise _not_the_holder(grant, resource, f"pod uid {holders[0].pod_uid}")


def _is_of(grant: Grant, entry: CheckpointEntry) -> bool:
    """Whether the entry can be the grant's; unknown values contradict nothing."""
    is_pod = grant.pod.uid in ("", entry.pod_uid)
    return is_pod and grant.container in ("", entry.container)


def _not_the_holder(grant: Grant, resource: str, holder: str) -> UnknownPodError:
    return UnknownPodError(
        f"the units of {resource} granted to pod {grant.pod} (container {grant.container}) are "
        f"held, the kubelet says, by {holder}; the container must not start on them, create the "
        f"pod again",
        reason="NotTheHolder",
    )
