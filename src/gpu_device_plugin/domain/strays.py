"""Files of slices that no grant names: which of them may be removed.

They may remain after a crash, but also after a ledger was lost whose containers are running.
"""

from collections.abc import Collection, Mapping

from gpu_device_plugin.domain.grant_lifetime import ABSENT_SECONDS, KUBELET_SETTLE_SECONDS


def strays(
    present: Collection[str],
    named: Collection[str] | None,
    unnamed_since: Mapping[str, float],
    now: float,
    kubelet_since: float | None,
) -> tuple[frozenset[str], Mapping[str, float]]:
    """Which slices' files may be removed, and since when others have not been named.

    A slice is removed only if neither a grant nor the kubelet's checkpoint names it in two passes,
    30 s apart and later than 60 s after kubelet.sock appeared.

    Args:
        present: Slices that have files on the node.
        named: Slices that a grant or the checkpoint names; None if there is no checkpoint,
            because then it is not known.
        unnamed_since: Second result of the last pass; empty at the first.
        now: Monotonic clock, seconds.
        kubelet_since: The same clock when kubelet.sock appeared; None while it is away.

    Returns:
        Slice ids to remove, and slice id -> `now` of the first pass in which nothing named it.
    """
    if named is None or kubelet_since is None or now - kubelet_since < KUBELET_SETTLE_SECONDS:
        return frozenset(), {}
    since = {key: min(unnamed_since.get(key, now), now) for key in present if key not in named}
    over = frozenset(key for key, first in since.items() if now - first >= ABSENT_SECONDS)
    return over, {key: first for key, first in since.items() if key not in over}
