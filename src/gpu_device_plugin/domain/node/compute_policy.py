"""What a share of compute means while nobody else works: the compute policy of a slice."""

from enum import StrEnum

COMPUTE_POLICY_KEY = "gpu-device-plugin/compute-policy"
"""The node label, and the pod annotation over it where the operator allows that."""


class ComputePolicy(StrEnum):
    """The policies, by the names that the limits file has for them (docs/isolation.md)."""

    FIXED = "fixed"
    WORK_CONSERVING = "work-conserving"
    NATIVE = "native"

    @classmethod
    def _missing_(cls, value: object) -> "ComputePolicy | None":
        """By cGPU's number (R-560)."""
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
