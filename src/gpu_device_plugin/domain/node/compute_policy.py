"""What a share of compute means while nobody else works: the compute policy of a slice, and who decides it."""

from enum import StrEnum

from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.errors import RequestError

COMPUTE_POLICY_KEY = "gpu-device-plugin/compute-policy"
"""The node label, and the pod annotation over it where the operator allows that."""


class ComputePolicy(StrEnum):
    """The policies, by the names that the limits file has for them (docs/isolation.md)."""

    FIXED = "fixed"
    WORK_CONSERVING = "work-conserving"
    NATIVE = "native"

    @classmethod
    def _missing_(cls, value: object) -> "ComputePolicy | None":
        """The policy of a number as cGPU writes it (R-560)."""
        return _BY_NUMBER.get(str(value))


_BY_NUMBER = {
    "3": ComputePolicy.FIXED,
    "1": ComputePolicy.WORK_CONSERVING,
    "2": ComputePolicy.WORK_CONSERVING,
    "5": ComputePolicy.NATIVE,
}
KNOWN_POLICIES = (
    "fixed (3), work-conserving (1, 2), native (5); cGPU's 0 and 4 share by the number of "
    "containers, which is not offered: a share is what a pod asks for"
)
"""For error texts: each policy with its numbers."""


def parse_compute_policy(text: str) -> ComputePolicy | None:
    """The policy of that name or number, or None.

    >>> parse_compute_policy("1")
    <ComputePolicy.WORK_CONSERVING: 'work-conserving'>
    """
    try:
        return ComputePolicy(text)
    except ValueError:
        return None


def node_compute_policy(label: str | None, setting: ComputePolicy) -> ComputePolicy | None:
    """A node's: its label over the setting; None where the label names none, so that the one in force stays."""
    return setting if label is None else parse_compute_policy(label)


def pod_compute_policy(
    spec: PodRequest | None, node: str, policy: ComputePolicy, *, honors_annotation: bool
) -> ComputePolicy:
    """A pod's: its annotation, where the operator allows that, over the node's `policy`.

    RequestError if the annotation decides and names none.
    """
    asked = spec.compute_policy if spec and honors_annotation else None
    found = policy if asked is None else parse_compute_policy(asked)
    if spec is not None and found is None:
        raise RequestError(
            f"pod {spec.ref} on node {node}: annotation {COMPUTE_POLICY_KEY}={asked} is not "
            f"a known policy; known: {KNOWN_POLICIES}",
            reason="UnknownComputePolicy",
        )
    return found or policy
