"""Whether another device plugin shares the cards of this node, by what the kubelet itself says that it is served.

A kubelet lists devices of the plugins that are connected to it now. So a node object that is old tells nothing, nor does an amount that
is written into it without a plugin, as gpushare does with its number of cards and Koordinator with `koordinator.sh/gpu-…`.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

QUIET_SECONDS = 30.0
"""A plugin that starts again serves nothing for less than this."""

_NVIDIAS = ("nvidia.com/gpu", "nvidia.com/mig-")
_OF_OTHERS = ("nvidia.com/vgpu-", "tencent.com/vcuda-", "volcano.sh/gpu-", "volcano.sh/vgpu-")


def is_of_others(resource: str) -> bool:
    """Whether a resource is one by which another project shares cards (vgpu-manager, Tencent, Volcano), and never ours."""
    return resource.startswith(_OF_OTHERS)


def served_by_others(
    served: Iterable[str], own: Container[str], *, is_registered: bool
) -> frozenset[str]:
    """Those of the resources served on a node that are another plugin's, and of cards that we would offer.

    `own` are the names that we may serve; they are another's as long as nothing of ours is registered.
    """
    return frozenset(
        name
        for name in served
        if is_of_others(name) or (not is_registered and (name in own or name.startswith(_NVIDIAS)))
    )


@dataclass(frozen=True, slots=True)
class OtherPlugins:
    """What other plugins serve; the node is theirs until nothing of it was served for `QUIET_SECONDS`.

    Attributes:
        names: Their resources.
        is_known: Whether the kubelet has said it, or an earlier run of the agent has served here.
        quiet_since: Since when the kubelet has said that nothing is served; None while something is, or it says nothing.
    """

    names: frozenset[str] = frozenset()
    is_known: bool = False
    quiet_since: float | None = None

    def after(self, found: frozenset[str] | None, now: float) -> "OtherPlugins":
        """What is so `now`, when the kubelet says that others serve `found`; None if it does not answer."""
        if found is None:
            return replace(self, quiet_since=None)
        if found or not self.names:
            return OtherPlugins(found, is_known=True)
        since = now if self.quiet_since is None else self.quiet_since
        if now - since >= QUIET_SECONDS:
            return OtherPlugins(is_known=True)
        return OtherPlugins(self.names, is_known=True, quiet_since=since)
